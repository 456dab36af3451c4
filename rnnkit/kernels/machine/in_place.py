"""The tiles of products whose weights are read where they are: nothing is packed, and each sum is the same chain.

Rows of weights are loaded as vectors. Where a row has the weights of one unit, as many rows as a vector has lanes are
transposed in registers, a square at a time, which serves all rows of A.
"""

from llvmlite import ir

from .registers import I32, I64, emit_fma
from .tile import NARROW, Tile
from .transpose import emit_transpose

MOST_ROWS = 8
"""Rows of A that a square of weights is transposed for."""


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
        self.units = self.vectors = 1  # two squares do not stay in registers
        self.most_rows = MOST_ROWS

    @staticmethod
    def has_shape(gates, shape):
        return shape == NARROW

    def _counts(self):
        return (1, (1,)), (2, (2,)), (4, (3, 4)), (MOST_ROWS, range(5, MOST_ROWS + 1))

    def _position(self, builder, rows, i, cases):
        """Where there are fewer rows, the last one again: it is computed twice, which takes less than a square."""
        if i < cases[0]:
            return I64(i)
        return builder.select(builder.icmp_signed("<", I64(i), rows), I64(i), builder.sub(rows, I64(1)))

    def _find_weights(self, builder, begin, width, b, b_rows, ldb):
        first, last, self.b_row = builder.gep(b, [begin]), builder.sub(width, I64(1)), []
        for unit in map(I64, range(self.lanes)):
            if self.may_be_cut:  # instead of rows behind the last one that one again
                unit = builder.select(builder.icmp_signed("<", unit, last), unit, last)
            number = builder.load(builder.gep(b_rows, [unit]))
            self.b_row.append(builder.gep(first, [builder.mul(number, ldb)]))

    def _unroll(self):
        return self.lanes

    def _iteration(self, builder, a_row, k, step, sums):
        pointers, sums = [builder.gep(row, [k]) for row in self.b_row], list(sums)
        columns = self._square(builder, pointers) if step > 1 else [self._gathered(builder, pointers)]
        for turn, column in enumerate(columns):
            for i, row in enumerate(a_row):
                value = builder.load(builder.gep(row, [builder.add(k, I64(turn))]))
                sums[i] = emit_fma(builder, self._in_every_lane(builder, value), column, sums[i])
        return sums

    def _square(self, builder, pointers):
        """The next vector of each row, turned into the weights of each k."""
        rows = [builder.bitcast(pointer, self.vector.as_pointer()) for pointer in pointers]
        return emit_transpose(builder, [builder.load(row, align=self.align) for row in rows])

    def _gathered(self, builder, pointers):
        """The number at each pointer, in one vector."""
        found = ir.Constant(self.vector, ir.Undefined)
        for lane, pointer in enumerate(pointers):
            found = builder.insert_element(found, builder.load(pointer), I32(lane))
        return found
