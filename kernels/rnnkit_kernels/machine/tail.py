"""The tile of a last panel of which C uses at most a quarter of the lanes: then all gates fit in one vector."""

from llvmlite import ir
from numba.core import cgutils

from .registers import I32, I64
from .tile import Tile


class TailTile(Tile):
    """A NARROW tile would take a vector for each gate: with H = 450 the last 2 units would cost one panel of 29."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.vectors, self.quarter = 1, ir.VectorType(self.real, self.lanes // 4)

    def _find_weights(self, builder, begin, width, b, ldb):
        super()._find_weights(builder, begin, width, b, ldb)
        lanes = ir.Constant(ir.VectorType(I64, self.quarter.count), [I64(lane) for lane in range(self.quarter.count)])
        limit = builder.insert_element(ir.Constant(lanes.type, ir.Undefined), width, I32(0))
        zeros = ir.Constant(ir.VectorType(I32, self.quarter.count), None)
        limit = builder.shuffle_vector(limit, ir.Constant(lanes.type, ir.Undefined), zeros)
        self.quarter_mask = builder.icmp_signed("<", lanes, limit)

    def _weights(self, builder, k, turn):
        self.group = range(self.gates)
        pointers = [self._first_quarter(builder, pointer) for pointer, *_ in self._panel_columns(builder, k)]
        return [[self._joined(builder, [builder.load(pointer, align=self.align) for pointer in pointers])]]

    def _columns(self, builder, row):
        yield [self._first_quarter(builder, builder.gep(row, [column])) for column in self.columns]

    def _first_quarter(self, builder, pointer):
        return builder.bitcast(pointer, self.quarter.as_pointer())

    def _joined(self, builder, quarters):
        """Concatenate quarters to one vector; with three gates the last quarter is zero."""
        quarters = [*quarters, ir.Constant(self.quarter, None)][:4]
        while len(quarters) > 1:
            count = 2 * quarters[0].type.count
            mask = ir.Constant(ir.VectorType(I32, count), [I32(lane) for lane in range(count)])
            pairs = zip(quarters[::2], quarters[1::2], strict=True)
            quarters = [builder.shuffle_vector(low, high, mask) for low, high in pairs]
        return quarters[0]

    def _load(self, builder, pointers, mask=None):
        kind = ir.FunctionType(self.quarter, [pointers[0].type, I32, self.quarter_mask.type, self.quarter])
        load, zeros = self._masked("load", kind), ir.Constant(self.quarter, None)
        options = I32(self.align), self.quarter_mask, zeros
        return self._joined(builder, [builder.call(load, [pointer, *options]) for pointer in pointers])

    def _store(self, builder, value, pointers, mask=None):
        kind = ir.FunctionType(ir.VoidType(), [self.quarter, pointers[0].type, I32, self.quarter_mask.type])
        store, count = self._masked("store", kind), self.quarter.count
        for gate, pointer in enumerate(pointers):
            lanes = ir.Constant(ir.VectorType(I32, count), [I32(gate * count + lane) for lane in range(count)])
            own = builder.shuffle_vector(value, ir.Constant(self.vector, ir.Undefined), lanes)
            builder.call(store, [own, pointer, I32(self.align), self.quarter_mask])

    def _masked(self, what, kind):
        name = f"llvm.masked.{what}.v{self.quarter.count}f{self.align * 8}.p0"
        return cgutils.get_or_insert_function(self.module, kind, name)
