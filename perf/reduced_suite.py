"""Time plans with quantized weights, and training with products of bfloat16, against the same in float32, and against
engines with weights of equal width."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any, get_args

from llvmlite import binding

from perf import cases
from perf.cases import Case, Problem
from rnnkit.types import Precision
from rnnkit_kernels.machine.formats import BFLOAT16_DOT
from rnnkit_kernels.machine.registers import FEATURES

FAMILIES = (
    "ds2", "lm", "small", "stream", "stream-h512", "odd-i77", "varlen", "proj", "step-n1-h512", "step-n1-h1024",
    "step-n16-h512",
)  # fmt: skip
# Those that this CPU has.
PRECISIONS: tuple[Precision, ...] = tuple(
    one for one in get_args(Precision) if one != "bfloat16-native" or BFLOAT16_DOT is not None
)
CASES = tuple(
    case._replace(
        precision=precision, passes=tuple(name for name in case.passes if name != "train" or precision == "bfloat16")
    )
    for case in cases.CASES
    if case.family in FAMILIES
    for precision in PRECISIONS
)


TRAINING = "torch-bfloat16", "torch-float32"
"""PyTorch's modules of these dtypes; "torch" trains one of float32 under autocast."""


def refusal(engine: str, case: Case, pass_name: str) -> str | None:
    """Return why a competitor cannot run a case of quantized weights, or None."""
    if engine == "float32":
        return None
    if engine in TRAINING:
        return None if pass_name == "train" else "only in training"
    if pass_name == "train":
        return _refusal_of_autocast(case) if engine == "torch" else "has no train"
    if engine == "torch":
        has = ("lstm", "gru") if case.precision == "int8" else tuple(cases.MODES)
        return None if case.desc.mode in has and not case.desc.projected else f"has no {case.precision} of it"
    if engine == "onnxruntime":
        has = case.precision == "int8" and case.desc.mode == "lstm" and not case.desc.projected
        return None if has else f"has no {case.precision} of it"
    if engine == "openvino":
        return _refusal_of_openvino(case)
    return "only of float32"


def _refusal_of_autocast(case: Case) -> str | None:
    """PyTorch 2.13 raises for an LSTM under autocast on a CPU without AVX-512."""
    has = case.desc.mode != "lstm" or "avx512bw" in FEATURES
    return None if has else "has no bfloat16 on this CPU"


def _refusal_of_openvino(case: Case) -> str | None:
    if case.precision == "int8":
        return "has no int8 without NNCF"  # needs another package, and sample inputs
    if case.desc.projected:
        return f"has no {case.precision} of it"
    found = binding.get_host_cpu_features()
    has = any(found.get(feature) for feature in ("avx512bf16", "amx-bf16"))
    return None if has else "has no bfloat16 on this CPU"  # it would widen what it multiplies


def torch_module(torch: Any, module: Any, given: Problem) -> tuple[Any, Any]:
    """Return PyTorch's module with such weights, and the dtype of what it takes."""
    if given.precision != "int8":
        return module.to(torch.bfloat16), torch.bfloat16
    kinds, around = {torch.nn.LSTM, torch.nn.GRU}, torch.nn.ModuleList([module])  # what is inside it is replaced
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # all of it is deprecated; its successor has no recurrent layers
        (module,) = torch.ao.quantization.quantize_dynamic(around, kinds, dtype=torch.qint8)
    return module, torch.float32


def onnx_model(model: bytes) -> bytes:
    """Return the graph with DynamicQuantizeLSTM in place of LSTM, a scale for each column of its weights."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        whole, reduced = Path(folder) / "whole.onnx", Path(folder) / "reduced.onnx"
        whole.write_bytes(model)
        # Without VNNI its int8 products saturate, unless weights have seven bits: what its documentation advises.
        options = {"per_channel": True, "weight_type": QuantType.QInt8, "reduce_range": not _has_vnni()}
        quantize_dynamic(whole, reduced, op_types_to_quantize=["LSTM"], **options)
        return reduced.read_bytes()


def _has_vnni() -> bool:
    """Return whether the CPU has dot products of bytes that do not saturate."""
    return bool(FEATURES & {"avx512vnni", "avxvnni", "dotprod"})
