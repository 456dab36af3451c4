"""Storage formats of packed weights: full precision, bfloat16 and int8, and weights that are read in place.

A panel consists of 32-bit words, one per lane. A word holds one float32 weight, or two bfloat16 or four int8 weights
that are neighbours along k, the first in the lowest bits. Sums are float32 (of int8 exact int32, then float32), and so
are the states and all that is computed from the sums.

Results have the same bits on every CPU with a fused multiply-add. Where an instruction is missing, int8 is widened to
16 bits, and bfloat16 is multiplied in float32 in the order of the CPU's tile registers (`amx`). "bfloat16-native" alone
uses what the CPU has instead, in its own order.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic, overload

from .amx import TILE_WORDS, has_tiles
from .jit import OPTIONS, inner
from .registers import FEATURES, I32, I64, VECTOR_BYTES, emit_fma

_I16 = ir.IntType(16)
# Of A, converted at once, so that the time to read the panels does not matter. On tile registers a product with 96
# takes 1.15 times as long; with 384 0.85 to 0.9, but then its results leave the cache (K = H = 512 to 1024).
ROWS_AT_ONCE = 192
MAX_INT8 = 127  # of a signed byte
MIN_BFLOAT16 = 2.0**-56  # smaller numbers are 0, so that no sum of products is subnormal: CPUs treat these differently
MIN_MAGNITUDE = 2.0**-100  # of a row's largest number: a row of smaller ones is 0, since 127/largest could overflow


# Instructions that add a dot product, by register size in bytes and LLVM's name of the CPU feature. They are assembly,
# as LLVM's intrinsics for them take other types in each version.
_BFLOAT16_DOTS = {
    (64, "avx512bf16"): "vdpbf16ps $3, $2, $0",
    (16, "bf16"): ".arch_extension bf16\nbfdot $0.4s, $2.8h, $3.8h",
}
_BYTE_DOTS = {
    (64, "avx512vnni"): "vpdpbusd $3, $2, $0",
    (32, "avxvnni"): "{vex} vpdpbusd $3, $2, $0",
    (16, "dotprod"): ".arch_extension dotprod\nsdot $0.4s, $2.16b, $3.16b",
}


def _instruction(dots):
    return next((text for (size, feature), text in dots.items() if size == VECTOR_BYTES and feature in FEATURES), None)


BFLOAT16_DOT, BYTE_DOT = map(_instruction, (_BFLOAT16_DOTS, _BYTE_DOTS))
# Offset of signed bytes on a CPU that multiplies unsigned bytes with signed ones.
ZERO_POINT = 128 if BYTE_DOT and "busd" in BYTE_DOT else 0


def _dot(builder, instruction, total, value, column):
    """total + the dot products of the lanes of value and column, by one instruction."""
    register = "w" if VECTOR_BYTES == 16 else "v"  # what LLVM calls ARM's vector registers, and x86's
    kind = ir.FunctionType(total.type, [total.type] * 3)
    return builder.asm(kind, instruction, f"={register},0,{register},{register}", [total, value, column], False)


class InRows(NamedTuple):
    """Weights in place, one row for each k: row rows[k] of a matrix that starts at `start`."""

    words: np.ndarray
    rows: np.ndarray
    start: int
    stride: int


class InColumns(NamedTuple):
    """Weights in place, one row for each unit: row rows[unit] of a matrix."""

    words: np.ndarray
    rows: np.ndarray
    start: int
    stride: int


class Bfloat16(NamedTuple):
    """Panels of bfloat16 weights, and scratch for the converted rows of A."""

    words: np.ndarray
    scratch: np.ndarray
    scratch_size: int  # words of the scratch for each thread
    numbers: np.ndarray  # 0, 1, ...


class Int8(NamedTuple):
    """Panels of int8 weights, scratch as above, `features`, which multiply the columns of A before these are rounded,
    and `columns`: scales, then offsets of sums."""

    words: np.ndarray
    scratch: np.ndarray
    scratch_size: int
    numbers: np.ndarray
    features: np.ndarray
    columns: np.ndarray


# Kernels are compiled for the type of the weights. So these are types of their own, and a process that may not use tile
# registers does not load code that does.
class NativeBfloat16(Bfloat16):
    """The same, for the CPU's dot product."""


class TiledBfloat16(Bfloat16):
    """The same, for tile registers."""


class TiledInt8(Int8):
    """The same, for tile registers."""


class ScaledBfloat16(Bfloat16):
    """The same as `Bfloat16`, with rows of A that are scaled: gradients, which may be of any size."""


class TiledScaledBfloat16(Bfloat16):
    """The same, for tile registers."""


def _whole_words(depth, per_word):
    return (depth + per_word - 1) // per_word


