"""Matrix products on packed panels: packing, and the blocked product.

A panel holds one vector of neighbouring columns ("units") with their gates side by side, zero-padded: element
(unit, k, gate) of a packed matrix stands at [unit // lanes][k][gate][unit % lanes]. Where a tile does not take all the
gates at once (`tile.group_size`), each group of gates has such a block of its own, one behind the other.
"""

from .jit import inner
from .matrix import offset
from .partition import share
from .registers import VECTOR_BYTES, copy_vector, not_inlined, panel_lanes
from .tile import LINE, NARROW, WIDE, group_size, rows_of_tile, tile, units_of_tile
from .transpose import transpose

# k is cut so that the panels of one wide tile (4 vectors of 64 bytes) take 256 KiB, a quarter of a 1 MiB L2 cache
_BLOCK_BYTES = 4096
_STREAMS = 16  # rows that are packed at once, each read as a stream


def depth_block(itemsize):
    """Number of k that a product works through at once."""
    return _BLOCK_BYTES // itemsize


def panel_size(depth, units, gates, itemsize):
    """Elements of a packed matrix of `depth` rows and `units` columns of `gates` gates each."""
    lanes = VECTOR_BYTES // itemsize
    return -(-units // lanes) * lanes * depth * gates


group_of = inner(group_size)


@inner
def depth_block_of(array):
    """`depth_block` for the array's dtype, in kernels."""
    return _BLOCK_BYTES // array.itemsize


@inner
def vectors_of(array, units):
    """Number of panels of `units` columns."""
    lanes = panel_lanes(array)
    return (units + lanes - 1) // lanes


@inner
def columns_of(array, first_vector, last_vector, units):
    """[first, last) of the columns in a range of panels."""
    lanes = panel_lanes(array)
    return min(first_vector * lanes, units), min(last_vector * lanes, units)


@inner
def pack_columns(panels, weights, units, gates, depth, member, members):
    """Pack the transpose of a weight matrix (gates*units, depth): B[k, unit, gate] = weights[gate*units + unit, k]."""
    lanes = panel_lanes(panels)
    first, last = share(vectors_of(panels, units), member, members)
    for vector in range(first, last):
        width = min(lanes, units - vector * lanes)
        for gate in range(gates):
            row = gate * units + vector * lanes
            group = gate // group_of(gates) * group_of(gates)
            stride = min(group_of(gates), gates - group) * lanes
            at = ((vector * gates + group) * depth + gate - group) * lanes
            transpose(panels, at, stride, weights, row, row + width, 0, depth)
            for k in range(depth if width < lanes else 0):
                for lane in range(width, lanes):
                    panels[at + k * stride + lane] = 0


@inner
def pack_rows(panels, b, first_row, last_row, units, member, members):
    """Pack B[k, unit] = b[row first_row + k, unit], one gate; a few rows at a time, which are read as streams."""
    lanes = panel_lanes(panels)
    depth = last_row - first_row
    first, last = share(vectors_of(panels, units), member, members)
    for begin in range(0, depth, _STREAMS):
        end = min(begin + _STREAMS, depth)
        for vector in range(first, last):
            width = min(lanes, units - vector * lanes)
            for k in range(begin, end):
                at = (vector * depth + k) * lanes
                source = offset(b, first_row + k) + vector * lanes
                if width == lanes:
                    copy_vector(panels, at, b.data, source)
                else:
                    for lane in range(lanes):
                        panels[at + lane] = b.data[source + lane] if lane < width else 0


@inner
def shape_of_tile(slots, rows, whole):
    """The shape of the next tile, where there are so many rows and whole panels."""
    if rows == 1 and whole >= units_of_tile(slots, LINE):
        return LINE
    return WIDE if whole >= units_of_tile(slots, WIDE) else NARROW


@inner
def product(c, a, first_row, last_row, depth, panels, first_vector, last_vector, units, slots, bias, fresh):
    """C[rows, slot + unit] = (bias[slot + unit] if fresh else C[rows, slot + unit]) + A[rows, :depth] . panels.

    For the positions first_row..last_row of both row lists and the units of the panels first_vector..last_vector. Each
    element is one chain of fused multiply-adds, k ascending, whatever the blocks and tiles.
    """
    not_inlined()
    lanes = panel_lanes(panels)
    gates = len(slots)
    panel = depth * gates * lanes
    whole = units // lanes
    blocks = max(1, (depth + depth_block_of(panels) - 1) // depth_block_of(panels))
    for block in range(blocks):
        begin, end_of_block = share(depth, block, blocks)
        count = end_of_block - begin
        start = fresh and begin == 0
        vector = first_vector
        while vector < last_vector:
            shape = shape_of_tile(slots, last_row - first_row, min(last_vector, whole) - vector)
            tiles = (last_row - first_row + rows_of_tile(slots, shape) - 1) // rows_of_tile(slots, shape)
            unit = vector * lanes
            for number in range(tiles):
                row, end = share(last_row - first_row, number, tiles)
                tile(
                    shape, end - row, count, a.data, a.start, a.stride, a.rows, panels, vector * panel, panel, c.data,
                    c.start + unit, c.stride, c.rows, first_row + row, slots, bias, unit, start, units - unit, begin
                )
            vector += units_of_tile(slots, shape)
