"""The tiles of products with weights that are read where they are: nothing is packed, and each sum is the same chain.

Rows of weights are loaded as vectors. Where a row has a unit's weights of all k, squares of as many rows as a vector has
lanes are transposed in registers, and serve all rows of A.
"""

from llvmlite import ir

from .registers import I64, emit_fma
from .tile import ROW, Tile
from .transpose import emit_transpose

_I32 = ir.IntType(32)


MOST_ROWS = 8
"""Rows of A that a square of weights is transposed for."""


def units_at_once(shape):
    """Vectors of units of a `ColumnsTile`: the squares of more do not stay in registers."""
    return 1


class RowsTile(Tile):
    """B[k, unit] is number `unit` of row k."""

    def _find_weights(self, builder, begin, width, b, b_rows, ldb):
        self.b, self.ldb, self.b_rows = b, ldb, builder.gep(b_rows, [begin])

    def _panel_columns(self, builder, k):
        number = builder.load(builder.gep(self.b_rows, [k]))
        row = builder.gep(self.b, [builder.mul(number, self.ldb)])
        for vector in self.group:
            yield builder.gep(row, [I64(vector * self.lanes)]), 1, 0


class ColumnsTile(Tile):
    """B[k, unit] is number k of row `unit`."""

    def __init__(self, module, form, real, bits, gates, shape):
        super().__init__(module, form, real, bits, gates, shape)
        self.units = self.vectors = units_at_once(shape)
        self.most_rows = 1 if shape == ROW else MOST_ROWS

    def _find_weights(self, builder, begin, width, b, b_rows, ldb):
        b, count = builder.gep(b, [begin]), self.vectors * self.lanes
        last = builder.sub(width, I64(1))
        self.b_row = []
        for unit in map(I64, range(count)):
            if self.masked:  # the last row once more instead of those behind it
                unit = builder.select(builder.icmp_signed("<", unit, last), unit, last)
            number = builder.load(builder.gep(b_rows, [unit]))
            self.b_row.append(builder.gep(b, [builder.mul(number, ldb)]))

    def _unroll(self):
        return self.lanes

    def _iteration(self, builder, a_row, k, step, sums):
        sums, lanes = list(sums), self.lanes
        for vector in self.group:
            rows = self.b_row[vector * lanes : (vector + 1) * lanes]
            pointers = [builder.gep(row, [k]) for row in rows]
            if step == lanes:
                columns = emit_transpose(builder, [self._load_all(builder, pointer) for pointer in pointers])
            else:
                columns = [self._gather(builder, pointers)]
            for turn, column in enumerate(columns):
                for i, row in enumerate(a_row):
                    value = builder.load(builder.gep(row, [builder.add(k, I64(turn))]))
                    place = i * len(self.group) + vector - self.group.start
                    sums[place] = emit_fma(builder, self._in_every_lane(builder, value), column, sums[place])
        return sums

    def _load_all(self, builder, pointer):
        """A whole vector, whatever the width of C."""
        return builder.load(builder.bitcast(pointer, self.vector.as_pointer()), align=self.align)

    def _gather(self, builder, pointers):
        """The numbers at the pointers, in a vector."""
        found = ir.Constant(self.vector, ir.Undefined)
        for lane, pointer in enumerate(pointers):
            found = builder.insert_element(found, builder.load(pointer), _I32(lane))
        return found
