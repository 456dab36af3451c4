"""The micro-kernel on tile registers (`amx`): one panel, and up to two registers of rows."""

from llvmlite import ir
from numba.core import cgutils

from .amx import I8, REGISTERS_OF_A, REGISTERS_OF_PANELS, TILE_ROWS, TILE_WORDS, emit, emit_configuration
from .registers import I32, I64, VECTOR_BYTES, emit_fma
from .shapes import NARROW
from .tile import NAME, Tile, function_type

_SUMS = 4  # registers of sums: 2 of rows by 2 vectors of panels, or 1 by 4


def panels_at_once(gates, shape=None):
    """Return the neighbouring panels of so many gates whose products the registers of sums hold."""
    return max(1, _SUMS // gates)


class AmxTile(Tile):
    """Emits C[rows, :] = start + A[rows] . panels, over all k, for so many neighbouring panels. Several are whole.

    The last arguments before the columns are the `height`, the rows of a register, for which `configure_function` has
    configured them, and whether the rows of C follow each other. With more rows than the height there is a second
    register of rows, the last `height`; rows that are in both are computed twice, with the same result.

    Sums of bfloat16 start from C or the bias. The registers load and store them in C itself, unless its rows are not in
    order or it ends within the panel: then they are copied to memory of the function, and back. Sums that are scaled
    start from 0, and vector registers scale them and add C.
    """

    def __init__(self, module, form, real, bits, gates, panels=1):
        super().__init__(module, form, real, bits, gates, NARROW)
        self.units, self.vectors = panels, gates * panels
        self.name = f"{NAME}{self.suffix}{form.name}_{gates}_registers_{panels}"
        self.is_scaled = form.has_scales or form.scales_rows

    def function(self):
        """Emit the tile function into the module, and return it."""
        function = ir.Function(self.module, function_type(self.form, self.real, self.gates), self.name)
        function.linkage = "internal"
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.rows, self.depth, a, a_rows, self.lda, b, ldb, *rest = function.args
        (self.c, self.c_rows, self.ldc, self.bias, self.overwrite, width, _, _, *rest) = rest
        (*self.scales, self.height, in_order), self.columns = rest[: -self.gates], rest[-self.gates :]
        self.second = builder.sub(self.rows, self.height)  # first row of the second register
        self.a = self._row(builder, a, a_rows, self.lda, I64(0))
        self._find_weights(builder, I64(0), width, b, ldb)
        self.is_whole, self.mask = builder.icmp_signed(">=", width, I64(self.lanes)), self._mask(builder, width)
        self.is_in_place = builder.and_(self.is_whole, builder.trunc(in_order, ir.IntType(1)))
        self.memory = builder.alloca(ir.ArrayType(I32, _SUMS * TILE_ROWS * TILE_WORDS))
        self.memory.align = VECTOR_BYTES
        with builder.if_else(builder.icmp_signed(">", self.rows, self.height)) as sides:
            for side, registers in zip(sides, (2, 1), strict=True):
                with side:
                    size = _SUMS // registers
                    for first in range(0, self.vectors, size):
                        self.group = range(first, min(first + size, self.vectors))
                        self._block(builder, registers)
        builder.ret_void()
        return function

    def _block(self, builder, registers):
        """Compute the group's columns of C, with so many registers of rows."""
        sums = [*range(registers * len(self.group))]
        places = [self._bytes(builder, self._place(builder, number, I64(0))) for number in sums]
        stride = I64(4 * TILE_WORDS)
        if self.is_scaled:
            self._prefetch_c(builder)
            for number in sums:
                emit(builder, "tilezero", number)
        else:
            with builder.if_then(builder.not_(self.is_in_place)):
                self._copy(builder, registers, is_start=True)
            bias, own = [*self._columns(builder, self.bias)] * registers, []
            for row in (I64(0), self.second)[:registers]:
                own += self._columns(builder, self._row(builder, self.c, self.c_rows, self.ldc, row))
            of_c = builder.mul(self.ldc, I64(4))
            start = builder.select(self.is_in_place, builder.select(self.overwrite, I64(0), of_c), stride)
            stride = builder.select(self.is_in_place, of_c, stride)
            for number, place in enumerate(places):
                pointer = builder.select(self.overwrite, bias[number], own[number])
                pointer = builder.select(self.is_in_place, self._bytes(builder, pointer), place)
                emit(builder, "tileloadd64", number, pointer, start)
                places[number] = builder.select(self.is_in_place, self._bytes(builder, own[number]), place)
        self._multiply(builder, registers)
        for number, place in enumerate(places):
            emit(builder, "tilestored64", number, place, stride)
        if self.is_scaled:
            self._write(builder, registers)
        else:
            with builder.if_then(builder.not_(self.is_in_place)):
                self._copy(builder, registers, is_start=False)

    def _multiply(self, builder, registers):
        """Add the group's products to the sums in registers."""
        stride = builder.mul(self.lda, I64(4))
        second = builder.mul(self.lda, self.second)
        with _range(builder, I64(0), self.depth, TILE_WORDS) as (k, _):
            a = builder.gep(self.a, [k])
            panels = [*self._panel_columns(builder, k)]
            for place, (pointer, size, _) in enumerate(panels):
                own = REGISTERS_OF_PANELS[place % 2]
                emit(builder, "tileloadd64", own, self._bytes(builder, pointer), I64(size * VECTOR_BYTES))
                for row, of_a in enumerate(REGISTERS_OF_A[:registers]):
                    if place == 0:
                        start = builder.gep(a, [second]) if row else a
                        emit(builder, "tileloadd64", of_a, self._bytes(builder, start), stride)
                    emit(builder, f"tdp{self.form.tiles}", row * len(panels) + place, of_a, own)

    def _place(self, builder, number, row):
        """Return a pointer to a row of a register of sums in the memory."""
        start = builder.add(builder.mul(row, I64(TILE_WORDS)), I64(number * TILE_ROWS * TILE_WORDS))
        return builder.gep(self.memory, [I64(0), start])

    def _copy(self, builder, registers, is_start):
        """Copy what the group's sums start from to the memory, or the sums from there to C."""
        for register in range(registers):
            with _range(builder, I64(0), self.height) as (i, _):
                row = builder.add(i, self.second) if register else i
                numbers = range(register * len(self.group), (register + 1) * len(self.group))
                places = [self._place(builder, number, i) for number in numbers]
                own = [*self._columns(builder, self._row(builder, self.c, self.c_rows, self.ldc, row))]
                for place, pointer, bias in zip(places, own, self._columns(builder, self.bias), strict=True):
                    place = builder.bitcast(place, self.vector.as_pointer())
                    if is_start:
                        source = builder.select(self.overwrite, bias, pointer)
                        builder.store(self._load(builder, source, self.mask), place, align=VECTOR_BYTES)
                    else:
                        self._store(builder, builder.load(place, align=VECTOR_BYTES), pointer, self.mask)

    def _write(self, builder, registers):
        """Scale the sums and write the rows of C; without masks if the panel is whole, without reading C if it is
        overwritten."""
        with builder.if_else(self.is_whole) as sides:
            for side, mask in zip(sides, (None, self.mask), strict=True):
                with side, builder.if_else(self.overwrite) as cases:
                    for case, overwrites in zip(cases, (True, False), strict=True):
                        with case:
                            shared = [
                                [self._load(builder, pointer, mask) for pointer in self._columns(builder, row)]
                                for row in (*self.scales, *[self.bias] * overwrites)
                            ]
                            for row in range(registers):
                                self._write_rows(builder, row, row == registers - 1, mask, overwrites, shared)

    def _write_rows(self, builder, register, is_last, mask, overwrites, shared):
        """Write the rows of a register that are not in the first one."""
        start = self.height if register else I64(0)
        with _range(builder, start, self.rows if is_last else self.height) as (i, _):
            c, sums = self._row(builder, self.c, self.c_rows, self.ldc, i), []
            for place in range(len(self.group)):
                row = builder.sub(i, self.second) if register else i
                pointer = self._place(builder, register * len(self.group) + place, row)
                sums.append(builder.load(builder.bitcast(pointer, self.form.sum.as_pointer()), align=VECTOR_BYTES))
            pointers = [*self._columns(builder, c)]
            before = shared[-1] if overwrites else [self._load(builder, pointer, mask) for pointer in pointers]
            row = builder.gep(self.a, [builder.add(builder.mul(i, self.lda), I64(-1))])
            scale = self._in_every_lane(builder, builder.load(row))
            if self.form.has_scales:
                for place, (own, offset) in enumerate(zip(*shared[:2], strict=True)):
                    total = builder.add(builder.bitcast(offset, self.form.sum), sums[place])
                    total = builder.sitofp(total, self.vector)
                    sums[place] = emit_fma(builder, total, builder.fmul(own, scale), before[place])
            else:
                pairs = zip(sums, before, strict=True)
                sums = [emit_fma(builder, total, scale, first) for total, first in pairs]
            for value, pointer in zip(sums, pointers, strict=True):
                self._store(builder, value, pointer, mask)

    def _prefetch_c(self, builder):
        """Prefetch what the group's products are written to."""
        with _range(builder, I64(0), self.rows) as (i, _):
            for pointer in self._columns(builder, self._row(builder, self.c, self.c_rows, self.ldc, i)):
                self._prefetch(builder, pointer)

    @staticmethod
    def _bytes(builder, pointer):
        return builder.bitcast(pointer, I8.as_pointer())


def _range(builder, start, stop, step=1):
    return cgutils.for_range_slice(builder, start, stop, I64(step), intp=I64)


def configure_function(module):
    """Emit a function of the height, which configures the tile registers."""
    builder = _function(module, "configure", [I64])
    emit_configuration(builder, builder.function.args[0])
    builder.ret_void()
    return builder.function


def release_function(module):
    """Emit a function that sets the tile registers to their initial state, which a context switch does not save."""
    builder = _function(module, "release", [])
    emit(builder, "tilerelease")
    builder.ret_void()
    return builder.function


def _function(module, name, arguments):
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), f"{NAME}{name}")
    function.linkage = "internal"
    return ir.IRBuilder(function.append_basic_block("entry"))
