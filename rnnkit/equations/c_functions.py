"""The start of a C file: what it needs of a compiler, and the functions that equations call.

`kernels.machine.activations` has the same functions; the constants are its own.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numba import from_dtype

from rnnkit.equations.c_text import literal
from rnnkit_kernels.cells.declaration import MEAN_BLOCK
from rnnkit_kernels.machine.activations import FLOAT_FORMATS, LOG2, LOWER, NEAR, TINY, tanh_coefficients
from rnnkit_kernels.machine.small import SMALL

_HEAD = """\
#if defined(__FAST_MATH__) || (defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0 && __FLT_EVAL_METHOD__ != 16)
#error "results need IEEE arithmetic: no -ffast-math, no x87"
#endif
#if defined(__clang__) || !defined(__GNUC__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off", "no-trapping-math", "no-math-errno")
#endif
{narrow}#include "{name}.h"
#include <stdint.h>

typedef {real} real;
#if defined(__GNUC__) /* inlined, and there without a library */
#define RK_MATH(name) __builtin_##name
#define RK_INFINITY __builtin_inff()
#define RK_NAN __builtin_nanf("")
#define RK_ALIGNED __attribute__((aligned(64)))
#else
#include <math.h>
#define RK_MATH(name) name
#define RK_INFINITY INFINITY
#define RK_NAN NAN
#define RK_ALIGNED
#endif
#if defined(__clang__) /* keeps sums in registers */
#define RK_UNROLL _Pragma("clang loop unroll(full)")
#else
#define RK_UNROLL
#endif
#if defined(__AVX512F__) && (!defined(__clang__) || __clang_major__ >= 18) /* 32 vector registers */
#define RK_PAIRS 1
#else
#define RK_PAIRS 0
#endif
"""

# Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008.
_SOFT = {
    np.float32: """\
#if defined(RK_SOFT_FMA) /* without an instruction: the sum in double, rounded to odd, then to float */
static inline float rk_soft_fma(float a, float b, float c) {
  const double product = (double)a * b, sum = product + c, back = sum - product;
  const double rest = (product - (sum - back)) + (c - back);
  union { double x; int64_t n; } odd;
  odd.x = sum;
  if (rest != 0.0 && rest == rest && !(odd.n & 1)) odd.n += (rest > 0.0) == (sum > 0.0) ? 1 : -1;
  return (float)odd.x;
}
#define RK_FMA(a, b, c) rk_soft_fma(a, b, c)
#elif defined(RK_PLAIN_FMA) /* rounded twice: other bits, but fast where there is no instruction */
#define RK_FMA(a, b, c) ((a) * (b) + (c))
#else
#define RK_FMA(a, b, c) RK_MATH(fmaf)(a, b, c)
#endif
""",
    np.float64: """\
