"""The products of a layer in C with weights in int8: exact sums of integers, then scaled to float32."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rnnkit.cpu.reduced import factors_of, rounded_columns
from rnnkit.equations.c_text import literal
from rnnkit.native.products import shifted
from rnnkit_kernels.machine.formats import MAX_INT8, MIN_MAGNITUDE

_WIDTH = 64  # columns of a block


class Target(NamedTuple):
    """Columns of a product: where they are written, what they start from, and which rows of the matrix they are."""

    pointer: str
    start: str
    rows: range


class Int8Products:
    """Writes the calls of products, and collects their weights. `numbers` of a layer are the scales of the columns, and
    the factors of what is multiplied; those are 1 where all features have about the same size."""

    def __init__(self) -> None:
        self._weights: list[np.ndarray] = []
        self._numbers: list[np.ndarray] = []
        self._widths: set[int] = set()
        self.deepest = 0

    def taken(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights and the numbers of the present layer, and begin another one."""
        found = tuple(np.concatenate(parts) if parts else np.zeros(0) for parts in (self._weights, self._numbers))
        self._weights, self._numbers = [], []
        return found[0].astype(np.int8), found[1].astype(np.float32)

    def lines(self, name: str, source: str, matrix: np.ndarray, targets: list[Target]) -> list[str]:
        """Return calls that multiply a source by a matrix (columns, depth), for these columns."""
        depth = matrix.shape[1]
        self.deepest = max(self.deepest, depth)
        factors = factors_of(np.abs(matrix).max(axis=0))
        rounded, scales = rounded_columns(np.ascontiguousarray((matrix / factors).T))
        numbers, weights = f"{name}_numbers", f"{name}_weights"
        of_factors = "0"
        if (factors != 1).any():
            of_factors = shifted(numbers, sum(one.size for one in self._numbers))
            self._numbers.append(factors)
        lines = [f"rk_scale_of_q = rk_quantize(rk_q, {source}, {of_factors}, {depth});"]
        of_scales = sum(one.size for one in self._numbers)
        self._numbers.append(scales)
        for target in targets:
            first = 0
            while first < len(target.rows):
                width = min(_WIDTH, len(target.rows) - first)
                self._widths.add(width)
                rows = slice(target.rows.start + first, target.rows.start + first + width)
                place = shifted(weights, sum(one.size for one in self._weights))
                self._weights.append(np.ascontiguousarray(rounded[:, rows]).ravel())
                pointers = shifted(target.pointer, first), shifted(target.start, first), place
                scale = shifted(numbers, of_scales + rows.start)
                lines.append(f"rk_int8_{width}({', '.join(pointers)}, {scale}, rk_q, {depth}, rk_scale_of_q);")
                first += width
        return lines

    def functions(self) -> str:
        """Return the functions that the calls need."""
        text = [_QUANTIZE.format(
            magic=literal(1.5 * 2**23, np.float32), small=literal(MIN_MAGNITUDE, np.float32),
            most=literal(MAX_INT8, np.float32),
        )]  # fmt: skip
        return "".join([*text, *(_COLUMNS.format(width=width) for width in sorted(self._widths, reverse=True))])


_QUANTIZE = """
/* rounds x times the factors to whole numbers of steps of its largest magnitude / 127; returns the step */
static inline real rk_quantize(signed char *q, const real *x, const real *factors, int n) {{
  real largest = 0.0f;
  int is_nan = 0;
  for (int k = 0; k < n; k++) {{
    const real size = RK_ABS(factors ? x[k] * factors[k] : x[k]);
    largest = size > largest ? size : largest;
    is_nan |= size != size;
  }}
  const int is_small = largest < {small} && !is_nan;
  const real inverse = is_small ? 0.0f : {most} / largest;
  for (int k = 0; k < n; k++) {{ /* adding the number puts the rounded one into the lowest bits */
    const real value = (factors ? x[k] * factors[k] : x[k]) * inverse;
    q[k] = (signed char)(rk_bits(value + {magic}) & 255u);
  }}
  return is_small ? 0.0f : is_nan || largest > 3.4028235e38f ? (real)RK_NAN : largest / {most};
}}
"""
_COLUMNS = """\
static inline void rk_int8_{width}(
    real *c, const real *start, const signed char *w, const real *scales, const signed char *q, int n, real scale) {{
  int32_t sums[{width}];
  RK_UNROLL for (int j = 0; j < {width}; j++) sums[j] = 0;
  for (int k = 0; k < n; k++, w += {width})
    RK_UNROLL for (int j = 0; j < {width}; j++) sums[j] += q[k] * w[j];
  RK_UNROLL for (int j = 0; j < {width}; j++) c[j] = RK_FMA((real)sums[j], scales[j] * scale, start[j]);
}}
"""
