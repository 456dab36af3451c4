"""Matrix products on packed panels (`packing`): the blocked product."""

from typing import NamedTuple

import numpy as np
from numba.extending import overload

from .amx_product import product_by_registers, uses_registers
from .arrays import part
from .formats import FullPrecision, InColumns, InRows, format_of, storage, words_of
from .in_place import FEW_ROWS, FEW_VECTORS, MAX_ROWS_IN_PLACE
from .jit import OPTIONS, inner
from .matrix import Matrix, Range, shifted
from .packing import pack_panel
from .partition import partition
from .registers import VECTOR_BYTES, not_inlined, on_stack, panel_lanes
from .rounding import converted, rows_at_once
from .shapes import (
    FAR,
    NARROW,
    NEVER_FAR,
    ROW,
    STREAM,
    TAIL,
    WIDE,
    far_bytes,
    far_rows,
    has_tail,
    near_bytes,
)
from .tiles import rows_of_tile, tile, units_of_tile

# k is split so that the panels of one wide tile (4 vectors of 64 bytes) take 256 KiB, a quarter of a 1 MiB L2 cache
_BLOCK_BYTES = 4096
# Steps alternate the order of panels, so that a step finds those in the cache that the previous one read last (one row,
# Zen 5: LSTM with 1 MB in an L2 of 1 MB 0.78 of the time, with 2 to 4 MB 0.85 to 0.93, GRU with 110 to 440 KB 0.75 to
# 0.9). STREAM tiles prefetch across panels, so these are reversed in runs of _RUN_BYTES (shorter runs: up to 1.1 times
# the time). A share of up to _FIRST_BYTES fits into L1 and is not reversed.
_RUN_BYTES, _FIRST_BYTES = 1 << 18, 1 << 16


def depth_block(itemsize):
    """Return the largest number of k in a block of a product."""
    return _BLOCK_BYTES // itemsize


class Packed(NamedTuple):
    """A packed matrix of `depth` rows; `columns` are the first columns of its gates in the product.

    Its panels are an array, or a tuple of `formats` for quantized weights and weights in place.
    """

    panels: np.ndarray
    depth: int
    units: int
    columns: tuple[int, ...]


near_of = inner(near_bytes)


@inner
def depth_block_of(array):
    """Return `depth_block` for the array's dtype, in kernels as a constant."""
    return _BLOCK_BYTES // VECTOR_BYTES * panel_lanes(array)


def blocks_of(panels, words):
    """Return the number of blocks of k of a product with so many words."""