#if defined(RK_SOFT_FMA)
#error "double precision needs a fused multiply-add: compile for a CPU that has it, without RK_SOFT_FMA"
#endif
#define RK_FMA(a, b, c) RK_MATH(fma)(a, b, c)
""",
}

_SIMPLE = """
typedef {word} rk_word;
static inline rk_word rk_bits(real x) {{ union {{ real x; rk_word n; }} both; both.x = x; return both.n; }}
static inline real rk_real(rk_word n) {{ union {{ real x; rk_word n; }} both; both.n = n; return both.x; }}
#define RK_ABS(x) RK_MATH(fabs{f})(x)
#define RK_SQRT(x) RK_MATH(sqrt{f})(x)
static inline real rk_min(real a, real b) {{ return b < a ? b : a; }}
static inline real rk_max(real a, real b) {{ return b > a ? b : a; }}
static inline real rk_clip(real x, real low, real high) {{ return x < low ? low : x > high ? high : x; }}
static inline real rk_flushed(real x) {{ return RK_ABS(x) < {small} ? {zero} : x; }} /* never subnormal */
static inline void rk_copy(real *to, const real *from, int n) {{ for (int i = 0; i < n; i++) to[i] = from[i]; }}
"""

_SLOW = """
{powers}
static inline real rk_exp_minus_one(real r) {{
  const real q = RK_FMA(r, r, {small});
{exp_lines}
  return RK_FMA(q, {exp_total}, r);
}}
static inline real rk_tanh_near_zero(real x, real own) {{
  const real r = own * own, q = r * r;
{tanh_lines}
  return RK_FMA(own * r, {tanh_total}, x);
}}
static inline real rk_reduced(real v, real *shifted) {{ /* exp(v) = 2**n * (1 + result) */
  *shifted = RK_FMA(v, {per_log2}, {magic});
  const real n = *shifted - {magic};
  return rk_exp_minus_one(RK_FMA(n, {minus_low}, RK_FMA(n, {minus_high}, v)));
}}
static inline real rk_tanh(real x) {{
  const real size = RK_ABS(x), own = size < {tiny} ? {zero} : size, v = {two} * size;
  real shifted;
  const real p = rk_reduced(v > {tanh_limit} ? {tanh_limit} : v, &shifted), scale = rk_scale(shifted);
  const real e = RK_FMA(scale, p, scale - {one});
  const real near = rk_tanh_near_zero(size, own), far = e / (e + {two});
  return RK_MATH(copysign{f})(size < {near} ? near : far, x);
}}
static inline real rk_sigmoid(real x) {{
  const real bounded = x < {exp_limit} ? {exp_limit} : x;
  real shifted;
  const real p = rk_reduced(-(bounded > {sigmoid_limit} ? {sigmoid_limit} : bounded), &shifted);
  const real scale = rk_lowered_scale(shifted);
  return x <= {exp_limit} ? {zero} : {lower} / ({lower} + RK_FMA(scale, p, scale));
}}
static inline real rk_exp(real x) {{
  const real bounded = x < {exp_limit} ? {exp_limit} : x;
  real shifted;
  const real p = rk_reduced(bounded > {overflow} ? {overflow} : bounded, &shifted);
  const real low = rk_raised_scale(shifted), high = rk_half_scale(shifted), scale = x < {zero} ? low : high;
  return x <= {exp_limit} ? {zero} : RK_FMA(scale, p, scale) * (x < {zero} ? {lower} : {two});
}}
"""

_MEANS = """
static inline real rk_sum(const real *terms) {{ /* of a block, first in lanes, then these by halving */
  real lanes[16];
  for (int i = 0; i < 16; i++) lanes[i] = terms[i] + terms[i + 16];
  for (int size = 8; size > 0; size /= 2)
    for (int i = 0; i < size; i++) lanes[i] = lanes[i] + lanes[i + size];
  return lanes[0];
}}
static inline real rk_mean(real *terms, int units) {{ /* with space for whole blocks */
  real total = {zero};
  for (int i = units; i < (units + {block} - 1) / {block} * {block}; i++) terms[i] = {zero};
  for (int i = 0; i < units; i += {block}) total = total + rk_sum(terms + i);
  return total / (real)units;
}}
"""


_NARROW = """\
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512F__) /* the units fill one vector at most */
#pragma GCC target("prefer-vector-width=256")
#endif
"""


def head(name: str, real: Any, units: int) -> str:
    """Return what comes first in the file of a network with so many units.

    For few units gcc's code with vectors of 32 bytes is faster than with 64 (H = 8 to 16: 0.67 to 0.97 of the time,
    Emerald Rapids, gcc 12).
    """
    is_narrow = units * np.dtype(real).itemsize <= 64
    own = {"real": "float" if real is np.float32 else "double", "narrow": _NARROW if is_narrow else ""}
    return _HEAD.format(name=name, **own) + _SOFT[real]


def functions(real: Any, caller: str) -> str:
    """Return the functions that the text of a caller needs, in a dtype; compilers warn of others."""
    kind = from_dtype(np.dtype(real))
    form, f = FLOAT_FORMATS[kind], "f" if real is np.float32 else ""

    def number(value: Any) -> str:
        return literal(float(value), real)

    exp_lines, exp_total = _series("r", form.exp_coefficients, number)
    tanh_lines, tanh_total = _series("r", tanh_coefficients(form.tanh_terms)[1:], number)
    high, low = form.log2_parts
    names = {"scale": 0, "lowered_scale": -LOWER, "half_scale": -1, "raised_scale": LOWER}
    numbers = {
        "zero": 0, "one": 1, "two": 2, "small": SMALL[kind], "tiny": TINY, "near": NEAR, "lower": 2.0**-LOWER,
        "per_log2": 1 / LOG2, "magic": form.magic, "minus_high": -high, "minus_low": -low,
        "tanh_limit": form.tanh_limit, "sigmoid_limit": form.sigmoid_limit, "overflow": form.overflow,
        "exp_limit": -form.exp_limit,
    }  # fmt: skip
    texts = {key: number(value) for key, value in numbers.items()} | {
        "f": f, "word": "uint32_t" if f else "uint64_t", "block": MEAN_BLOCK, "exp_lines": exp_lines,
        "exp_total": exp_total, "tanh_lines": tanh_lines, "tanh_total": tanh_total,
        "powers": "\n".join(_power_of_two(one, raised, form, f) for one, raised in names.items()),
    }  # fmt: skip
    found: list[str] = []
    for text in reversed(re.split(r"\n(?=static |#define |typedef )", (_SIMPLE + _SLOW + _MEANS).format(**texts))):
        name = re.match(r"(?:static inline \w+|#define|typedef \w+) (\w+)", text)
        if name is None or re.search(rf"\b{name[1]}\b", "".join([caller, *found])):
            found.insert(0, f"{text}\n")
    return "".join(found)


def _power_of_two(name: str, raised: int, form: Any, f: str) -> str:
    bits = 32 if f else 64
    offset = (form.bias + raised - int(form.magic.view(form.integer))) % 2**bits
    suffix = "u" if f else "ull"
    body = f"return rk_real((rk_bits(shifted) + {offset}{suffix}) << {form.mantissa});"
    meaning = f"2**(n + {raised}), n being the integer in the lowest bits of `shifted`"
    return f"static inline real rk_{name}(real shifted) {{ /* {meaning} */\n  {body}\n}}"


def _series(x: str, coefficients: list[Any], number: Any) -> tuple[str, str]:
    """Return lines that compute (c0 + c1*x) + q * ((c2 + c3*x) + ...), and the name of the result; q is x**2."""
    constants, lines, parts = [number(one) for one in coefficients], [], []
    for even, odd in zip(constants[::2], constants[1::2], strict=False):
        parts.append(f"p{len(parts)}")
        lines.append(f"  const real {parts[-1]} = RK_FMA({odd}, {x}, {even});")
    parts += constants[2 * len(parts) :]
    total = parts.pop()
    for count, part in enumerate(reversed(parts)):
        lines.append(f"  const real t{count} = RK_FMA({total}, q, {part});")
        total = f"t{count}"
    return "\n".join(lines), total
