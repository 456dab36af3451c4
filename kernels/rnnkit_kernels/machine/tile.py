"""The micro-kernel of every matrix product: one tile of C, held in registers, emitted as LLVM IR.

`tiles` compiles and calls the tile functions; `shapes` lists their shapes.
"""

from llvmlite import ir
from numba.core import cgutils

from .registers import I32, I64, VECTOR_BYTES, emit_fma, emit_in_every_lane
from .shapes import FAR, NAMES, NARROW, STREAM, group_size, has_shape, max_rows, rows_of_code, rows_of_vectors, units

NAME = "rnnkit_tile_"
"""Prefix of the names of all tile functions."""

_UNROLL = 4  # k steps per loop iteration; hides the loop's own two instructions behind 4*24 multiply-adds
_LINE_BYTES = 64  # the unit of caches and of a prefetch
# Cache lines per iteration of STREAM. It is bound by the bandwidth of the caches, and hardware prefetchers follow what
# each instruction reads. With 32 lines, LLVM's choice, a panel of four gates comes from L2 at 120 GB/s, with 8 at 175
# to 225; a plain loop reads 240 (Zen 5).
_LINES = 8
# Bytes that STREAM prefetches ahead. Without prefetch weights come from L3 at 100 GB/s, with 2048 or 4096 at 115; from
# memory (32 MB, Zen 5) 4096 takes 0.92 to 0.96 of the time of 2048.
_AHEAD = 4096


def function_type(form, real, gates):
    """Return the type of a tile function of so many gates, with arguments in the order of `Tile.function`."""
    pointer, indices = real.as_pointer(), I64.as_pointer()
    matrix, panels = [pointer, indices, I64], [pointer, I64]
    weights, scales = matrix if form.in_place else panels, [pointer, pointer] if form.has_scales else []
    of_registers = [I64, I64] if form.tiles else []
    fixed = [I64, I64, *matrix, *weights, *matrix, pointer, ir.IntType(1), I64, I64, pointer, *scales, *of_registers]
    return ir.FunctionType(ir.VoidType(), fixed + [I64] * gates)


