"""Exponential, logistic and hyperbolic tangent as plain arithmetic that LLVM vectorises, in float32 and float64.

All of them use exp(v) = 2**n * (1 + p), v = n*log(2) + r, |r| <= log(2)/2, p = exp(r) - 1 (Cody and Waite, "Software
Manual for the Elementary Functions", 1980). Clamps propagate NaN: an unordered comparison keeps the value.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, lower_builtin, overload, type_callable

from ..cells import functions
from ..cells.functions import clip, exp, sigmoid, tanh
from .jit import OPTIONS
from .registers import emit_fma, fma
from .small import SMALL

LOG2 = Fraction("0.6931471805599453094172321214581765680755")
TINY = 2.0**-30  # below it tanh(x) is x, and powers of x may be subnormal
NEAR = 0.26  # tanh(0.26) is just above 1/4; below it, e/(e + 2) has an error of 2.3 units in the last place


class FloatFormat(NamedTuple):
    """A binary floating-point format, and the constants of exp and tanh in it."""

    real: type
    integer: type
    mantissa: int  # stored bits
    bias: int  # of the exponent
    high_bits: int  # of log(2)'s leading part: n * high is exact for every n that occurs
    exp_degree: int  # of the Taylor series of exp: the rest is below a quarter of a unit in the last place
    tanh_terms: int  # number of terms of the series of tanh: the same
    tanh_limit: float  # 2|x| from which tanh rounds to 1
    exp_limit: float  # -v from which exp(v), and the logistic function of v, are below `small.SMALL`
    sigmoid_limit: float  # x from which the logistic function rounds to 1
    overflow: float  # v from which exp is infinite

    @property
    def magic(self):
        """Adding it rounds a number to an integer, which is then in the lowest bits of the sum."""
        return self.real(1.5 * 2**self.mantissa)

    @property
    def log2_parts(self):
        """The leading and the other digits of log(2)."""
        high = math.floor(LOG2 * 2**self.high_bits) / 2**self.high_bits
        return high, float(LOG2 - Fraction(high))

    @property
    def exp_coefficients(self):
        """Those of exp(r) = 1 + r + r**2 * (...)."""
        return [Fraction(1, math.factorial(k)) for k in range(2, self.exp_degree + 1)]


FLOAT_FORMATS = {
    types.float32: FloatFormat(np.float32, np.int32, 23, 127, 15, 7, 5, 18.1, 69.31472, 17.4, 89.0),
    types.float64: FloatFormat(np.float64, np.int64, 52, 1023, 41, 13, 11, 38.2, 665.4212933375476, 37.5, 710.0),
}


def _emit_series(builder, x, square, coefficients):
    """(c0 + c1*x) + x**2 * ((c2 + c3*x) + ...), Horner's scheme in pairs: no more operations, half of the latency.

    The rows of a small layer are only a few vectors long, too short to hide the latency.
    """
    constants = [x.type(float(coefficient)) for coefficient in coefficients]
    pairs = [emit_fma(builder, odd, x, even) for even, odd in zip(constants[::2], constants[1::2], strict=False)]
    pairs += constants[2 * len(pairs) :]
    total = pairs.pop()
    for pair in reversed(pairs):
        total = emit_fma(builder, total, square, pair)
    return total


@intrinsic
def _exp_minus_one(typingctx, r):
    """exp(r) - 1 for |r| <= log(2)/2: r + r**2 * (1/2! + r/3! + ...). Off by up to `small.SMALL`, which 1 + exp(r) - 1
    does not show: the square of a small r would be subnormal."""

    def generate(context, builder, signature, arguments):
        (x,) = arguments
        coefficients = FLOAT_FORMATS[r].exp_coefficients
        square = emit_fma(builder, x, x, x.type(SMALL[r]))
        return emit_fma(builder, square, _emit_series(builder, x, square, coefficients), x)

    return r(r), generate


def tanh_coefficients(terms):
    """a with tanh(x) = x * (a[0] + a[1]*x**2 + ...), from tanh' = 1 - tanh**2."""
    a = [Fraction(1)]
    while len(a) < terms:
        a.append(-sum(p * q for p, q in zip(a, reversed(a), strict=True)) / (2 * len(a) + 1))
    return a


