"""Tiles that read unpacked weights in place; each sum is the same chain as with packed weights.

Rows of weights are loaded as vectors. If a row has the weights of one unit, as many rows as a vector has lanes are
transposed in registers, one square at a time, and each square is used for all rows of A.
"""

from llvmlite import ir

from .registers import I32, I64, REGISTERS, emit_fma
from .shapes import NARROW, WIDE
from .tile import Tile
from .transpose import emit_transpose

MAX_ROWS_IN_PLACE = 8
"""Maximum of the rows of A per transposed square of weights."""

# With few rows each sum waits for its last multiply-add, so a tile has two squares: one row then reads weights from L2
# at 90 GB/s instead of 60, from L3 at 70 instead of 50 (Zen 5). With four squares the rows that are read side by side,
# often a power of two bytes apart, do not stay in L1. With two squares the CPU prefetches by itself; prefetching the
# next ones takes 1.03 to 1.1 times as long (1 row, 2 to 8 MB). With one square, of more rows, it saves up to a tenth.
FEW_ROWS, FEW_VECTORS = 4 if REGISTERS == 32 else 2, 2
"""With up to FEW_ROWS rows of A a tile has FEW_VECTORS vectors of units."""


class RowsTile(Tile):
    """B[k, unit] is number `unit` of row k."""

    masks_weights = True

    def _find_weights(self, builder, begin, width, b, b_rows, ldb):
        self.b, self.ldb, self.b_rows = b, ldb, builder.gep(b_rows, [begin])

    def _panel_columns(self, builder, k):
        number = builder.load(builder.gep(self.b_rows, [k]))
        row = builder.gep(self.b, [builder.mul(number, self.ldb)])
        for vector in self.group:
            yield builder.gep(row, [I64(vector * self.lanes)]), 1, 0


class ColumnsTile(Tile):
    """B[k, unit] is number k of row `unit`."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        shape = arguments[-1]
        self.units = self.vectors = FEW_VECTORS if shape == WIDE else 1
        self.max_rows = FEW_ROWS if shape == WIDE else MAX_ROWS_IN_PLACE

    @staticmethod
    def has_shape(gates, shape):
        return shape in (WIDE, NARROW)

    def _cases(self):
        cases = range(1, 2), range(2, 3), range(3, 5), range(5, MAX_ROWS_IN_PLACE + 1)
        return [rows for rows in cases if max(rows) <= self.max_rows]

    def _find_weights(self, builder, begin, width, b, b_rows, ldb):
        first, last, self.b_row = builder.gep(b, [begin]), builder.sub(width, I64(1)), []
        for unit in map(I64, range(self.units * self.lanes)):
            if self.is_partial:  # clamp to the last row
                unit = builder.select(builder.icmp_signed("<", unit, last), unit, last)
            number = builder.load(builder.gep(b_rows, [unit]))
            self.b_row.append(builder.gep(first, [builder.mul(number, ldb)]))

    def _unroll(self):
        return self.lanes

    def _iteration(self, builder, a_row, k, step, sums):
        sums = list(sums)
        for unit in range(self.units):
            pointers = [builder.gep(row, [k]) for row in self.b_row[unit * self.lanes : (unit + 1) * self.lanes]]
            columns = self._square(builder, pointers) if step > 1 else [self._gathered(builder, pointers)]
            for turn, column in enumerate(columns):
                for i, row in enumerate(a_row):
                    value = builder.load(builder.gep(row, [builder.add(k, I64(turn))]))
                    own = i * self.units + unit
                    sums[own] = emit_fma(builder, self._in_every_lane(builder, value), column, sums[own])
            if step > 1:
                self._end_square(builder)
        return sums

    @staticmethod
    def _end_square(builder):
        """Keep LLVM from hoisting loads of the next square: two do not fit in registers. The CPU overlaps them."""
        builder.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], True)

    def _square(self, builder, pointers):
        """Transpose the next vector of each row into the weights of each k; a single square prefetches the next one."""
        for pointer in pointers if self.units == 1 else ():
            self._prefetch(builder, builder.gep(pointer, [I64(self.lanes)]))
        rows = [builder.bitcast(pointer, self.vector.as_pointer()) for pointer in pointers]
        return emit_transpose(builder, [builder.load(row, align=self.align) for row in rows])

    def _gathered(self, builder, pointers):
        """Gather the numbers at the pointers into one vector."""
        found = ir.Constant(self.vector, ir.Undefined)
        for lane, pointer in enumerate(pointers):
            found = builder.insert_element(found, builder.load(pointer), I32(lane))
        return found
