"""CUDA C that does not depend on the cell: resets, steps that do not run, noises and dropout."""

from __future__ import annotations

from functools import cache

import numpy as np

from rnnkit_kernels import noise

COMMON = """\
typedef {real} real;
typedef unsigned int rk_uint;
typedef unsigned long long rk_long;
#define RK_INDEX (blockIdx.x * (long long)blockDim.x + threadIdx.x)

static inline double rk_double(long long bits) {{
  union {{ long long n; double x; }} both;
  both.n = bits;
  return both.x;
}}

/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), as on the CPU: unit u has word
   u % 64 / 16 of block u / 64 * 16 + u % 16. */
static inline rk_uint rk_random(long long u, rk_uint row, rk_uint step, rk_uint stream, rk_uint k0, rk_uint k1) {{
  rk_uint c[4] = {{(rk_uint)(u / 64 * 16 + u % 16), row, step, stream}};
  for (int i = 0; i < 10; i++) {{
    const rk_long a = {multipliers[0]}ull * c[0], b = {multipliers[1]}ull * c[2];
    c[0] = (rk_uint)(b >> 32) ^ c[1] ^ k0;
    c[1] = (rk_uint)b;
    c[2] = (rk_uint)(a >> 32) ^ c[3] ^ k1;
    c[3] = (rk_uint)a;
    k0 += {weyl[0]}u;
    k1 += {weyl[1]}u;
  }}
  return c[u % 64 / 16];
}}

/* `counts` has the number of each step among those that run; without it that is row / batch. A step below 0 is for all
   steps. Numbers are `one` where the random number is below `below`, else `other`. */
extern "C" __global__ void draw(long long rows, long long units, real *target, long long stride, long long batch,
                                long long first_row, const int *counts, long long step, long long stream, long long low,
                                long long high, long long below, long long one, long long other) {{
  if (RK_INDEX >= rows * units) return;
  const long long row = RK_INDEX / units, u = RK_INDEX % units;
  const long long own = step < 0 ? 0xFFFFFFFFll : counts ? counts[row] : row / batch;
  const rk_uint word = rk_random(u, (rk_uint)(row % batch + first_row), (rk_uint)own, (rk_uint)stream, (rk_uint)low,
                                 (rk_uint)high);
  target[row * stride + u] = (real)rk_double((long long)word < below ? one : other);
}}

extern "C" __global__ void drop(long long rows, long long units, real *target, const real *source, long long stride,
                                unsigned char *mask, long long batch, long long first_row, const int *counts,
                                long long stream, long long low, long long high, long long below, long long scale) {{
  if (RK_INDEX >= rows * units) return;
  const long long row = RK_INDEX / units, u = RK_INDEX % units;
  const rk_uint word = rk_random(u, (rk_uint)(row % batch + first_row), (rk_uint)(counts ? counts[row] : row / batch),
                                 (rk_uint)stream, (rk_uint)low, (rk_uint)high);
  mask[RK_INDEX] = (long long)word >= below;
  target[RK_INDEX] = source[row * stride + u] * (mask[RK_INDEX] ? (real)rk_double(scale) : 0);
}}

extern "C" __global__ void drop_gradient(long long rows, long long units, real *target, const unsigned char *mask,
                                         long long scale) {{
  if (RK_INDEX < rows * units) target[RK_INDEX] *= mask[RK_INDEX] ? (real)rk_double(scale) : 0;
}}

/* Before steps: the states that it starts from, those of before or after a reset the initial ones (or 0). */
extern "C" __global__ void start_step(long long first, long long rows, long long batch, const unsigned char *resets,
                                      const real *hidden, long long hidden_stride, const real *states,
                                      const real *hidden_initial, const real *states_initial, real *hidden_prev,
                                      real *states_prev, long long outputs, long long columns) {{
  if (RK_INDEX >= rows * (outputs + columns)) return;
  const long long row = RK_INDEX / (outputs + columns), j = RK_INDEX % (outputs + columns), at = first + row;
  if (j < outputs) {{
    const real anew = hidden_initial ? hidden_initial[row % batch * outputs + j] : 0;
    hidden_prev[at * outputs + j] = resets[at] ? anew : hidden[at * hidden_stride + j];
  }} else {{
    const long long own = j - outputs;
    const real anew = states_initial ? states_initial[row % batch * columns + own] : 0;
    states_prev[at * columns + own] = resets[at] ? anew : states[at * columns + own];
  }}
}}

/* After a step of the gradient: where the step began with a reset, the gradient is that of what states are reset to. */
extern "C" __global__ void end_step(long long first, long long rows, const unsigned char *resets, real *dhidden,
                                    real *dstates, real *dhidden_initial, real *dstates_initial, long long outputs,
                                    long long columns) {{
  if (RK_INDEX >= rows * (outputs + columns)) return;
  const long long row = RK_INDEX / (outputs + columns), j = RK_INDEX % (outputs + columns);
  if (!resets[first + row]) return;
  const long long own = j < outputs ? row * outputs + j : row * columns + j - outputs;
  real *const carried = (j < outputs ? dhidden : dstates) + own;
  real *const initial = (j < outputs ? dhidden_initial : dstates_initial) + own;
  *initial += *carried;
  *carried = 0;
}}

extern "C" __global__ void carry_outputs(long long first, long long rows, long long outputs, const unsigned char *flags,
                                         const real *hidden_prev, long long prev_stride, real *hidden,
                                         long long stride) {{
  if (RK_INDEX >= rows * outputs) return;
  const long long at = first + RK_INDEX / outputs, j = RK_INDEX % outputs;
  if (!(flags[at] & 1)) hidden[at * stride + j] = hidden_prev[at * prev_stride + j];
}}
"""


@cache
def common_source(dtype: np.dtype) -> str:
    """Return the kernels in a dtype."""
    real = {"float32": "float", "float64": "double"}[dtype.name]
    return COMMON.format(real=real, multipliers=noise.MULTIPLIERS, weyl=noise.WEYL)
