"""Right before fast: compare an engine's results with the reference."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rnnkit import RNNDescriptor

# Tolerances: relative deviation of an array in the Euclidean norm. Ten times the largest of any engine on any case, and
# a thirtieth of the deviation by one wrong element in `odd`. Where x and h are rounded it is wider.
BOUND = {"float32": 3e-5, "float64": 3e-14, "bfloat16": 5e-2, "bfloat16-native": 5e-2, "int8": 1e-1}
# TensorFloat-32 has 10 bits of mantissa: ten units of the last.
TF32_BOUND = 1e-2
# The gradient of a ReLU unit that rounds to the other side of its kink is there or not: some of 10**7 units do, which
# was seen to move a bias gradient of `ds2-bi5` by 6e-4, in every engine.
KINK_BOUND = 5e-3


def deviation(arrays: Mapping, expected: Mapping, desc: RNNDescriptor, precision: str | None = None) -> str | None:
    """Return what is wrong with the results of an engine, or None; `expected` maps the same names to the reference.

    Quantized weights have the bits of their `precision`.
    """
    wanted = {name for name, array in arrays.items() if array is not None}
    if wanted != set(expected):
        return f"wrong: has {sorted(wanted)}, not {sorted(expected)}"
    for name in expected:
        actual, right = np.asarray(arrays[name], np.float64), np.asarray(expected[name], np.float64)
        if actual.shape != right.shape:
            return f"wrong: {name} has shape {actual.shape}, not {right.shape}"
        error = np.linalg.norm(actual - right) / max(np.linalg.norm(right), np.finfo(np.float64).tiny)
        bound = TF32_BOUND if desc.allow_tf32 else BOUND[precision or desc.dtype]
        if not desc.cell.declaration.smooth and name.startswith("d"):
            bound = max(bound, KINK_BOUND)
        if not error <= bound:  # NaN is wrong
            return f"wrong: {name} deviates by {error:.1e}, more than {bound:.0e}"
    return None