@overload(blocks_of, jit_options=OPTIONS)
def _blocks_of(panels, words):
    if format_of(panels).at_once:
        return lambda panels, words: 1

    def blocks(panels, words):
        size = depth_block_of(storage(panels))
        return max(1, (words + size - 1) // size)

    return blocks


def is_far(panels, columns, nbytes, rows):
    """Return whether the tiles of a product of so many rows and bytes of weights are FAR."""


@overload(is_far, jit_options=OPTIONS)
def _is_far(panels, columns, nbytes, rows):
    far = far_bytes(len(columns)) if format_of(panels) is FullPrecision else NEVER_FAR
    least = far_rows(len(columns))
    return lambda panels, columns, nbytes, rows: nbytes >= far and rows >= least


def ends_in_tail(packed):
    """Return whether the last panel of the matrix has a TAIL tile."""


@overload(ends_in_tail, jit_options=OPTIONS)
def _ends_in_tail(packed):
    has_tails = format_of(packed.types[0]) is FullPrecision and has_tail(len(packed.types[3]))

    def ends(packed):
        lanes = panel_lanes(storage(packed.panels))
        return has_tails and 0 < packed.units % lanes <= lanes // 4

    return ends


@inner
def shape_of_tile(columns, rows, whole, near, far, tail):
    """Choose the shape of the next tile from the numbers of rows and whole panels left, from whether the weights are
    near or far, and whether a partial panel is a tail."""
    if tail and whole <= 0 and rows > 1:
        return TAIL
    if far and whole >= units_of_tile(columns, FAR):
        return FAR
    if rows == 1 and whole >= units_of_tile(columns, ROW if near else STREAM):
        return ROW if near else STREAM
    return WIDE if whole >= units_of_tile(columns, WIDE) > 1 else NARROW


@inner
def _panels_of_run(columns, shape, panel_bytes):
    """Return the panels of a run, which are read forward when runs are read in reverse."""
    size = units_of_tile(columns, shape)
    return size * max(1, _RUN_BYTES // (size * panel_bytes)) if shape == STREAM else size


@inner
def product(c, a, rows, packed, vectors, bias, overwrite, reverse_panels):
    """C[rows, columns] = (bias[columns] if overwrite else C[rows, columns]) + A[rows, :depth] . panels.

    For a range of positions in both row lists, and the units of a range of panels. Each element is one chain of fused
    multiply-adds, k ascending, for any blocks and tiles and either order of panels.
    """
    not_inlined()
    at_once = rows_at_once(packed.panels, rows.stop - rows.start)
    start = rows.start
    while start < rows.stop:
        own = Range(start, min(start + at_once, rows.stop))
        start = own.stop
        values = converted(packed.panels, a, own, packed.depth)
        _product(c, values, own, packed, vectors, bias, overwrite, reverse_panels)


@inner
def _product(c, a, rows, packed, vectors, bias, overwrite, reverse_panels):
    """Compute `product` for rows of A that are converted: its row number 0 belongs to rows.start."""
    columns, whole = packed.columns, packed.units // panel_lanes(storage(packed.panels))
    depth, count = words_of(packed.panels, packed.depth), rows.stop - rows.start
    if uses_registers(packed.panels, depth, count):
        product_by_registers(c, a, rows, packed, depth, vectors, bias, overwrite, reverse_panels)
        return
    lanes, gates = panel_lanes(storage(packed.panels)), len(columns)
    nbytes = depth * packed.units * gates // lanes * VECTOR_BYTES
    near = nbytes <= near_of(gates)
    tail = ends_in_tail(packed)
    far = is_far(packed.panels, columns, nbytes, count)
    runs, size, panel_bytes = 1, vectors.stop - vectors.start, depth * gates * VECTOR_BYTES
    if reverse_panels and size * panel_bytes > _FIRST_BYTES:
        shape = shape_of_tile(columns, count, min(vectors.stop, whole) - vectors.start, near, far, tail)
        size = _panels_of_run(columns, shape, panel_bytes)
        runs = (vectors.stop - vectors.start + size - 1) // size
    blocks = 1 if count == 1 else blocks_of(packed.panels, depth)  # with one row no panel is read twice
    for block in range(blocks):
        k = partition(depth, block, blocks)
        begins = overwrite and k.start == 0
        for run in range(runs):
            vector = vectors.start + (runs - 1 - run) * size
            stop = min(vector + size, vectors.stop)
            while vector < stop:
                shape = shape_of_tile(columns, count, min(stop, whole) - vector, near, far, tail)
                most = rows_of_tile(columns, shape)
                tiles = 1 if count <= most else (count + most - 1) // most
                following = vector + (-size if runs > 1 else units_of_tile(columns, shape))
                for number in range(tiles):
                    own = partition(count, number, tiles)
                    positions = Range(rows.start + own.start, rows.start + own.stop)
                    vector_ahead = number % (gates * units_of_tile(columns, FAR))
                    panel, gate = following + vector_ahead // gates, vector_ahead % gates
                    ahead = ((panel * depth + k.start) * gates + gate) * lanes
                    tile(shape, c, a, positions, rows.start, packed, depth, vector, k, bias, begins, ahead, 0, False)
                vector += units_of_tile(columns, shape)


class WeightMatrix(NamedTuple):
    """The weights of a product: packed, or, without panels, the rows of a matrix, which are read in place gate by
    gate."""

    packed: Packed
    matrix: Matrix


def product_with(c, a, rows, weights, vectors, bias, overwrite, reverse_panels):
    """Compute `product` with weights that are packed or in place; the results are bit-identical."""


@overload(product_with, jit_options=OPTIONS)
def _product_with(c, a, rows, weights, vectors, bias, overwrite, reverse_panels):
    def packed(c, a, rows, weights, vectors, bias, overwrite, reverse_panels):
        product(c, a, rows, weights.packed, vectors, bias, overwrite, reverse_panels)

    def either(c, a, rows, weights, vectors, bias, overwrite, reverse_panels):
        if weights.packed.panels.size > 0:
            product(c, a, rows, weights.packed, vectors, bias, overwrite, reverse_panels)
        else:
            _product_in_place(c, a, rows, weights, vectors, bias, overwrite)

    return either if format_of(weights.types[0].types[0]) is FullPrecision else packed


@inner
def _product_in_place(c, a, rows, weights, vectors, bias, overwrite):
    """Compute the product gate by gate from weights in place: a unit's weights are a row of the matrix."""
    not_inlined()
    matrix, units, columns = weights.matrix, weights.packed.units, weights.packed.columns
    for gate in range(len(columns)):
        own = part(matrix.rows, gate * units, (gate + 1) * units)
        if rows.stop - rows.start > MAX_ROWS_IN_PLACE:
            of_gate = Matrix(matrix.data, own, matrix.start, matrix.stride)
            _product_by_panels(c, a, rows, of_gate, units, columns[gate], vectors, bias, overwrite)
        else:
            of_columns = InColumns(matrix.data, own, matrix.start, matrix.stride)
            gate_weights = Packed(of_columns, matrix.stride, units, (columns[gate],))
            size = FEW_VECTORS if rows.stop - rows.start <= FEW_ROWS else 1
            _tiles_in_place(c, a, rows, gate_weights, vectors, bias, overwrite, size, FEW_ROWS, False)


@inner
def _product_by_panels(c, a, rows, weights, units, column, vectors, bias, overwrite):
    """Compute it for one gate and many rows: pack a few panels at a time into the L1 cache, for all rows."""
    not_inlined()
    panels, one = on_stack(weights.data), (0,)
    lanes, size, most = panel_lanes(panels), units_of_tile(one, WIDE), rows_of_tile(one, WIDE)
    block = panels.size // (size * lanes)
    for vector in range(vectors.start, vectors.stop, size):
        own, start = Range(0, min(size, vectors.stop - vector)), vector * lanes
        stop = min(start + own.stop * lanes, units)
        for k in range(0, weights.stride, block):
            depth = min(block, weights.stride - k)
            for panel in range(own.stop):
                unit = start + panel * lanes
                of_panel = Range(unit, min(unit + lanes, stop))
                pack_panel(panels, panel * depth * lanes, lanes, weights, of_panel, Range(k, k + depth))
            packed = Packed(panels, depth, stop - start, (column + start,))
            _tiles_in_place(c, shifted(a, k), rows, packed, own, bias, overwrite and k == 0, size, most, False)


def product_of_rows(c, a, rows, weights, b, vectors, bias, overwrite, reverse_panels):
    """Compute `product` with B[k, :] in row k of a matrix `b`, which is packed or, without panels, read in place."""


@overload(product_of_rows, jit_options=OPTIONS)
def _product_of_rows(c, a, rows, weights, b, vectors, bias, overwrite, reverse_panels):
    def packed(c, a, rows, weights, b, vectors, bias, overwrite, reverse_panels):
        product(c, a, rows, weights, vectors, bias, overwrite, reverse_panels)

    def either(c, a, rows, weights, b, vectors, bias, overwrite, reverse_panels):
        if weights.panels.size > 0:
            product(c, a, rows, weights, vectors, bias, overwrite, reverse_panels)
        else:
            own, one = Packed(InRows(b.data, b.rows, b.start, b.stride), weights.depth, weights.units, (0,)), (0,)
            wide = units_of_tile(one, WIDE), rows_of_tile(one, WIDE)
            _tiles_in_place(c, a, rows, own, vectors, bias, overwrite, wide[0], wide[1], rows.stop - rows.start == 1)

    return either if format_of(weights.types[0]) is FullPrecision else packed


@inner
def _tiles_in_place(c, a, rows, weights, vectors, bias, overwrite, units, most, is_row):
    """Compute the product with the weights of one gate in place, in tiles of up to `units` vectors and `most` rows; for
    a single row (`is_row`) of as many vectors as hide the latency."""
    not_inlined()
    count, depth, vector = rows.stop - rows.start, Range(0, weights.depth), vectors.start
    whole, one = min(vectors.stop, weights.units // panel_lanes(storage(weights.panels))), (0,)
    while vector < vectors.stop:
        left, shape, own = whole - vector, NARROW, 1
        if is_row and left >= units_of_tile(one, ROW):
            shape, own = ROW, units_of_tile(one, ROW)
        elif left >= units > 1:
            shape, own = WIDE, units
        at_once = most if shape == WIDE else MAX_ROWS_IN_PLACE
        tiles = (count + at_once - 1) // at_once
        for number in range(tiles):
            some = partition(count, number, tiles)
            positions = Range(rows.start + some.start, rows.start + some.stop)
            tile(shape, c, a, positions, 0, weights, weights.depth, vector, depth, bias, overwrite, 0, 0, False)
        vector += own
