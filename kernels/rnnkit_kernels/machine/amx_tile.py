"""The micro-kernel on tile registers (`amx`): one panel, and up to two registers of rows."""

from llvmlite import ir
from numba.core import cgutils

from .amx import I8, REGISTERS_OF_A, REGISTERS_OF_PANELS, TILE_ROWS, TILE_WORDS, emit, emit_configuration
from .registers import I32, I64, VECTOR_BYTES, emit_fma
from .shapes import NARROW
from .tile import NAME, Tile, function_type

_SUMS = 4  # registers of sums: 2 of rows by 2 gates, or 1 by 4


class AmxTile(Tile):
    """Emits C[rows, :] = start + A[rows] . panel, over all k.

    The last argument before the columns is the `height`, the rows of a register, for which `configure_function` has
    configured them. With more rows than that there is a second register of rows. Rows of A beyond these may be
    anything, but must be readable.
    """

    def __init__(self, module, form, real, bits, gates):
        super().__init__(module, form, real, bits, gates, NARROW)
        self.name = f"{NAME}{self.suffix}{form.name}_{gates}_registers"

    def function(self):
        """Emit the tile function into the module, and return it."""
        function = ir.Function(self.module, function_type(self.form, self.real, self.gates), self.name)
        function.linkage = "internal"
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.rows, self.depth, a, a_rows, self.lda, b, ldb, *rest = function.args
        (self.c, self.c_rows, self.ldc, self.bias, self.overwrite, width, _, _, *rest) = rest
        self.columns, self.height = rest[-self.gates :], rest[-self.gates - 1]
        self.scales = rest[:2] if self.form.has_scales else []
        self.a = self._row(builder, a, a_rows, self.lda, I64(0))
        self._find_weights(builder, I64(0), width, b, ldb)
        self.is_whole, self.mask = builder.icmp_signed(">=", width, I64(self.lanes)), self._mask(builder, width)
        self.memory = builder.alloca(ir.ArrayType(I32, _SUMS * TILE_ROWS * TILE_WORDS))
        self.memory.align = VECTOR_BYTES
        with builder.if_else(builder.icmp_signed(">", self.rows, self.height)) as sides:
            for side, registers in zip(sides, (2, 1), strict=True):
                with side:
                    size = _SUMS // registers
                    for first in range(0, self.gates, size):
                        self.group = range(first, min(first + size, self.gates))
                        self._prefetch_c(builder)
                        self._multiply(builder, registers)
                        self._write(builder, registers)
        builder.ret_void()
        return function

    def _multiply(self, builder, registers):
        """Sum the group's products in registers, and store these in the memory."""
        sums = [*range(registers * len(self.group))]
        for number in sums:
            emit(builder, "tilezero", number)
        stride = builder.mul(self.lda, I64(4))
        second = builder.mul(self.lda, self.height)
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
        for number in sums:
            place = builder.gep(self.memory, [I64(0), I64(number * TILE_ROWS * TILE_WORDS)])
            emit(builder, "tilestored64", number, self._bytes(builder, place), I64(4 * TILE_WORDS))

    def _write(self, builder, registers):
        """Write the rows of C; without masks if the panel is whole, without reading C if it is overwritten."""
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
        """Write the rows of a register."""
        start = self.height if register else I64(0)
        with _range(builder, start, self.rows if is_last else self.height) as (i, _):
            c, sums = self._row(builder, self.c, self.c_rows, self.ldc, i), []
            first = builder.mul(builder.sub(i, start), I64(TILE_WORDS))
            for place in range(len(self.group)):
                place = I64((register * len(self.group) + place) * TILE_ROWS * TILE_WORDS)
                pointer = builder.gep(self.memory, [I64(0), builder.add(first, place)])
                sums.append(builder.load(builder.bitcast(pointer, self.form.sum.as_pointer()), align=VECTOR_BYTES))
            pointers = [*self._columns(builder, c)]
            before = shared[-1] if overwrites else [self._load(builder, pointer, mask) for pointer in pointers]
            if self.form.has_scales or self.form.scales_rows:
                row = builder.gep(self.a, [builder.add(builder.mul(i, self.lda), I64(-1))])
                scale = self._in_every_lane(builder, builder.load(row))
            if self.form.scales_rows:
                pairs = zip(sums, before, strict=True)
                sums = [emit_fma(builder, total, scale, first) for total, first in pairs]
            elif self.form.has_scales:
                for place, (own, offset) in enumerate(zip(*shared[:2], strict=True)):
                    total = builder.add(builder.bitcast(offset, self.form.sum), sums[place])
                    total = builder.sitofp(total, self.vector)
                    sums[place] = emit_fma(builder, total, builder.fmul(own, scale), before[place])
            else:
                sums = [builder.fadd(*pair) for pair in zip(before, sums, strict=True)]
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
