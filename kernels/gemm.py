"""Matrix products on packed panels: packing, the blocked product, the product over rows, sums over rows.

A panel holds one vector of neighbouring columns ("units") with their gates side by side, zero-padded: element
(unit, k, gate) of a packed matrix stands at [unit // lanes][k][gate][unit % lanes].
"""

from .barrier import enroll, meet
from .jit import kernel
from .matrix import Matrix, offset
from .simd import VECTOR_BYTES, narrow_tile, panel_lanes, rows_per_tile, units_per_tile, wide_tile
from .transpose import transpose

# k is cut so that the panels of one wide tile (4 vectors of 64 bytes) take 256 KiB, a quarter of a 1 MiB L2 cache
_BLOCK_BYTES = 4096
_STREAMS = 16  # rows that are packed at once, each read as a stream
_PADDING = 16  # elements; a cache line of float32


def depth_block(itemsize):
    """Number of k that a product works through at once."""
    return _BLOCK_BYTES // itemsize


def transposed_size(columns, itemsize):
    """Elements of the block in which `product_over_rows` keeps a block of rows of A transposed.

    Its rows are a cache line longer than a power of two, else all of a square's lines would fall into one cache set.
    """
    return columns * (depth_block(itemsize) + _PADDING)


def panel_size(depth, units, gates, itemsize):
    """Elements of a packed matrix of `depth` rows and `units` columns of `gates` gates each."""
    lanes = VECTOR_BYTES // itemsize
    return -(-units // lanes) * lanes * depth * gates


@kernel
def share(count, member, members):
    """[first, last) of a member's part of `count` pieces."""
    return count * member // members, count * (member + 1) // members


@kernel
def vectors_of(array, units):
    """Number of panels of `units` columns."""
    lanes = panel_lanes(array)
    return (units + lanes - 1) // lanes


@kernel
def columns_of(array, first_vector, last_vector, units):
    """[first, last) of the columns in a range of panels."""
    lanes = panel_lanes(array)
    return min(first_vector * lanes, units), min(last_vector * lanes, units)


@kernel
def pack_columns(panels, weights, units, gates, depth, member, members):
    """Pack the transpose of a weight matrix (gates*units, depth): B[k, unit, gate] = weights[gate*units + unit, k]."""
    lanes = panel_lanes(panels)
    first, last = share(vectors_of(panels, units), member, members)
    for vector in range(first, last):
        width = min(lanes, units - vector * lanes)
        for gate in range(gates):
            row = gate * units + vector * lanes
            at = (vector * depth * gates + gate) * lanes
            transpose(panels, at, gates * lanes, weights, row, row + width, 0, depth)
            for k in range(depth if width < lanes else 0):
                for lane in range(width, lanes):
                    panels[at + k * gates * lanes + lane] = 0


@kernel
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
                    for lane in range(lanes):
                        panels[at + lane] = b.data[source + lane]
                else:
                    for lane in range(width):
                        panels[at + lane] = b.data[source + lane]
                    for lane in range(width, lanes):
                        panels[at + lane] = 0


@kernel
def pack_weights(panels, weights, units, gates, depth, member, members, sync):
    """`pack_columns` as a kernel of its own."""
    member, members = enroll(sync, member, members)
    if member < 0:
        return
    pack_columns(panels, weights, units, gates, depth, member, members)
    meet(sync, members)


@kernel
def pack_weight_rows(panels, b, depth, units, member, members, sync):
    """`pack_rows` of the first `depth` rows as a kernel of its own."""
    member, members = enroll(sync, member, members)
    if member < 0:
        return
    pack_rows(panels, b, 0, depth, units, member, members)
    meet(sync, members)


@kernel
def product(c, a, first_row, last_row, depth, panels, first_vector, last_vector, units, slots, bias, fresh):
    """C[rows, slot + unit] = (bias[slot + unit] if fresh else C[rows, slot + unit]) + A[rows, :depth] . panels.

    For the positions first_row..last_row of both row lists and the units of the panels first_vector..last_vector. Each
    element is one chain of fused multiply-adds, k ascending, whatever the blocks and tiles.
    """
    lanes = panel_lanes(panels)
    gates = len(slots)
    panel = depth * gates * lanes
    whole = units // lanes
    for begin in range(0, max(depth, 1), _BLOCK_BYTES // panels.itemsize):
        count = min(_BLOCK_BYTES // panels.itemsize, depth - begin)
        start = fresh and begin == 0
        vector = first_vector
        while vector < last_vector:
            wide = vector + units_per_tile(slots) <= min(last_vector, whole)
            tiles = (last_row - first_row + rows_per_tile(slots, wide) - 1) // rows_per_tile(slots, wide)
            unit = vector * lanes
            at = vector * panel + begin * gates * lanes
            for tile in range(tiles):
                row, end = share(last_row - first_row, tile, tiles)
                if wide:
                    wide_tile(
                        end - row, count, a.data, a.start + begin, a.stride, a.rows, panels, at, panel, c.data,
                        c.start + unit, c.stride, c.rows, first_row + row, slots, bias, unit, start, lanes
                    )
                else:
                    narrow_tile(
                        end - row, count, a.data, a.start + begin, a.stride, a.rows, panels, at, panel, c.data,
                        c.start + unit, c.stride, c.rows, first_row + row, slots, bias, unit, start, units - unit
                    )
            vector += units_per_tile(slots) if wide else 1


@kernel
def rows_product(c, a, count, depth, panels, units, zeros, fresh, member, members, sync):
    """C = (0 if fresh else C) + A . panels over all `count` rows; the members share the rows."""
    member, members = enroll(sync, member, members)
    if member < 0:
        return
    first, last = share(count, member, members)
    product(c, a, first, last, depth, panels, 0, vectors_of(panels, units), units, (0,), zeros, fresh)
    meet(sync, members)


@kernel
def product_over_rows(c, columns, a, b, count, units, panels, block, member, members, sync):
    """C[column, unit] += sum over the `count` rows of A[row, column] * B[row, unit], rows in their order.

    `panels` holds a block of rows of B packed, `block` the same rows of A transposed; the members share A's columns.
    """
    member, members = enroll(sync, member, members)
    if member < 0:
        return
    depth = _BLOCK_BYTES // panels.itemsize
    first, last = share(columns, member, members)
    stride = depth + _PADDING
    transposed = Matrix(block, c.rows, 0, stride)
    for row in range(0, count, depth):
        end = min(row + depth, count)
        pack_rows(panels, b, row, end, units, member, members)
        transpose(block, first * stride, stride, a, row, end, first, last)
        meet(sync, members)
        product(c, transposed, first, last, end - row, panels, 0, vectors_of(panels, units), units, (0,), panels, False)
        meet(sync, members)


@kernel
def sum_rows(total, start, a, count, columns, member, members, sync):
    """total[start + column] += sum over `count` rows of A[row, column], rows in order; the members share columns."""
    member, members = enroll(sync, member, members)
    if member < 0:
        return
    first, last = share(columns, member, members)
    for row in range(count):
        source = offset(a, row)
        for column in range(first, last):
            total[start + column] += a.data[source + column]
    meet(sync, members)