class Tile:
    """Emits one tile function: C[rows, :] = start + sum over k, ascending, of A[rows, k] * B[k, :].

    Here a k is a word of the panels' format, which may hold several numbers. C's columns are `gates` times `units`
    neighbouring vectors. All rows x gates x units vectors of C stay in registers while k runs; each k loads gates*units
    vectors of the packed panel and broadcasts one value per row. If that many do not fit, k runs once for each group of
    gates. With 16 registers and 4 gates, 6 rows of 2 gates at a time reach 0.90 of the FMA peak; 2 rows of 4 gates,
    which read L2 three times as often, reach 0.60 (Zen 3, 20 rows).
    """

    has_shape = staticmethod(has_shape)
    masks_weights = False  # whether loads of B past the last column need a mask; panels are padded

    def __init__(self, module, form, real, bits, gates, shape):
        self.real, self.gates, self.units, self.is_partial = real, gates, units(gates, shape), shape == NARROW
        self.shape, self.streams, self.prefetches_next = shape, shape == STREAM, shape == FAR
        self.max_rows = max_rows(gates, shape)
        self.lanes = VECTOR_BYTES * 8 // bits
        self.vector = ir.VectorType(real, self.lanes)
        self.form = form(real, self.lanes)
        self.suffix = f"v{self.lanes}f{bits}"
        self.align = bits // 8
        self.module = module
        self.vectors = gates * self.units
        self.name = f"{NAME}{self.suffix}{form.name}_{gates}_{NAMES[shape]}"

    def function(self):
        """Emit the tile function of this shape into the module, and return it."""
        function = ir.Function(self.module, function_type(self.form, self.real, self.gates), self.name)
        function.linkage = "internal"
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        rows, depth, a, a_rows, lda, *rest = function.args
        weights, rest = (rest[:3], rest[3:]) if self.form.in_place else (rest[:2], rest[2:])
        (c, c_rows, ldc, bias, overwrite, width, begin, self.ahead), rest = rest[:8], rest[8:]
        self.depth, self.bias, self.overwrite, self.columns = depth, bias, overwrite, rest[-self.gates :]
        self.scales = rest[:2] if self.form.has_scales else []
        a = builder.gep(a, [builder.mul(begin, I64(self.form.parts))])
        self._find_weights(builder, begin, width, *weights)
        self.is_whole = builder.icmp_signed(">=", width, I64(self.lanes))
        self.mask = self._mask(builder, width) if self.is_partial else None
        self.weights_mask = self.mask if self.masks_weights else None
        most, done = group_size(self.gates), function.append_basic_block("done")
        switch = builder.switch(rows, done)
        for cases in self._cases():
            count = max(cases)
            block = function.append_basic_block(f"rows{count}")
            for case in cases:
                switch.add_case(I64(case), block)
            builder.position_at_end(block)
            positions = [self._position(builder, rows, i, cases) for i in range(count)]
            a_row = [self._row(builder, a, a_rows, lda, position) for position in positions]
            c_row = [self._row(builder, c, c_rows, ldc, position) for position in positions]
            size = self.vectors if count <= rows_of_vectors(self.vectors) else most * self.units
            for first in range(0, self.vectors, size):
                self.group = range(first, min(first + size, self.vectors))
                self._tile(builder, a_row, c_row)
            builder.branch(done)
        builder.position_at_end(done)
        builder.ret_void()
        return function

    def _find_weights(self, builder, begin, width, b, ldb):
        """Set the pointers to the weights of the first k, for columns below the width."""
        self.ldb, most = ldb, group_size(self.gates)
        self.groups = [self._group_pointer(builder, b, begin, first) for first in range(0, self.gates, most)]

    def _group_pointer(self, builder, b, begin, first):
        """Return a pointer to the group of gates from `first` on in the panel, at k = begin; and its vectors per k."""
        size = min(group_size(self.gates), self.gates - first)
        depth = builder.udiv(self.ldb, I64(self.gates))  # of the whole panel, times the lanes
        start = builder.add(builder.mul(depth, I64(first)), builder.mul(begin, I64(size * self.lanes)))
        return builder.gep(b, [start]), size

    def _cases(self):
        """Return the row counts that each code path handles."""
        return rows_of_code(self.gates, self.shape)

    def _position(self, builder, rows, i, cases):
        """Return the i-th position, on the code path of these row counts. With fewer rows it is the last one, which is
        then computed more than once."""
        if i < cases[0]:
            return I64(i)
        return builder.select(builder.icmp_signed("<", I64(i), rows), I64(i), builder.sub(rows, I64(1)))

    def _row(self, builder, data, rows, stride, position):
        """Return a pointer to the row whose number is at a position of `rows`."""
        number = builder.load(builder.gep(rows, [position]))
        return builder.gep(data, [builder.mul(number, stride)])

    def _mask(self, builder, width):
        """Return the mask of lanes below `width`: the last panel may be wider than C."""
        index = ir.Constant(ir.VectorType(I64, self.lanes), [I64(lane) for lane in range(self.lanes)])
        return builder.icmp_signed("<", index, self._in_every_lane(builder, width))

    def _columns(self, builder, row):
        """Yield pointers to the group's vectors of C (or of the bias) in one row, at the columns of the gates."""
        for gate, unit in (divmod(vector, self.units) for vector in self.group):
            yield builder.gep(row, [builder.add(self.columns[gate], I64(unit * self.lanes))])

    def _panel_columns(self, builder, k):
        """Yield pointers to the group's vectors of the panels, the vectors per k, and the place of each among them."""
        for vector in self.group:
            gate, unit = divmod(vector, self.units)
            number, within = divmod(gate, group_size(self.gates))
            group, size = self.groups[number]
            start = builder.add(builder.mul(k, I64(size * self.lanes)), builder.mul(self.ldb, I64(unit)))
            yield builder.gep(group, [builder.add(start, I64(within * self.lanes))]), size, within

    def _load(self, builder, pointer, mask=None):
        pointer = builder.bitcast(pointer, self.vector.as_pointer())
        if mask is None:
            return builder.load(pointer, align=self.align)
        load = cgutils.get_or_insert_function(
            self.module,
            ir.FunctionType(self.vector, [pointer.type, I32, mask.type, self.vector]),
            f"llvm.masked.load.{self.suffix}.p0",
        )
        return builder.call(load, [pointer, I32(self.align), mask, ir.Constant(self.vector, None)])

    def _store(self, builder, value, pointer, mask=None):
        pointer = builder.bitcast(pointer, self.vector.as_pointer())
        if mask is None:
            builder.store(value, pointer, align=self.align)
            return
        store = cgutils.get_or_insert_function(
            self.module,
            ir.FunctionType(ir.VoidType(), [self.vector, pointer.type, I32, mask.type]),
            f"llvm.masked.store.{self.suffix}.p0",
        )
        builder.call(store, [value, pointer, I32(self.align), mask])

    def _whole_or_cut(self, builder, emit):
        """Return the values of `emit(mask)`: without a mask, or, if C may end within the panel, also with a mask of its
        lanes, and the choice at run time.

        Masked instructions take many times as long on some CPUs (storing 8 numbers on Zen 3).
        """
        if not self.is_partial:
            return emit(None)
        found = []
        with builder.if_else(self.is_whole) as sides:
            for side, mask in zip(sides, (None, self.mask), strict=True):
                with side:
                    found.append((emit(mask), builder.block))
        return self._merged(builder, *found)

    def _merged(self, builder, *sides):
        """Merge the values of the sides, (values, last block) each: those of the side that ran."""
        merged = []
        for values in zip(*(values for values, _ in sides), strict=True):
            phi = builder.phi(values[0].type)
            for value, (_, block) in zip(values, sides, strict=True):
                phi.add_incoming(value, block)
            merged.append(phi)
        return merged

    def _columns_of(self, builder, row):
        """Load the group's vectors of C (or of the bias) in one row."""
        return self._whole_or_cut(
            builder, lambda mask: [self._load(builder, pointer, mask) for pointer in self._columns(builder, row)]
        )

    def _start(self, builder, c_row):
        """Return the initial sums of the tile: the bias in every row if C is overwritten, else C.

        A sum that is scaled at the end starts from the offset of its column.
        """
        if self.form.has_scales:
            columns = self._columns_of(builder, self.scales[1])
            return [builder.bitcast(column, self.form.sum) for column in columns] * len(c_row)

        def present(mask):
            pointers = [pointer for row in c_row for pointer in self._columns(builder, row)]
            return [self._load(builder, pointer, mask) for pointer in pointers]

        with builder.if_else(self.overwrite) as (begins, adds):
            with begins:
                bias = self._columns_of(builder, self.bias) * len(c_row), builder.block
            with adds:
                before = self._whole_or_cut(builder, present), builder.block
        return self._merged(builder, bias, before)

    def _iteration(self, builder, a_row, k, step, sums):
        """Return sums + A[rows, k] * B[k, :] for `step` values of k."""
        for turn in range(step):
            own = builder.add(k, I64(turn))
            if self.prefetches_next:
                self._prefetch(builder, builder.gep(self.ahead, [builder.mul(own, I64(self.gates * self.lanes))]))
            sums = self._multiply_add(builder, a_row, own, turn, sums)
        return sums

    def _multiply_add(self, builder, a_row, k, turn, sums):
        """Return sums + A[rows, k] * B[k, :] for one k, the `turn`-th of an iteration of the loop."""
        columns, parts = self._weights(builder, k, turn), self.form.parts
        result, k = [], builder.mul(k, I64(parts)) if parts > 1 else k
        for i, row in enumerate(a_row):
            pointers = [builder.gep(row, [builder.add(k, I64(part)) if part else k]) for part in range(parts)]
            values = [self._in_every_lane(builder, builder.load(pointer)) for pointer in pointers]
            for j, column in enumerate(columns):
                total = sums[i * len(columns) + j]
                for value, own in zip(values, column, strict=True):
                    total = self.form.add(builder, value, own, total)
                result.append(total)
        return result

    def _weights(self, builder, k, turn):
        """Load the group's vectors of the panels, and unpack each."""
        columns = []
        for pointer, size, within in self._panel_columns(builder, k):
            words = self._load(builder, pointer, self.weights_mask)
            columns.append(self.form.unpack(builder, words))
            if self.streams and (turn * size + within) * VECTOR_BYTES % _LINE_BYTES == 0:
                self._prefetch(builder, builder.gep(pointer, [I64(_AHEAD // self.align)]))
        return columns

    def _in_every_lane(self, builder, value):
        return emit_in_every_lane(builder, value, self.lanes)

    def _prefetch(self, builder, pointer):
        """Prefetch the cache line at the pointer, which may be past the array: a prefetch never faults."""
        pointer = builder.bitcast(pointer, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, I32, I32, I32])
        prefetch = cgutils.get_or_insert_function(self.module, kind, "llvm.prefetch.p0")
        builder.call(prefetch, [pointer, I32(0), I32(3), I32(1)])  # to read, into all levels, data

    def _loop(self, builder, a_row, sums, start, stop, step):
        """Run k from `start` to `stop`, `step` multiply-adds per iteration; returns the sums after the loop."""
        before = builder.block
        head, body, after = (builder.function.append_basic_block(name) for name in ("head", "body", "after"))
        builder.branch(head)
        builder.position_at_end(head)
        k = builder.phi(I64)
        k.add_incoming(start, before)
        running = [builder.phi(self.form.sum) for _ in sums]
        for phi, value in zip(running, sums, strict=True):
            phi.add_incoming(value, before)
        builder.cbranch(builder.icmp_signed("<", k, stop), body, after)
        builder.position_at_end(body)
        values = self._iteration(builder, a_row, k, step, running)
        k.add_incoming(builder.add(k, I64(step)), builder.block)
        for phi, value in zip(running, values, strict=True):
            phi.add_incoming(value, builder.block)
        back = builder.branch(head)
        if self.streams:
            back.set_metadata("llvm.loop", self._no_unroll_metadata())
        builder.position_at_end(after)
        return running

    def _no_unroll_metadata(self):
        """Return the metadata of a loop that LLVM must not unroll: a node whose first operand is itself."""
        node = ir.MDValue(self.module, [], str(len(self.module.metadata)))
        option = ir.MetaDataString(self.module, "llvm.loop.unroll.disable")
        node.operands = node, self.module.add_metadata([option])
        return node

    def _unroll(self):
        """Return the number of k per iteration of the loop."""
        return max(1, _LINES * _LINE_BYTES // VECTOR_BYTES // len(self.group)) if self.streams else _UNROLL

    def _loops(self, builder, a_row, sums, start, stop):
        """Run k from `start` to `stop`; returns the sums after it."""
        unroll = self._unroll()
        even = builder.sub(stop, builder.urem(builder.sub(stop, start), I64(unroll)))
        sums = self._loop(builder, a_row, sums, start, even, unroll)
        return self._loop(builder, a_row, sums, even, stop, 1)

    def _sums(self, builder, a_row, c_row):
        """Return the sums over all k."""
        return self._loops(builder, a_row, self._start(builder, c_row), I64(0), self.depth)

    def _tile(self, builder, a_row, c_row):
        sums = self._sums(builder, a_row, c_row)
        if self.form.has_scales:
            sums = self._scaled(builder, a_row, c_row, sums)
        pointers, sums = [pointer for row in c_row for pointer in self._columns(builder, row)], list(sums)

        def store(mask):
            for value, pointer in zip(sums, pointers, strict=True):
                self._store(builder, value, pointer, mask)
            return []

        self._whole_or_cut(builder, store)

    def _scaled(self, builder, a_row, c_row, sums):
        """Yield the results: the initial values of C plus each sum times the scales of its row, stored before the row,
        and of its column."""
        sums = iter(sums)
        scales, bias = (self._columns_of(builder, row) for row in (self.scales[0], self.bias))
        for a, c in zip(a_row, c_row, strict=True):
            own = self._in_every_lane(builder, builder.load(builder.gep(a, [I64(-1)])))
            for first, present, scale in zip(bias, self._columns_of(builder, c), scales, strict=True):
                first = builder.select(self.overwrite, first, present)
                total = builder.sitofp(next(sums), self.vector)
                yield emit_fma(builder, total, builder.fmul(scale, own), first)
