"""Storage formats of packed weights: full precision, bfloat16 and int8, and weights that are read in place.

A panel consists of 32-bit words, one per lane. A word holds one float32 weight, or two bfloat16 or four int8 weights
that are neighbours along k, the first in the lowest bits. Sums are float32 (of int8 exact int32, then float32), and so
are the states and all that is computed from the sums.

Missing instructions are emulated: without a dot product of bfloat16 the weights are widened and multiplied with the
float32 values, which are then not rounded; without one of bytes they are widened to 16 bits, with a bit-identical
result.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic, overload

from .arrays import part
from .jit import OPTIONS
from .registers import FEATURES, I32, I64, VECTOR_BYTES, emit_fma, panel_lanes

_I16 = ir.IntType(16)
ROWS_AT_ONCE = 96  # of A, converted at once: enough that the time to read the panels does not matter
MAX_INT8 = 127  # of a signed byte
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


class FullPrecision:
    """Full precision: a word is a number of the network's dtype, and so is the sum."""

    name, per_word, parts, has_scales, in_place = "", 1, 1, False, False

    def __init__(self, real, lanes):
        self.real, self.vector = real, ir.VectorType(real, lanes)
        self.sum = self.vector

    @classmethod
    def words(cls, builder, depth):
        """Return the words of a column of this depth."""
        return builder.udiv(builder.add(depth, I64(cls.per_word - 1)), I64(cls.per_word))

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


class Bfloat16Dot(FullPrecision):
    name, per_word = "bfloat16", 2

    def add(self, builder, value, column, total):
        return _dot(builder, BFLOAT16_DOT, total, value, column)


class Bfloat16Wide(FullPrecision):
    name, per_word, parts = "bfloat16", 2, 2

    def unpack(self, builder, words):
        bits = ir.VectorType(I32, self.vector.count)
        words = builder.bitcast(words, bits)
        low = builder.shl(words, _all(bits, 16))
        high = builder.and_(words, _all(bits, 0xFFFF0000))
        return [builder.bitcast(half, self.vector) for half in (low, high)]


class _Int8(FullPrecision):
    name, per_word, has_scales = "int8", 4, True

    def __init__(self, real, lanes):
        super().__init__(real, lanes)
        self.sum = ir.VectorType(I32, lanes)


class Int8Dot(_Int8):
    zero_point = ZERO_POINT

    def add(self, builder, value, column, total):
        value, column = (builder.bitcast(one, self.sum) for one in (value, column))
        return _dot(builder, BYTE_DOT, total, value, column)


class Int8Wide(_Int8):
    parts, zero_point = 2, 0

    def unpack(self, builder, words):
        pairs = ir.VectorType(_I16, 2 * self.vector.count)
        words = builder.bitcast(words, pairs)
        eight = _all(pairs, 8)
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


def _all(vector, value):
    return ir.Constant(vector, [vector.element(value)] * vector.count)


if BFLOAT16_DOT or BYTE_DOT:
    binding.initialize_native_asmparser()
_BFLOAT16 = Bfloat16Dot if BFLOAT16_DOT else Bfloat16Wide
_INT8 = Int8Dot if BYTE_DOT else Int8Wide
FORMATS = {None: FullPrecision, "bfloat16": _BFLOAT16, "int8": _INT8}
"""Class that emits the products with packed weights, by the `precision` of `rnnkit.prepare`."""
_TUPLES = {"bfloat16": Bfloat16, "int8": Int8}
_FORM_OF_TUPLE = {kind: FORMATS[name] for name, kind in _TUPLES.items()} | {InRows: _InRows, InColumns: _InColumns}


def format_of(panels):
    """Return the class that emits the products with panels of this Numba type."""
    return _FORM_OF_TUPLE[panels.instance_class] if isinstance(panels, types.BaseNamedTuple) else FullPrecision


def storage_type(panels):
    """Return the Numba type of the array that holds panels of this type."""
    return panels.types[0] if isinstance(panels, types.BaseNamedTuple) else panels


def scratch_words(weights, depth):
    """Return the words that a row of `depth` numbers takes once converted for weights of this format: its scale, then
    the numbers (`rounding.converted`)."""
    form = FORMATS[weights]
    return 1 + form.parts * -(-depth // form.per_word)


def no_panels(dtype, form):
    """Return empty weights of the format of this name, for typing."""
    words, numbers = np.empty(0, dtype), np.empty(0, np.int64)
    for kind in (InRows, InColumns):
        if _FORM_OF_TUPLE[kind].name == form:
            return kind(words, numbers, 0, 0)
    weights = next(weights for weights, one in FORMATS.items() if one.name == form)
    return packed_as(weights, words, words, 0, numbers)


def packed_as(weights, words, scratch, scratch_size, numbers):
    """Return packed weights as kernels take them, with scratch of `scratch_size` words for each thread."""
    if weights is None:
        return words
    kind = _TUPLES[weights]
    return kind(words, scratch, scratch_size, numbers, *[words[:0]] * (len(kind._fields) - 4))


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


@intrinsic
def words_of(typingctx, panels, depth):
    """Return the words that a column of this depth takes in the panels."""
    form = format_of(panels)
    return types.int64(panels, types.int64), lambda context, builder, signature, arguments: form.words(
        builder, arguments[1]
    )


def panels_of(packed, start, stop, depth, columns, thread_id):
    """Return a product's panels of quantized weights in the packed buffer, with the thread's scratch."""


@overload(panels_of, jit_options=OPTIONS)
def _panels_of(packed, start, stop, depth, columns, thread_id):
    def bfloat16(packed, start, stop, depth, columns, thread_id):
        scratch = part(packed.scratch, thread_id * packed.scratch_size, (thread_id + 1) * packed.scratch_size)
        return Bfloat16(part(packed.words, start, stop), scratch, packed.scratch_size, packed.numbers)

    def int8(packed, start, stop, depth, columns, thread_id):
        scratch = part(packed.scratch, thread_id * packed.scratch_size, (thread_id + 1) * packed.scratch_size)
        lanes = panel_lanes(packed.words)
        features = stop - ((depth + lanes - 1) // lanes * lanes if stop > start else 0)
        scales = features - (2 * ((columns + lanes - 1) // lanes * lanes) if stop > start else 0)
        words, own = part(packed.words, start, scales), part(packed.words, scales, features)
        return Int8(words, scratch, packed.scratch_size, packed.numbers, part(packed.words, features, stop), own)

    return bfloat16 if packed.instance_class is Bfloat16 else int8