def _words_of_tiles(depth, per_word):
    """Pad a column to whole tile registers, if at most a quarter is added; else products take vector registers."""
    words = (depth + per_word - 1) // per_word
    whole = (words + TILE_WORDS - 1) // TILE_WORDS * TILE_WORDS
    return whole if 4 * whole <= 5 * words else words


def _row_size(words, parts):
    return 1 + parts * words


def _row_size_of_tiles(words, parts):
    """Round up to an odd number of cache lines, or rows would share a set of the cache; the scale has the first."""
    return (1 + (parts * words + TILE_WORDS - 1) // TILE_WORDS | 1) * TILE_WORDS


_SIZES = _whole_words, _words_of_tiles, _row_size, _row_size_of_tiles
_IN_KERNELS = {function: inner(function) for function in _SIZES}


class FullPrecision:
    """Full precision: a word is a number of the network's dtype, and so is the sum."""

    name, per_word, parts, has_scales, in_place = "", 1, 1, False, False
    scales_rows = False  # whether each row of A is divided by a power of two, with which its sums are multiplied
    at_once = False  # whether k cannot be split: the sum of all k is scaled, or added to what is in C
    tiles = None  # LLVM's name of the product of tile registers
    scratch_start = 1  # words of a converted row before its numbers; the last of them is the row's scale

    def __init__(self, real, lanes):
        self.real, self.vector = real, ir.VectorType(real, lanes)
        self.sum = self.vector

    count_words, row_size = staticmethod(_whole_words), staticmethod(_row_size)

    @classmethod
    def words(cls, depth):
        """Return the words of a column of this depth."""
        return cls.count_words(depth, cls.per_word)

    def unpack(self, builder, words):
        """Return the vectors to multiply with for a vector of words, one for each of the `parts` of a word."""
        return [words]

    def add(self, builder, value, column, total):
        """total + value * column."""
        return emit_fma(builder, value, column, total)


class _InRows(FullPrecision):
    name, in_place = "rows", True

    @classmethod
    def first_of(cls, unit):
        """Return the position in the row list and the column of the first weight of a unit."""
        return I64(0), unit


class _InColumns(FullPrecision):
    name, in_place = "columns", True

    @classmethod
    def first_of(cls, unit):
        return unit, I64(0)


class _Tiled:
    """A format of which many rows are multiplied by tile registers."""

    count_words, row_size = staticmethod(_words_of_tiles), staticmethod(_row_size_of_tiles)
    scratch_start = TILE_WORDS  # registers are loaded from whole cache lines
    # Of A. Where other programs use the core's second thread, tile registers load a quarter as fast: so one row is left
    # to vector registers, although tile registers take 0.7 to 1 of the time otherwise (Emerald Rapids).
    least_rows = 2


class Bfloat16Dot(FullPrecision):
    name, per_word = "bfloat16native", 2

    def add(self, builder, value, column, total):
        return _dot(builder, BFLOAT16_DOT, total, value, column)


class Bfloat16Wide(FullPrecision):
    """Products in float32, each half of the words on its own (`bfloat16_tile`)."""

    name, per_word, parts, at_once = "bfloat16", 2, 2, True

    def half(self, builder, words, number):
        """Return the first or the second numbers of a vector of words."""
        bits = ir.VectorType(I32, self.vector.count)
        words = builder.bitcast(words, bits)
        half = builder.and_(words, all_lanes(bits, 0xFFFF0000)) if number else builder.shl(words, all_lanes(bits, 16))
        return builder.bitcast(half, self.vector)


class ScaledBfloat16Wide(Bfloat16Wide):
    name, scales_rows = "bfloat16scaled", True


class Bfloat16Tiles(_Tiled, Bfloat16Wide):
    name, tiles = "bfloat16tiles", "bf16ps"


class ScaledBfloat16Tiles(Bfloat16Tiles):
    name, scales_rows = "bfloat16scaledtiles", True


class _Int8(FullPrecision):
    name, per_word, has_scales, at_once = "int8", 4, True, True

    def __init__(self, real, lanes):
        super().__init__(real, lanes)
        self.sum = ir.VectorType(I32, lanes)


class Int8Dot(_Int8):
    zero_point = ZERO_POINT

    def add(self, builder, value, column, total):
        value, column = (builder.bitcast(one, self.sum) for one in (value, column))
        return _dot(builder, BYTE_DOT, total, value, column)


class Int8Tiles(_Tiled, Int8Dot):
    name, tiles, least_rows = "int8tiles", "busd", 4


class Int8Wide(_Int8):
    parts, zero_point = 2, 0

    def unpack(self, builder, words):
        pairs = ir.VectorType(_I16, 2 * self.vector.count)
        words = builder.bitcast(words, pairs)
        eight = all_lanes(pairs, 8)
        return [builder.ashr(builder.shl(words, eight), eight), builder.ashr(words, eight)]

    def add(self, builder, value, column, total):
        pairs = ir.VectorType(_I16, 2 * self.vector.count)
        wide = ir.VectorType(I32, pairs.count)
        value, column = (builder.sext(builder.bitcast(one, pairs), wide) for one in (value, column))
        products = builder.mul(value, column)  # one instruction with the sums of neighbours: vpmaddwd
        even, odd = (
            builder.shuffle_vector(
                products,
                ir.Constant(wide, ir.Undefined),
                ir.Constant(self.sum, [I32(i) for i in range(first, pairs.count, 2)]),
            )
            for first in (0, 1)
        )
        return builder.add(total, builder.add(even, odd))


def all_lanes(vector, value):
    """Return the constant vector of this value."""
    return ir.Constant(vector, [vector.element(value)] * vector.count)


if BFLOAT16_DOT or BYTE_DOT:
    binding.initialize_native_asmparser()
_INT8 = Int8Dot if BYTE_DOT else Int8Wide
_FORM_OF_TUPLE = {
    Bfloat16: Bfloat16Wide, TiledBfloat16: Bfloat16Tiles, NativeBfloat16: Bfloat16Dot, Int8: _INT8,
    TiledInt8: Int8Tiles, ScaledBfloat16: ScaledBfloat16Wide, TiledScaledBfloat16: ScaledBfloat16Tiles,
    InRows: _InRows, InColumns: _InColumns,
}  # fmt: skip
OF_GRADIENTS = {None: None, "bfloat16": "bfloat16-scaled"}
"""The precision of the products of backward, by that of forward."""
_TUPLES = {
    "bfloat16": Bfloat16, "bfloat16-scaled": ScaledBfloat16, "bfloat16-native": NativeBfloat16, "int8": Int8,
}  # fmt: skip
_TILED = {"bfloat16": TiledBfloat16, "bfloat16-scaled": TiledScaledBfloat16, "int8": TiledInt8}


def _tuple_of(precision):
    """Return the class of packed weights of a `precision` of `rnnkit.prepare`, or of `OF_GRADIENTS`."""
    return _TILED[precision] if precision in _TILED and has_tiles() else _TUPLES[precision]


def form_of(precision):
    """Return the class that emits the products with packed weights of a precision, as `_tuple_of` takes it, or None."""
    return FullPrecision if precision is None else _FORM_OF_TUPLE[_tuple_of(precision)]


def scratch_words(precision, rows, depth):
    """Return the words that rows of `depth` numbers take once converted."""
    form = form_of(precision)
    return rows * form.row_size(form.words(depth), form.parts)


def format_of(panels):
    """Return the class that emits the products with panels of this Numba type."""
    return _FORM_OF_TUPLE[panels.instance_class] if isinstance(panels, types.BaseNamedTuple) else FullPrecision


def storage_type(panels):
    """Return the Numba type of the array that holds panels of this type."""
    return panels.types[0] if isinstance(panels, types.BaseNamedTuple) else panels


def no_panels(dtype, form):
    """Return empty weights of the format of this name, for typing."""
    words, numbers = np.empty(0, dtype), np.empty(0, np.int64)
    kind = next((kind for kind, one in _FORM_OF_TUPLE.items() if one.name == form), None)
    if kind in (InRows, InColumns):
        return kind(words, numbers, 0, 0)
    return words if kind is None else _packed(kind, words, words, 0, numbers)


def packed_as(precision, words, scratch, scratch_size, numbers):
    """Return packed weights as kernels take them, with scratch of `scratch_size` words for each thread."""
    return words if precision is None else _packed(_tuple_of(precision), words, scratch, scratch_size, numbers)


def _packed(kind, words, *scratch):
    return kind(words, *scratch, *[words[:0]] * (len(kind._fields) - 1 - len(scratch)))


@intrinsic
def storage(typingctx, panels):
    """Return the array that holds the panels."""
    is_tuple = isinstance(panels, types.BaseNamedTuple)
    return (
        storage_type(panels)(panels),
        lambda context, builder, signature, arguments: (
            builder.extract_value(arguments[0], 0) if is_tuple else arguments[0]
        ),
    )


def words_of(panels, depth):
    """Return the words that a column of this depth takes in the panels."""


@overload(words_of, jit_options=OPTIONS)
def _words_of(panels, depth):
    form = format_of(panels)
    count, per_word = _IN_KERNELS[form.count_words], form.per_word
    return lambda panels, depth: count(depth, per_word)


def row_size_of(panels, words, parts):
    """Return the words that a row of A takes once converted, with so many for a word of the panels. The numbers start
    at `scratch_start`."""


@overload(row_size_of, jit_options=OPTIONS)
def _row_size_of(panels, words, parts):
    size = _IN_KERNELS[format_of(panels).row_size]
    return lambda panels, words, parts: size(words, parts)
