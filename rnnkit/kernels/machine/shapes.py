"""The shapes of the tiles: how many rows and panels each has, and where a product takes which."""

from .registers import REGISTERS, VECTOR_BYTES

ROW, STREAM, WIDE, NARROW, FAR, TAIL = SHAPES = range(6)
"""One row of many panels; one row of fewer whose weights come from farther away; several rows of few panels, where that
is more than one; several rows of one panel, which C may cut off; several rows of as many panels as a WIDE one, none of
them cut off, which asks for the next panels; several rows of a panel of which C has a quarter or less."""
NAMES = "row", "stream", "wide", "narrow", "far", "tail"

_CHAINS = 8  # sums that hide the latency of two FMA units
_MOST_ROWS = _CHAINS  # more would only grow the code
_VECTORS = 4 if REGISTERS == 32 else 2  # vectors of the panels that a wide tile of few gates multiplies at once
_GROUP = 4 if REGISTERS == 32 else 3  # most vectors of the panels that stay in registers beside the sums of many rows
_STREAM_SUMS = 256 // VECTOR_BYTES  # that take 64 bytes a cycle, what L2 gives at most, if an addition takes 4
# A FAR tile asks for one vector of the next panels in each k: where there are as many tiles of rows as vectors, all of
# them come from L3 before they are read. LSTM and GRU, H = 512 to 1024, N = 20 to 48: inference takes 0.87 to 0.99 of
# the time, training 0.92 to 0.99; with weights of 2 MB nothing is gained, with fewer rows time is lost (Zen 5).
_FAR_TILES, _FAR_BYTES = 4, 3 << 20
_TAIL_ROWS = 12  # each has one sum
_IS_WIDE = VECTOR_BYTES == 64  # both have been measured with vectors of a cache line alone
NEVER_FAR = 1 << 62


def group_size(gates):
    """Gates that a tile of many rows multiplies at once: all, or in groups as even as can be."""
    groups = (gates + _GROUP - 1) // _GROUP
    return (gates + groups - 1) // groups


def units(gates, shape):
    """Neighbouring panels that a tile covers.

    With one row there are as few sums as vectors, and each waits for its last multiply-add: 8 panels of one gate at
    once take 0.75 of the time of 2, 2 panels of three gates 0.93 of the time of 1 (Zen 3).
    """
    vectors = {ROW: _CHAINS, STREAM: min(_CHAINS, _STREAM_SUMS), WIDE: _VECTORS, NARROW: 1, FAR: _VECTORS, TAIL: 1}
    return max(1, vectors[shape] // gates)


def near_bytes(gates):
    """Bytes of a product's weights, whoever shares them out, up to which a row alone is a ROW, not a STREAM.

    In L1 two panels of four gates, and no prefetch, are 1.2 times as fast as one with; from L2 they come at 120 to 160
    GB/s, one panel's at 175 to 225. Where one panel has too few sums for that, two come from L2 at 130 to 210 without a
    prefetch. Of one gate the CPU asks ahead for eight panels by itself (Zen 5).
    """
    if gates == 1:
        return NEVER_FAR
    return 1 << 16 if gates >= _STREAM_SUMS else 3 << 18


def far_bytes(gates):
    """Bytes of a product's weights from which on its tiles are FAR where there are `far_rows`."""
    return _FAR_BYTES if _IS_WIDE and gates <= _FAR_TILES else NEVER_FAR


def far_rows(gates):
    """Fewest rows of a product with FAR tiles."""
    return (_FAR_TILES - 1) * most_rows(gates, FAR) + 1


def has_tail(gates):
    """Whether there are TAIL tiles of so many gates.

    LSTM, 16 to 32 rows, H = 50 and 100: inference takes 0.9 to 0.94 of the time, training 0.95; H = 450 and 500: both
    0.96 to 1 (Zen 5).
    """
    return _IS_WIDE and 2 < gates <= _GROUP


def rows_of_vectors(vectors):
    """Rows whose accumulators, with the panel's vectors and one broadcast value, fit into the registers."""
    return max(1, min(_MOST_ROWS, (REGISTERS - vectors - 1) // vectors))


def most_rows(gates, shape):
    """Largest number of rows of a tile."""
    if shape == TAIL:
        return _TAIL_ROWS
    return 1 if shape in (ROW, STREAM) else rows_of_vectors(group_size(gates) * units(gates, shape))


def rows_of_code(gates, shape):
    """Of each piece of code of a tile's function, the numbers of rows that it serves for; it computes the most."""
    if shape == TAIL:
        return [range(1, 5), range(5, 9), range(9, _TAIL_ROWS + 1)]
    fewest = far_rows(gates) // _FAR_TILES if shape == FAR else 1
    return [(count,) for count in range(fewest, most_rows(gates, shape) + 1)]


def has_shape(gates, shape):
    """Whether there is a tile function of this shape of its own."""
    if shape == WIDE:
        return units(gates, WIDE) > 1
    if shape == TAIL:
        return has_tail(gates)
    limits = {STREAM: near_bytes, FAR: far_bytes}
    return shape not in limits or limits[shape](gates) != NEVER_FAR
