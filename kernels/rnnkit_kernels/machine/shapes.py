"""The shapes of tiles: the rows and panels of each, and when a product uses which."""

from .registers import REGISTERS, VECTOR_BYTES

ROW, STREAM, WIDE, NARROW, FAR, TAIL = SHAPES = range(6)
"""One row:

- ROW: many panels.
- STREAM: fewer panels, with prefetch, for weights that are not in the nearest cache.

Several rows:

- WIDE: a few panels, more than one.
- NARROW: one panel, which C may fill only in part.
- FAR: as many panels as WIDE, all full, with prefetch of the next panels.
- TAIL: one panel, of which C has a quarter or less.
"""
NAMES = "row", "stream", "wide", "narrow", "far", "tail"

_CHAINS = 8  # sums that hide the latency of two FMA units
_MAX_ROWS = _CHAINS  # more would only increase the code
_VECTORS = 4 if REGISTERS == 32 else 2  # vectors of the panels that a wide tile of few gates multiplies at once
_GROUP = 4 if REGISTERS == 32 else 3  # most vectors of the panels that fit in registers with the sums of many rows
_STREAM_SUMS = 256 // VECTOR_BYTES  # that use 64 bytes a cycle, L2's maximum, if an addition takes 4 cycles
# A FAR tile prefetches one vector of the next panels per k. With as many tiles of rows as vectors, all of these come
# from L3 before they are read (LSTM and GRU, H = 512 to 1024, N = 20 to 48, Zen 5: inference takes 0.87 to 0.99 of the
# time, training 0.92 to 0.99; with weights of 2 MB nothing is gained, with fewer rows time is lost).
_FAR_TILES, _FAR_BYTES = 4, 3 << 20
_TAIL_ROWS = 12  # each has one sum
_IS_WIDE = VECTOR_BYTES == 64  # FAR and TAIL have been measured only with 64-byte vectors
NEVER_FAR = 1 << 62


def group_size(gates):
    """Return the gates that a tile of many rows multiplies at once: all, or groups of nearly equal size."""
    groups = (gates + _GROUP - 1) // _GROUP
    return (gates + groups - 1) // groups


def units(gates, shape):
    """Return the neighbouring panels that a tile covers.

    One row has only one sum per vector, and each sum waits for its last multiply-add: 8 panels of one gate at once take
    0.75 of the time of 2, 2 panels of three gates 0.93 of the time of 1 (Zen 3).
    """
    vectors = {ROW: _CHAINS, STREAM: min(_CHAINS, _STREAM_SUMS), WIDE: _VECTORS, NARROW: 1, FAR: _VECTORS, TAIL: 1}
    return max(1, vectors[shape] // gates)


def near_bytes(gates):
    """Return the bytes of a product's weights, of all threads, up to which a single row uses ROW, not STREAM.

    From L1, two panels of four gates without prefetch are 1.2 times as fast as one panel with prefetch. From L2, two
    come at 120 to 160 GB/s, one at 175 to 225; if one has too few sums for that, two come at 130 to 210 without
    prefetch. With one gate the CPU prefetches eight panels by itself (Zen 5).
    """
    if gates == 1:
        return NEVER_FAR
    return 1 << 16 if gates >= _STREAM_SUMS else 3 << 18


def far_bytes(gates):
    """Return the bytes of a product's weights from which on tiles are FAR, given at least `far_rows` rows."""
    return _FAR_BYTES if _IS_WIDE and gates <= _FAR_TILES else NEVER_FAR


def far_rows(gates):
    """Return the fewest rows of a product with FAR tiles."""
    return (_FAR_TILES - 1) * max_rows(gates, FAR) + 1


def has_tail(gates):
    """Return whether there are TAIL tiles of so many gates.

    LSTM, 16 to 32 rows, H = 50 and 100: inference takes 0.9 to 0.94 of the time, training 0.95; H = 450 and 500: both
    0.96 to 1 (Zen 5).
    """
    return _IS_WIDE and 2 < gates <= _GROUP


def rows_of_vectors(vectors):
    """Return the rows whose sums, with the panel's vectors and one broadcast value, fit in the registers."""
    return max(1, min(_MAX_ROWS, (REGISTERS - vectors - 1) // vectors))


def max_rows(gates, shape):
    """Return the largest number of rows of a tile."""
    if shape == TAIL:
        return _TAIL_ROWS
    return 1 if shape in (ROW, STREAM) else rows_of_vectors(group_size(gates) * units(gates, shape))


def rows_of_code(gates, shape):
    """Return the row counts that each code path of a tile function handles; a path computes its largest count."""
    if shape == TAIL:
        return [range(1, 5), range(5, 9), range(9, _TAIL_ROWS + 1)]
    fewest = far_rows(gates) // _FAR_TILES if shape == FAR else 1
    return [(count,) for count in range(fewest, max_rows(gates, shape) + 1)]


def has_shape(gates, shape):
    """Return whether this shape has its own tile function."""
    if shape == WIDE:
        return units(gates, WIDE) > 1
    if shape == TAIL:
        return has_tail(gates)
    limits = {STREAM: near_bytes, FAR: far_bytes}
    return shape not in limits or limits[shape](gates) != NEVER_FAR
