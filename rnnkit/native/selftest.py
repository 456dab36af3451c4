"""The test of a network in C: a program that runs some steps, and compares every bit with what rnnkit computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rnnkit.call.side_inputs import split
from rnnkit.descriptor.descriptor import RNNDescriptor

_NUMBERS = 4000  # of inputs or outputs in the program: short to compile
_STEPS = 20
_PROGRAM = """\
/* Runs {name}.c on some inputs, and compares every bit of the outputs with what rnnkit computed.

    cc -std=c99 -O3 -march=native -ffp-contract=off {name}.c {name}_test.c -lm && ./a.out{of_file} */
#include "{name}.h"
#include <stdint.h>
#include <stdio.h>

enum {{ STEPS = {steps} }};
static const {word} inputs[STEPS * {upper}_INPUT] = {{
{inputs}}};
static const {word} expected[STEPS * {upper}_OUTPUT] = {{
{expected}}};

static {name}_state state;
static {real} x[STEPS * {upper}_INPUT], y[STEPS * {upper}_OUTPUT], work[{upper}_WORK(STEPS) + 1];

static {word} bits({real} value) {{
  union {{ {real} value; {word} bits; }} both;
  both.value = value;
  return both.bits;
}}

static {real} number({word} bits) {{
  union {{ {real} value; {word} bits; }} both;
  both.bits = bits;
  return both.value;
}}

static int differences(const char *how) {{
  int count = 0;
  for (int i = 0; i < STEPS * {upper}_OUTPUT; i++) {{
    const {real} wanted = number(expected[i]);
    if (bits(y[i]) != expected[i] && !(y[i] != y[i] && wanted != wanted)) {{ /* or both are NaN */
      if (!count++) printf("%s: output %d is %.9g instead of %.9g\\n", how, i, (double)y[i], (double)wanted);
    }}
    y[i] = 0;
  }}
  return count;
}}

{weights}int main(int count_of_arguments, char **arguments) {{
  int count = 0;
  (void)count_of_arguments, (void)arguments;
{read}  for (int i = 0; i < STEPS * {upper}_INPUT; i++) x[i] = number(inputs[i]);
  {init};
  {name}_run(&state, x, STEPS, y, work);
  count += differences("{name}_run");
{steps_alone}  if (!count) printf("{name}: all %d outputs have the bits of rnnkit\\n", STEPS * {upper}_OUTPUT);
  return count > 0;
}}
"""
_WEIGHTS = """\
static union {{ unsigned char bytes[{upper}_WEIGHTS]; double aligned; }} weights;

"""
_READ = """\
  FILE *const file = fopen(count_of_arguments > 1 ? arguments[1] : "{name}.bin", "rb");
  if (!file || fread(weights.bytes, 1, {upper}_WEIGHTS, file) != {upper}_WEIGHTS) {{
    printf("{name}.bin cannot be read\\n");
    return 1;
  }}
  fclose(file);
  if ({init}) {{
    printf("{name}.bin is of another network\\n");
    return 1;
  }}
"""
_ALONE = """\
  {init};
  for (int t = 0; t < STEPS; t++) {name}_step(&state, x + t * {upper}_INPUT, y + t * {upper}_OUTPUT);
  count += differences("{name}_step");
"""


def test_program(desc: RNNDescriptor, infer: Callable[..., Any], name: str, readout: Any, in_file: bool) -> str:
    """Return the text of the program; `infer` runs the network."""
    real, width = desc.np_dtype.type, desc.num_directions * desc.output_size
    steps = max(3, min(_STEPS, _NUMBERS // max(desc.row_size, width)))
    x = np.random.default_rng(0).standard_normal((steps, 1, desc.row_size)).astype(real)
    x[1], x[2, :, ::2] = 0, real(1e-3)
    features, side = split(desc, x)
    y = infer(features, inputs=side).y
    expected = y if readout is None else readout.outputs(y)
    upper, is_float = name.upper(), real is np.float32
    init = f"{name}_init(&state, weights.bytes)" if in_file else f"{name}_init(&state)"
    names = {"name": name, "upper": upper, "init": init}
    return _PROGRAM.format(
        **names, of_file=f" {name}.bin" if in_file else "", steps=steps, real="float" if is_float else "double",
        word="uint32_t" if is_float else "uint64_t", inputs=_words(x), expected=_words(expected),
        weights=_WEIGHTS.format(**names) if in_file else "", read=_READ.format(**names) if in_file else "",
        steps_alone="" if desc.num_directions == 2 else _ALONE.format(**names),
    )  # fmt: skip


def _words(array: np.ndarray) -> str:
    """Return the bits of numbers as a list in C."""
    suffix = "" if array.itemsize == 4 else "u"
    words = [f"0x{word:x}{suffix}" for word in np.ascontiguousarray(array).view(f"u{array.itemsize}").ravel().tolist()]
    return "".join(f"  {', '.join(words[start : start + 8])},\n" for start in range(0, len(words), 8))
