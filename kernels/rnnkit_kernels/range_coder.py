"""A range coder for symbols whose frequencies are computed from scores (Martin, "Range encoding: an algorithm for
removing redundancy from a digitised message", 1979; with the carry of Schindler's and LZMA's coders).

Frequencies are bit-identical on every CPU: exp is, and the rest are integers and correctly rounded operations. A
symbol's weight is w = floor(exp(score - largest score) * 2**22), and its frequency 1 + floor(w * (2**18 - S)/(1 + sum
of w)) with S symbols: those of a row add up to 2**18 or a little less. The range has 32 bits, of which at least 24 are
in use: of 256 symbols one that is certain takes 0.0014 bits.
"""

import numpy as np

from .losses import maximum
from .machine.activations import exp
from .machine.arrays import part
from .machine.jit import inner, kernel

TOTAL = 1 << 18
"""Upper bound of the sum of a row of frequencies."""
_WEIGHT = float(1 << 22)
_MIN_RANGE = 1 << 24
# A coder's state. The encoder holds back the byte in _BYTE and after it _HELD bytes 0xFF, which a carry may change;
# before the first byte _PLACE is -1. The decoder's _LOW is the number that it reads, relative to the range.
_LOW, _RANGE, _BYTE, _HELD, _PLACE = range(5)
START_ENCODING = 0, 0xFFFFFFFF, 0, 0, -1
START_DECODING = 0, 0xFFFFFFFF, 0, 0, 0
MAX_BYTES = 3
"""Maximum of a symbol; `END` more finish the code."""
END = 8


@inner
def _write_frequencies(row, weights, lanes, scores, class_of, others):
    largest, scale, zero = maximum(scores, lanes), scores.dtype.type(_WEIGHT), scores.dtype.type(0)
    for j in range(scores.size):
        value = exp(scores[j] - largest) * scale
        weights[j] = np.int32(value if value > zero else zero)  # a NaN is 0
    weights[scores.size - 1] //= others
    total = np.int64(1)
    for symbol in range(row.size):
        weight = weights[class_of[symbol]]
        row[symbol] = weight
        total += weight
    factor = (TOTAL - row.size) / np.float64(total)
    for symbol in range(row.size):
        row[symbol] = 1 + np.int32(np.float64(row[symbol]) * factor)


@kernel
def frequencies(table, weights, lanes, scores, class_of, others):
    """Write the frequencies for each row of scores (rows, classes) into a table (rows, symbols).

    Symbol s has the class class_of[s]; `others` symbols share the last class. `weights` and `lanes` are scratch.
    """
    classes, symbols = weights.size, class_of.size
    for row in range(table.size // symbols):
        own, of_row = part(table, row * symbols, (row + 1) * symbols), part(scores, row * classes, (row + 1) * classes)
        _write_frequencies(own, weights, lanes, of_row, class_of, others)


@inner
def _shift(state, out):
    """Emit the top byte of the range's low end, or hold it back while a carry may change it."""
    low = state[_LOW]
    if low < 0xFF000000 or low > 0xFFFFFFFF:
        carry, place = low >> 32, state[_PLACE]
        if place >= 0:
            out[place] = (state[_BYTE] + carry) & 0xFF
        place += 1
        for _ in range(state[_HELD]):
            out[place] = (0xFF + carry) & 0xFF
            place += 1
        state[_PLACE], state[_HELD], state[_BYTE] = place, 0, (low >> 24) & 0xFF
    else:
        state[_HELD] += 1
    state[_LOW] = (low & 0x00FFFFFF) << 8


@kernel
def encode(state, out, symbols, table):
    """Encode symbols, each by its row of frequencies; `out` must have MAX_BYTES free for each."""
    size = table.size // max(symbols.size, 1)
    for i in range(symbols.size):
        row, symbol, start, total = part(table, i * size, (i + 1) * size), symbols[i], np.int64(0), np.int64(0)
        for s in range(size):
            total += row[s]
            start += row[s] if s < symbol else 0
        step = state[_RANGE] // total
        state[_LOW] += step * start
        state[_RANGE] = step * row[symbol]
        while state[_RANGE] < _MIN_RANGE:
            state[_RANGE] <<= 8
            _shift(state, out)


@kernel
def finish(state, out):
    """Flush the bytes that the encoder holds back; returns the number of bytes in `out`."""
    for _ in range(5):
        _shift(state, out)
    return state[_PLACE]


@inner
def _next(state, payload):
    """Return the next byte, 0 after the last one."""
    place = state[_PLACE]
    state[_PLACE] = place + 1
    return np.int64(payload[place]) if place < payload.size else np.int64(0)


@kernel
def begin(state, payload):
    """Read the first bytes."""
    for _ in range(4):
        state[_LOW] = state[_LOW] << 8 | _next(state, payload)


@kernel
def decode(state, payload, symbols, table):
    """Decode symbols, each by its row of frequencies."""
    size = table.size // max(symbols.size, 1)
    for i in range(symbols.size):
        row, total = part(table, i * size, (i + 1) * size), np.int64(0)
        for s in range(size):
            total += row[s]
        step = state[_RANGE] // total
        place = min(state[_LOW] // step, total - 1)
        symbol, start = 0, np.int64(0)
        while start + row[symbol] <= place:
            start += row[symbol]
            symbol += 1
        state[_LOW] -= step * start
        state[_RANGE] = step * row[symbol]
        symbols[i] = symbol
        while state[_RANGE] < _MIN_RANGE:
            state[_RANGE] <<= 8
            state[_LOW] = (state[_LOW] << 8 | _next(state, payload)) & 0xFFFFFFFF
