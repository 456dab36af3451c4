"""Measure the accuracy of quantized weights: the error of y against float64, by cell, units and step, and the bits per
byte of a trained language model; for rnnkit, PyTorch, ONNX Runtime and OpenVINO. `python -m perf.accuracy [--model
MODEL --text FILE]`

The error at a step is the root mean square over all rows and units, relative to that of y. Weights are uniform, from
`init_weights`, and x is standard normal; then one feature is 10,000 times as large, and its weights as much smaller.
The text is split as in training, and the held-out part is scored.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import rnnkit
from perf import baselines, reduced_suite
from perf.cases import Case, Problem
from perf.subject import Subject
from rnnkit.language_model import corpus, scoring
from rnnkit.language_model import model as textmodel
from rnnkit.types import Precision

MODES, UNITS, STEPS, ROWS = ("lstm", "gru", "rnn_tanh"), (64, 256, 1024), (1, 10, 100, 1000), 4
LARGE = 1e4  # size of one feature among others of 1
PRECISIONS: tuple[Precision | None, ...] = (None, *reduced_suite.PRECISIONS)
ENGINES = (baselines.RNNKIT, "torch", "onnxruntime", "openvino")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, nargs="+", default=UNITS)
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS)
    parser.add_argument("--model", help="of rnnkit train; with --text")
    parser.add_argument("--text", type=Path, help="what it was trained on")
    args = parser.parse_args(arguments)
    if (args.model is None) != (args.text is None):
        parser.error("--model and --text go together")
    print(f"{'relative error at step':56}" + "".join(f"{step:>10}" for step in args.steps))
    for name, found in errors(args.units, args.steps):
        print(f"{name:56}" + "".join(f"{error:10.1e}" for error in found), flush=True)
    if args.model is not None:
        print("\nbits per byte")
        for name, bits in held_out_bits(textmodel.load(args.model), args.text.read_bytes()):
            print(f"{name:32}{bits:10.4f}", flush=True)


def errors(units: Sequence[int], steps: Sequence[int]) -> Iterator[tuple[str, list[float]]]:
    """Yield a name of cell, units, weights and engine, and the relative error at each of these steps."""
    for mode, count, feature in product(MODES, units, (1.0, LARGE)):
        desc = rnnkit.RNNDescriptor(mode, count, count)
        case = Case("accuracy", desc, max(steps), ROWS, feature=feature)
        expected = outputs(baselines.reference(case, "infer"))
        scaled = "" if feature == 1 else f", a feature of {feature:g}"
        for precision in PRECISIONS:
            own = case._replace(precision=precision)
            for engine in ENGINES:
                alone = precision == "bfloat16-native"  # others run what they run as bfloat16
                if engine == baselines.RNNKIT or not (alone or baselines.refusal(engine, own, "infer")):
                    actual = outputs(baselines.prepare(engine, own, "infer", threads=1))
                    name = f"{mode} {count} {precision or 'float32'} {engine}{scaled}"
                    yield name, [relative_error(actual[step - 1], expected[step - 1]) for step in steps]


def outputs(subject: Subject) -> np.ndarray:
    return np.asarray(subject.results(subject.run())["y"], np.float64)


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def held_out_bits(model: textmodel.TextModel, text: bytes) -> Iterator[tuple[str, float]]:
    """Yield the name of weights and engine, and the model's bits per byte on the part of its text that is held out."""
    parts = corpus.split(text)
    before = parts.training + parts.validation
    for precision in PRECISIONS:
        plan = rnnkit.prepare(model.desc, model.parameters.network, precision=precision)
        networks = {"rnnkit": plan}
        if precision != "bfloat16-native":  # PyTorch runs what it runs as bfloat16
            networks["torch"] = TorchNetwork(model, precision)
        for engine, network in networks.items():
            bits = scoring.bits_per_byte(model, parts.held_out, before, network=network)
            yield f"{precision or 'float32'} {engine}", bits


class TorchNetwork:
    """A model's recurrent network as a module of PyTorch."""

    def __init__(self, model: textmodel.TextModel, precision: Precision | None):
        import torch

        arrays = dict.fromkeys(Problem._fields)
        given = Problem(**arrays | {"desc": model.desc, "w": model.parameters.network, "precision": precision})
        self._torch, self._module, self._dtype = torch, baselines.torch_module(torch, given), torch.float32
        if precision is not None:
            self._module, self._dtype = reduced_suite.torch_module(torch, self._module, given)
        self._has_cell_state = model.desc.has_cell_state

    def infer(self, x: np.ndarray, hx: Any = None, cx: Any = None) -> tuple[np.ndarray, Any, Any]:
        """Return y, and the states for the next call."""
        states = None if hx is None else (hx, cx) if self._has_cell_state else hx
        with self._torch.inference_mode():
            y, ends = self._module(self._torch.from_numpy(x).to(self._dtype), states)
        return y.float().numpy(), *(ends if self._has_cell_state else (ends, None))


if __name__ == "__main__":
    main()
