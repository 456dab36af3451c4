"""Converts rows of float32 numbers to the format of the quantized weights that they are multiplied with."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from .amx_product import uses_registers
from .arrays import data_pointer, part
from .formats import (
    MAX_INT8,
    MIN_BFLOAT16,
    MIN_MAGNITUDE,
    ROWS_AT_ONCE,
    ZERO_POINT,
    Bfloat16Dot,
    Bfloat16Tiles,
    Bfloat16Wide,
    Int8Dot,
    Int8Tiles,
    Int8Wide,
    ScaledBfloat16Tiles,
    ScaledBfloat16Wide,
    all_lanes,
    format_of,
    row_size_of,
    words_of,
)
from .jit import OPTIONS, inner
from .matrix import Matrix, Range, clear, row_part
from .registers import FEATURES, I32, I64, VECTOR_BYTES, emit_in_every_lane, real_of


def rows_at_once(panels, count):
    """Return the rows that are multiplied at a time: all, or as many as fit the scratch."""


@overload(rows_at_once, jit_options=OPTIONS)
def _rows_at_once_of(panels, count):
    if format_of(panels).per_word == 1:
        return lambda panels, count: count
    return lambda panels, count: ROWS_AT_ONCE


def converted(panels, a, rows, depth):
    """Return the rows of A, converted, to multiply the panels with; row number 0 is the first of these rows."""


@overload(converted, jit_options=OPTIONS)
def _converted_of(panels, a, rows, depth):
    form = format_of(panels)
    if form.per_word == 1:
        return lambda panels, a, rows, depth: Matrix(a.data, part(a.rows, rows.start, rows.stop), a.start, a.stride)
    of_vectors = _rows_by(_CONVERT[form], form.scratch_start, form.parts)
    if not form.tiles:
        return of_vectors
    of_registers, of_vectors = inner(_rows_by(_CONVERT_TILES[form], form.scratch_start, 1)), inner(of_vectors)

    def convert_rows(panels, a, rows, depth):
        if uses_registers(panels, words_of(panels, depth), rows.stop - rows.start):
            return of_registers(panels, a, rows, depth)
        return of_vectors(panels, a, rows, depth)

    return convert_rows


def _rows_by(convert, start, parts):
    """Build the function that converts rows by the function of a row, with so many words for a word of the panels."""

    def convert_rows(panels, a, rows, depth):
        words = words_of(panels, depth)
        stride = row_size_of(panels, words, parts)
        for row in range(rows.start, rows.stop):
            at = (row - rows.start) * stride + start - 1
            convert(part(panels.scratch, at, at + 1 + parts * words), row_part(a, row, Range(0, depth)), panels, words)
        return Matrix(panels.scratch, panels.numbers, start, stride)

    return convert_rows


def _no_scale(target, source):
    return source.dtype.type(1)


def _power_of_two(target, source):
    """Write the power of two just below the row's largest magnitude, and return its inverse; 1 for a row of zeros, and
    for one with NaN or infinity. Both are normal numbers, so that the products with them are exact."""
    largest = _magnitude(source.dtype.type(0))
    for k in range(source.size):
        largest = max(largest, _magnitude(source[k]))
    exponent = largest >> 23
    exponent = 127 if exponent in (0, 255) else min(exponent, 253)
    target[0] = real_of(np.int32(exponent << 23))
    return real_of(np.int32((254 - exponent) << 23))


_LANES = 16  # float32 numbers in 64 bytes


def _vectors_of_pairs(target, source, factor):
    """Round whole vectors of pairs to bfloat16; returns the number of words."""
    for start in range(0, source.size - 2 * _LANES + 1, 2 * _LANES):
        _round_to_pairs(target, 1 + start // 2, source, start, factor)
    return source.size // (2 * _LANES) * _LANES


def _no_pairs(target, source, factor):
    return 0


_first_pairs = inner(_vectors_of_pairs if VECTOR_BYTES == 64 and "avx512bf16" in FEATURES else _no_pairs)


def _bfloat16_rows(scale):
    """Build the functions that round a row to bfloat16, multiplied with `scale(target, source)`: one number to a word,
    and two."""
    scale = inner(scale)

    @inner
    def widen(target, source, panels, words):
        factor = scale(target, source)
        for k in range(source.size):
            target[1 + k] = _bfloat16(source[k] * factor)
        clear(part(target, 1 + source.size, 1 + 2 * words))

    @inner
    def pair(target, source, panels, words):
        factor = scale(target, source)
        for word in range(_first_pairs(target, source, factor), source.size // 2):
            target[1 + word] = bfloat16_pair(source[2 * word] * factor, source[2 * word + 1] * factor)
        if source.size % 2:
            target[1 + source.size // 2] = bfloat16_pair(source[source.size - 1] * factor, source.dtype.type(0))
        clear(part(target, 1 + (source.size + 1) // 2, 1 + words))

    return widen, pair


@inner
def _scaled(target, source, features):
    """Write the row's scale, and return the factor that converts its numbers times the features'."""
    largest = _magnitude(source.dtype.type(0))
    for k in range(source.size):
        largest = max(largest, _magnitude(source[k] * features[k]))  # as bit patterns, so that NaN is the largest
    value = real_of(largest)
    if value < source.dtype.type(MIN_MAGNITUDE):
        target[0] = 0
        return source.dtype.type(0)
    one = source.dtype.type(MAX_INT8)
    target[0] = value / one if value < source.dtype.type(np.inf) else source.dtype.type(np.nan)
    return one / value


@inner
def _number_at(source, features, k):
    return source[k] * features[k] if k < source.size else source.dtype.type(0)


@inner
def _first_bytes(target, source, features, inverse):
    """Round whole vectors to bytes; returns the number of words."""
    for start in range(0, source.size - _LANES + 1, _LANES):
        _round_to_bytes(target, 1 + start // 4, source, features, start, inverse)
    return source.size // _LANES * (_LANES // 4)


@inner
def _no_bytes(target, source, features, inverse):
    return 0


def _as_bytes(write, first):
    """Build the function that rounds a row to bytes: whole vectors by `first`, the others by `write`, which puts four
    numbers into one word or two."""

    @inner
    def convert(target, source, panels, words):
        features = panels.features
        inverse, whole = _scaled(target, source, features), source.size // 4
        for word in range(first(target, source, features, inverse), whole):
            k = 4 * word
            four = (
                source[k] * features[k], source[k + 1] * features[k + 1], source[k + 2] * features[k + 2],
                source[k + 3] * features[k + 3],
            )  # fmt: skip
            write(target, word, four, inverse)
        if 4 * whole < source.size:  # words beyond the depth meet weights of 0
            k = 4 * whole
            last = (
                _number_at(source, features, k), _number_at(source, features, k + 1),
                _number_at(source, features, k + 2), _number_at(source, features, k + 3),
            )  # fmt: skip
            write(target, whole, last, inverse)

    return convert


@inner
def _write_quad(target, word, four, inverse):
    target[1 + word] = _word(four, inverse)


@inner
def _write_pairs(target, word, four, inverse):
    target[1 + 2 * word] = _word((four[0], four[2]), inverse)
    target[2 + 2 * word] = _word((four[1], four[3]), inverse)


_quads = _as_bytes(_write_quad, _first_bytes if VECTOR_BYTES == 64 else _no_bytes)
_pairs = _as_bytes(_write_pairs, _no_bytes)
(_widen, _pair), (_widen_scaled, _pair_scaled) = map(_bfloat16_rows, (_no_scale, _power_of_two))
_MIN_BITS = int(np.float32(MIN_BFLOAT16).view(np.uint32))
# For vector registers, and for tile registers.
_CONVERT = {
    Bfloat16Wide: _widen, Bfloat16Tiles: _widen, Bfloat16Dot: _pair,
    ScaledBfloat16Wide: _widen_scaled, ScaledBfloat16Tiles: _widen_scaled,
    Int8Wide: _pairs, Int8Tiles: _quads, Int8Dot: _quads,
}  # fmt: skip
_CONVERT_TILES = {Bfloat16Tiles: _pair, ScaledBfloat16Tiles: _pair_scaled, Int8Tiles: _quads}


def _emit_bfloat16(builder, value):
    """Return the bits of a float32 rounded to bfloat16, ties to even, in the high half of a word."""
    bits = builder.bitcast(value, I32)
    odd = builder.and_(builder.lshr(bits, I32(16)), I32(1))
    near = builder.add(bits, builder.add(odd, I32(0x7FFF)))
    quiet = builder.or_(bits, I32(0x400000))  # or a NaN with only low bits set would become infinite
    near = builder.select(builder.fcmp_unordered("uno", value, value), quiet, near)
    is_small = builder.icmp_unsigned("<", builder.and_(bits, I32(0x7FFFFFFF)), I32(_MIN_BITS))
    return builder.and_(builder.select(is_small, I32(0), near), I32(0xFFFF0000))


@intrinsic
def _bfloat16(typingctx, value):
    """Round a float32 to bfloat16."""
    return value(value), lambda context, builder, signature, arguments: builder.bitcast(
        _emit_bfloat16(builder, *arguments), ir.FloatType()
    )


@intrinsic
def bfloat16_pair(typingctx, low, high):
    """Round two float32 to bfloat16, in one word."""

    def generate(context, builder, signature, arguments):
        low, high = (_emit_bfloat16(builder, value) for value in arguments)
        return builder.bitcast(builder.or_(builder.lshr(low, I32(16)), high), ir.FloatType())

    return low(low, high), generate


@intrinsic
def _round_to_pairs(typingctx, target, at, source, start, factor):
    """Round two vectors of numbers times the factor to bfloat16, in one of words."""

    def generate(context, builder, signature, arguments):
        target, at, source, start, factor = arguments
        bits, factors, halves = ir.VectorType(I32, _LANES), emit_in_every_lane(builder, factor, _LANES), []
        for half in range(2):
            place = data_pointer(context, builder, signature.args[2], source, builder.add(start, I64(half * _LANES)))
            value = builder.fmul(_load(builder, place), factors)
            size = builder.and_(builder.bitcast(value, bits), all_lanes(bits, 0x7FFFFFFF))
            is_small = builder.icmp_unsigned("<", size, all_lanes(bits, _MIN_BITS))
            halves.append(builder.select(is_small, ir.Constant(value.type, None), value))
        kind = ir.FunctionType(bits, [factors.type] * 2)
        words = builder.asm(kind, "vcvtne2ps2bf16 $2, $1, $0", "=v,v,v", halves[::-1], False)
        place = data_pointer(context, builder, signature.args[0], target, at)
        builder.store(words, builder.bitcast(place, bits.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, factor), generate


@intrinsic
def _round_to_bytes(typingctx, target, at, source, features, start, inverse):
    """Round a vector of numbers times those of the features and the factor to bytes, in words."""

    def generate(context, builder, signature, arguments):
        target, at, source, features, start, inverse = arguments
        sources = zip(signature.args[2:4], (source, features), strict=True)
        values = [_load(builder, data_pointer(context, builder, kind, array, start)) for kind, array in sources]
        value = builder.fmul(builder.fmul(*values), emit_in_every_lane(builder, inverse, _LANES))
        numbers = _rounded(builder, value, 8)
        numbers = builder.trunc(numbers, ir.VectorType(ir.IntType(8), _LANES))
        place = data_pointer(context, builder, signature.args[0], target, at)
        builder.store(numbers, builder.bitcast(place, numbers.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, features, types.int64, inverse), generate


def _rounded(builder, value, bits):
    """Return integers whose lowest bits are the rounded numbers, with ZERO_POINT added to bytes."""
    first = 1.5 * 2**23 + (ZERO_POINT if bits == 8 else 0)  # adding it puts the rounded number into the lowest bits
    is_vector = isinstance(value.type, ir.VectorType)
    kind = ir.VectorType(I32, value.type.count) if is_vector else I32
    return builder.bitcast(builder.fadd(value, all_lanes(value.type, first) if is_vector else value.type(first)), kind)


def _load(builder, pointer):
    return builder.load(builder.bitcast(pointer, ir.VectorType(pointer.type.pointee, _LANES).as_pointer()), align=4)


@intrinsic
def _magnitude(typingctx, value):
    """Return the bits of |value| as an int32: in the order of the numbers, with NaN largest."""

    def generate(context, builder, signature, arguments):
        return builder.and_(builder.bitcast(*arguments, I32), I32(0x7FFFFFFF))

    return types.int32(value), generate


@intrinsic
def _word(typingctx, values, scale):
    """Scale the values, round them to integers, and pack them into one word, four of them with ZERO_POINT added."""
    bits = 32 // values.count

    def generate(context, builder, signature, arguments):
        values, scale = arguments
        word = I32(0)
        for place in range(signature.args[0].count):
            value = builder.fmul(builder.extract_value(values, place), scale)
            own = builder.and_(_rounded(builder, value, bits), I32((1 << bits) - 1))
            word = builder.or_(word, builder.shl(own, I32(bits * place)))
        return builder.bitcast(word, ir.FloatType())

    return scale(values, scale), generate
