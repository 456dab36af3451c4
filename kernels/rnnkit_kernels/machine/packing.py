"""Packing of weights into panels, in the storage formats of `formats`.

A panel holds one vector of neighbouring columns ("units") with their gates side by side, zero-padded. For 4 lanes,
gates i f g o and 6 units, in the order of memory:

    panel 0, units 0-3:   k = 0   iiii ffff gggg oooo
                          k = 1   iiii ffff gggg oooo
                          ...
    panel 1, units 4-5:   k = 0   ii00 ff00 gg00 oo00
                          ...

If a tile does not take all gates at once (`shapes.group_size`), each group of gates has such a block in a panel: first
all k of i and f, then all k of g and o.

With bfloat16 a k is a pair of neighbours along k, in one word.
"""

from numba.extending import overload

from .arrays import part
from .formats import FullPrecision, format_of, storage, words_of
from .jit import OPTIONS, inner
from .matrix import Range, clear, offset
from .partition import partition
from .registers import VECTOR_BYTES, copy_vector, not_inlined, on_stack, panel_lanes
from .rounding import bfloat16_pair
from .shapes import group_size
from .transpose import transpose

_STREAMS = 16  # rows packed at once, each read as a stream

group_of = inner(group_size)


def padded(columns, itemsize):
    """Round columns up to whole vectors."""
    lanes = VECTOR_BYTES // itemsize
    return -(-columns // lanes) * lanes


def panel_size(depth, units, gates, itemsize):
    """Return the elements of a packed matrix of `depth` rows and `units` columns of `gates` gates each."""
    return padded(units, itemsize) * depth * gates


@inner
def vectors_of(array, units):
    """Return the number of panels of `units` columns."""
    lanes = panel_lanes(array)
    return (units + lanes - 1) // lanes


@inner
def columns_of(array, vectors, units):
    """Return the columns in a range of panels."""
    lanes = panel_lanes(array)
    return Range(min(vectors.start * lanes, units), min(vectors.stop * lanes, units))


def panels_part(panels, start, stop):
    """Return the panels from one word of their array to another."""


@overload(panels_part, jit_options=OPTIONS)
def _panels_part(panels, start, stop):
    if format_of(panels) is FullPrecision:
        return lambda panels, start, stop: part(panels, start, stop)
    kind = panels.instance_class  # of bfloat16: those of int8 have scales

    def of_tuple(panels, start, stop):
        return kind(part(panels.words, start, stop), panels.scratch, panels.scratch_size, panels.numbers)

    return of_tuple


def panels_of(packed, start, stop, depth, columns, thread_id):
    """Return a product's panels of quantized weights in the packed buffer, with the thread's scratch."""


@overload(panels_of, jit_options=OPTIONS)
def _panels_of(packed, start, stop, depth, columns, thread_id):
    kind = packed.instance_class

    def bfloat16(packed, start, stop, depth, columns, thread_id):
        scratch = part(packed.scratch, thread_id * packed.scratch_size, (thread_id + 1) * packed.scratch_size)
        return kind(part(packed.words, start, stop), scratch, packed.scratch_size, packed.numbers)

    def int8(packed, start, stop, depth, columns, thread_id):
        scratch = part(packed.scratch, thread_id * packed.scratch_size, (thread_id + 1) * packed.scratch_size)
        lanes = panel_lanes(packed.words)
        features = stop - ((depth + lanes - 1) // lanes * lanes if stop > start else 0)
        scales = features - (2 * ((columns + lanes - 1) // lanes * lanes) if stop > start else 0)
        words, own = part(packed.words, start, scales), part(packed.words, scales, features)
        return kind(words, scratch, packed.scratch_size, packed.numbers, part(packed.words, features, stop), own)

    return int8 if format_of(packed).has_scales else bfloat16


@inner
def pack_columns(panels, weights, units, gates, team):
    """Pack the transpose of a weight matrix (gates*units, depth): B[k, unit, gate] = weights[gate*units + unit, k]."""
    lanes, depth = panel_lanes(storage(panels)), words_of(panels, weights.stride)
    vectors = partition(vectors_of(storage(panels), units), team.thread_id, team.size)
    for vector in range(vectors.start, vectors.stop):
        width = min(lanes, units - vector * lanes)
        for gate in range(gates):
            row = gate * units + vector * lanes
            group = gate // group_of(gates) * group_of(gates)
            stride = min(group_of(gates), gates - group) * lanes
            at = ((vector * gates + group) * depth + gate - group) * lanes
            _pack_gate(panels, at, stride, weights, Range(row, row + width))


def _pack_gate(panels, at, stride, weights, rows):
    """Pack the transpose of up to one vector of rows of one gate."""


@overload(_pack_gate, jit_options=OPTIONS)
def _pack_gate_of(panels, at, stride, weights, rows):
    def full_precision(panels, at, stride, weights, rows):
        pack_panel(panels, at, stride, weights, rows, Range(0, weights.stride))

    return _pack_gate_in_pairs.py_func if format_of(panels).per_word == 2 else full_precision


@inner
def _pack_gate_in_pairs(panels, at, stride, weights, rows):
    not_inlined()
    words, transposed = panels.words, on_stack(panels.words)
    lanes, depth = panel_lanes(words), weights.stride
    at_once = transposed.size // lanes  # numbers along k, an even one
    for start in range(0, depth, at_once):
        stop = min(start + at_once, depth)
        pack_panel(transposed, 0, lanes, weights, rows, Range(start, stop))
        clear(part(transposed, (stop - start) * lanes, min(stop - start + 1, at_once) * lanes))  # of half a pair
        for word in range((stop - start + 1) // 2):
            target, first = at + (start // 2 + word) * stride, 2 * word * lanes
            for lane in range(lanes):
                words[target + lane] = bfloat16_pair(transposed[first + lane], transposed[first + lanes + lane])
    for word in range((depth + 1) // 2, words_of(panels, depth)):
        clear(part(words, at + word * stride, at + word * stride + lanes))


@inner
def pack_panel(panels, at, stride, weights, rows, columns):
    """Pack the transpose of up to one vector of rows, padded with zeros."""
    width, lanes = rows.stop - rows.start, panel_lanes(panels)
    transpose(panels, at, stride, weights, rows, columns)
    for k in range(columns.stop - columns.start if width < lanes else 0):
        for lane in range(width, lanes):
            panels[at + k * stride + lane] = 0


@inner
def pack_rows(panels, b, rows, units, team):
    """Pack B[k, unit] = b[row rows.start + k, unit], one gate; a few rows at a time, read as streams."""
    lanes, depth = panel_lanes(storage(panels)), words_of(panels, rows.stop - rows.start)
    vectors = partition(vectors_of(storage(panels), units), team.thread_id, team.size)
    for start in range(0, depth, _STREAMS):
        stop = min(start + _STREAMS, depth)
        for vector in range(vectors.start, vectors.stop):
            columns = Range(vector * lanes, min((vector + 1) * lanes, units))
            for word in range(start, stop):
                _pack_word(panels, (vector * depth + word) * lanes, b, rows, word, columns)


def _pack_word(panels, at, b, rows, word, columns):
    """Pack one word of up to a vector of columns, padded with zeros."""


@overload(_pack_word, jit_options=OPTIONS)
def _pack_word_of(panels, at, b, rows, word, columns):
    def full_precision(panels, at, b, rows, word, columns):
        lanes, source = panel_lanes(panels), offset(b, rows.start + word) + columns.start
        if columns.stop - columns.start == lanes:
            copy_vector(panels, at, b.data, source)
        else:
            for lane in range(lanes):
                panels[at + lane] = b.data[source + lane] if lane < columns.stop - columns.start else 0

    return _pack_pair.py_func if format_of(panels).per_word == 2 else full_precision


@inner
def _pack_pair(panels, at, b, rows, word, columns):
    words, row, zero = panels.words, rows.start + 2 * word, b.data.dtype.type(0)
    lanes, width = panel_lanes(words), columns.stop - columns.start
    if row + 1 < rows.stop and width == lanes:
        first, second = offset(b, row) + columns.start, offset(b, row + 1) + columns.start
        for lane in range(lanes):
            words[at + lane] = bfloat16_pair(b.data[first + lane], b.data[second + lane])
        return
    clear(part(words, at, at + lanes))
    for lane in range(width if row < rows.stop else 0):
        second = b.data[offset(b, row + 1) + columns.start + lane] if row + 1 < rows.stop else zero
        words[at + lane] = bfloat16_pair(b.data[offset(b, row) + columns.start + lane], second)