@intrinsic
def _tanh_near_zero(typingctx, x, own):
    """tanh(x) for |x| < NEAR: x + x**3 * (-1/3 + 2/15*x**2 ...). `own` is x, or 0 if x is tiny."""

    def generate(context, builder, signature, arguments):
        value, own = arguments
        square = builder.fmul(own, own)
        coefficients = tanh_coefficients(FLOAT_FORMATS[x].tanh_terms)[1:]
        tail = _emit_series(builder, square, builder.fmul(square, square), coefficients)
        return emit_fma(builder, builder.fmul(own, square), tail, value)

    return x(x, own), generate


def _power_of_two(raised):
    @intrinsic
    def power_of_two(typingctx, shifted):
        """2**(n + raised), n being the integer in the lowest bits of `shifted` (see `_reduced`)."""
        form = FLOAT_FORMATS[shifted]
        offset = form.bias + raised - int(form.magic.view(form.integer))

        def generate(context, builder, signature, arguments):
            integer = ir.IntType(shifted.bitwidth)
            n = builder.add(builder.bitcast(arguments[0], integer), integer(offset))
            return builder.bitcast(builder.shl(n, integer(form.mantissa)), arguments[0].type)

        return shifted(shifted), generate

    return power_of_two


LOWER = 64
_scale, _lowered_scale = _power_of_two(0), _power_of_two(-LOWER)
_half_scale, _raised_scale = _power_of_two(-1), _power_of_two(LOWER)


def _reduced(v):
    """(n + magic, p) with exp(v) = 2**n * (1 + p)."""


@overload(_reduced, jit_options=OPTIONS)
def _reduced_of(v):
    form = FLOAT_FORMATS[v]
    minus_high, minus_low = (form.real(-part) for part in form.log2_parts)
    per_log2, magic = form.real(float(1 / LOG2)), form.magic

    def reduced(v):
        shifted = fma(v, per_log2, magic)
        n = shifted - magic
        return shifted, _exp_minus_one(fma(n, minus_low, fma(n, minus_high, v)))

    return reduced


@overload(tanh, jit_options=OPTIONS)
def _tanh_of(x):
    """e/(e + 2) with e = exp(2|x|) - 1, or a series near 0. Within 2 units in the last place."""
    form = FLOAT_FORMATS[x]
    limit, near, tiny = form.real(form.tanh_limit), form.real(NEAR), form.real(TINY)
    zero, one, two = form.real(0), form.real(1), form.real(2)

    def tanh(x):
        magnitude = abs(x)
        own = zero if magnitude < tiny else magnitude
        v = two * magnitude
        shifted, p = _reduced(limit if v > limit else v)
        scale = _scale(shifted)
        e = fma(scale, p, scale - one)
        return math.copysign(_tanh_near_zero(magnitude, own) if magnitude < near else e / (e + two), x)

    return tanh


@overload(sigmoid, jit_options=OPTIONS)
def _sigmoid_of(x):
    """Within 3 units in the last place; 0 below `small.SMALL`."""
    form = FLOAT_FORMATS[x]
    low, high = form.real(-form.exp_limit), form.real(form.sigmoid_limit)
    zero, one = form.real(0), form.real(2.0**-LOWER)

    def sigmoid(x):
        bounded = low if x < low else x
        shifted, p = _reduced(-(high if bounded > high else bounded))
        scale = _lowered_scale(shifted)  # everything is scaled by 2**-64, as exp(-x) may overflow
        return zero if x <= low else one / (one + fma(scale, p, scale))

    return sigmoid


@overload(exp, jit_options=OPTIONS)
def _exp_of(x):
    """Within 1 unit in the last place; 0 below `small.SMALL`."""
    form = FLOAT_FORMATS[x]
    low, high = form.real(-form.exp_limit), form.real(form.overflow)
    zero, two, lower = form.real(0), form.real(2), form.real(2.0**-LOWER)

    def exp(x):
        bounded = low if x < low else x
        shifted, p = _reduced(high if bounded > high else bounded)
        scale = _raised_scale(shifted) if x < zero else _half_scale(shifted)  # 2**n itself may not be a normal number
        return zero if x <= low else fma(scale, p, scale) * (lower if x < zero else two)

    return exp


@overload(clip, jit_options=OPTIONS | {"forceinline": True})  # Numba's own inlining warns at a second clip
def _clip_of(x, low, high):
    return clip


@type_callable(functions.fma)
def _type_of_fma(context):
    return lambda a, b, c: a


@lower_builtin(functions.fma, types.Float, types.Float, types.Float)
def _lower_fma(context, builder, signature, arguments):
    return emit_fma(builder, *arguments)
