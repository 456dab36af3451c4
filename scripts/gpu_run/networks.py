"""Small networks: forward, backward and infer beside PyTorch in float64 and beside the CPU engine in float64."""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from typing import Any

import cupy
import numpy as np
import torch

import rnnkit
import rnnkit.torch
from gpu_run.here import Here, deviation
from perf.baselines import torch_module
from perf.cases import Problem
from rnnkit.cuda import context, cudnn
from rnnkit.cuda.context import Shape

NETWORKS = {  # name -> options of the descriptor, and lengths
    "lstm": (dict(mode="lstm"), None),
    "gru": (dict(mode="gru"), None),
    "rnn_tanh": (dict(mode="rnn_tanh"), None),
    "rnn_relu": (dict(mode="rnn_relu"), None),
    "lstm, two layers, two directions": (dict(mode="lstm", num_layers=2, bidirectional=True), None),
    "gru, two layers, two directions": (dict(mode="gru", num_layers=2, bidirectional=True), None),
    "lstm, lengths": (dict(mode="lstm", num_layers=2), (7, 0, 3, 9)),
    "gru, lengths": (dict(mode="gru", bidirectional=True), (1, 9, 0, 4)),
    "lstm, projection": (dict(mode="lstm", proj_size=5), None),
    "lstm, clip": (dict(mode="lstm", cell_clip=(-0.25, 0.3125)), None),
    "lstm, one bias": (dict(mode="lstm", bias="input"), None),
    "gru, no bias": (dict(mode="gru", bias="none"), None),
    "lstm, skip input": (dict(mode="lstm", input_mode="skip", input_size=24), None),
    "lstm, float64": (dict(mode="lstm", num_layers=2, dtype="float64"), None),
    "gru, float64, lengths": (dict(mode="gru", dtype="float64"), (9, 2, 0, 5)),
    "lstm, tf32": (dict(mode="lstm", allow_tf32=True), None),
    "lstm, tf32, H=200": (dict(mode="lstm", allow_tf32=True, hidden_size=200), None),
    "lstm, float16": (dict(mode="lstm", dtype="float16"), None),
    "lstm, float16, H=256": (dict(mode="lstm", dtype="float16", input_size=256, hidden_size=256), None),
    "gru, bfloat16": (dict(mode="gru", dtype="bfloat16"), None),
    "lstm, bfloat16, lengths": (dict(mode="lstm", dtype="bfloat16"), (7, 0, 3, 9)),
}
BOUNDS = {"float32": 2e-5, "float64": 1e-11, "tf32": 1e-2, "float16": 1e-2, "bfloat16": 8e-2}  # of `deviation`
STEPS = 9


def run(here: Here) -> None:
    later = {}  # the CPU engine compiles its kernels first
    for name, (options, lengths) in NETWORKS.items():
        with here.trying(name):
            later[name] = _compare(here, name, options, lengths)
    with here.trying("dropout"):
        _dropout(here)
    for kind in ("RNN", "LSTM", "GRU"):
        with here.trying(f"rnnkit.torch.{kind}"):
            _module(here, kind)
    for name, compare in later.items():
        with here.trying(f"{name}, CPU engine"):
            compare()


def _compare(here: Here, name: str, options: dict[str, Any], lengths: Any) -> Any:
    """Compare with PyTorch; return a function that compares with the CPU engine."""
    options = {"input_size": 12, "hidden_size": 24, **options}
    desc = rnnkit.RNNDescriptor(**options)
    given = _problem(desc, lengths)
    start = time.perf_counter()
    w, x, hx, cx, dy = (None if one is None else cupy.asarray(one) for one in _arrays(given))
    forward = rnnkit.forward(desc, w, x, hx, cx, lengths=lengths)
    gradients = rnnkit.backward(desc, w, forward.workspace, dy)
    found = {**forward._asdict(), **gradients._asdict(), "infer": rnnkit.infer(desc, w, x, hx, cx, lengths=lengths).y}
    found = {key: one.get().astype(np.float64) for key, one in found.items() if hasattr(one, "get")}
    bound = BOUNDS["tf32" if desc.allow_tf32 else desc.dtype]
    wide = rnnkit.RNNDescriptor(**{**options, "dtype": "float64", "allow_tf32": False})
    reference = Problem(
        wide,
        *(None if one is None else np.asarray(one, np.float64) for one in given[1:3]),
        lengths,
        *(None if one is None else one.astype(np.float64) for one in given[4:7]),
    )

    def beside(compute: Any) -> dict[str, Any]:
        expected = compute(reference)
        deviations = {key: deviation(found[key], expected[key]) for key in found if key in expected}
        worst = max(deviations, key=deviations.get)
        return {"deviation": deviations[worst], "worst": worst, "ok": deviations[worst] <= bound}

    facts = {"seconds": time.perf_counter() - start, "algorithm": _algorithm(desc, lengths, len(given.x[0]))}
    if desc.cell_clip is None and desc.input_mode == "linear" and desc.bias in ("both", "none"):  # else not in PyTorch
        facts |= beside(_in_torch)
    here.add(name, **facts)
    return lambda: here.add(f"{name}, CPU engine", **beside(_on_cpu))


def _problem(desc: rnnkit.RNNDescriptor, lengths: Any) -> Problem:
    rng, batch, rows = np.random.default_rng(0), 8 if lengths is None else len(lengths), desc.num_pseudo_layers
    draw = partial(rng.uniform, -1, 1)
    x, hx = draw((STEPS, batch, desc.input_size)), draw((rows, batch, desc.output_size))
    cx = 0.2 * draw((rows, batch, desc.hidden_size)) if desc.has_cell_state else None
    dy = draw((STEPS, batch, desc.num_directions * desc.output_size))
    x, hx, cx, dy = (None if one is None else one.astype(desc.np_dtype) for one in (x, hx, cx, dy))
    return Problem(desc, rnnkit.init_weights(desc, seed=0), x, lengths, hx, cx, dy)


def _arrays(given: Problem) -> tuple[Any, ...]:
    return given.w, given.x, given.hx, given.cx, given.dy


def _on_cpu(given: Problem) -> dict[str, np.ndarray]:
    w, x, hx, cx, dy = _arrays(given)
    forward = rnnkit.forward(given.desc, w, x, hx, cx, lengths=given.lengths)
    gradients = rnnkit.backward(given.desc, w, forward.workspace, dy)
    found = {**forward._asdict(), **gradients._asdict(), "infer": forward.y}
    return {key: one for key, one in found.items() if isinstance(one, np.ndarray)}


def _in_torch(given: Problem) -> dict[str, np.ndarray]:
    """PyTorch has no sequences of length 0: they are left out, and their final states are not compared."""
    desc, lengths = given.desc, given.lengths
    module = torch_module(torch, given)
    x, hx, cx, dy = (None if one is None else torch.from_numpy(one).requires_grad_() for one in _arrays(given)[1:])
    kept = [n for n, length in enumerate(lengths or [STEPS] * x.shape[1]) if length]
    states = hx[:, kept] if cx is None else (hx[:, kept], cx[:, kept])
    if lengths is None:
        y, ends = module(x, states)
    else:
        counts, pack = [lengths[n] for n in kept], torch.nn.utils.rnn
        packed, ends = module(pack.pack_padded_sequence(x[:, kept], counts, enforce_sorted=False), states)
        y = torch.zeros_like(dy)
        y = y.index_copy(1, torch.tensor(kept), pack.pad_packed_sequence(packed, total_length=STEPS)[0])
    y.backward(dy.detach())
    found = {"y": y, "infer": y, "dx": x.grad, "dhx": hx.grad, "dcx": None if cx is None else cx.grad}
    if lengths is None:
        found |= dict(zip(("hy", "cy"), ends if desc.has_cell_state else (ends,), strict=False))
    found = {key: one.detach().numpy() for key, one in found.items() if one is not None}
    dw, named = np.zeros_like(given.w), dict(module.named_parameters())
    for key, view in rnnkit.weight_views(desc, dw).items():
        view[...] = named[key].grad.numpy()
    return found | {"dw": dw}


def _algorithm(desc: rnnkit.RNNDescriptor, lengths: Any, batch: int) -> str:
    """Return cuDNN's number of the algorithm of a training step."""
    layout = cudnn.SEQ_MAJOR_UNPACKED if lengths is None else cudnn.SEQ_MAJOR_PACKED
    here, shape = context.context(), Shape(layout, STEPS, (STEPS,) * batch)
    refused = (desc, shape, cudnn.TRAINING) in here._refused
    return f"{here._algorithm(desc, shape, cudnn.TRAINING)}{' refused' if refused else ''}"


def _dropout(here: Here) -> None:
    desc = rnnkit.RNNDescriptor("lstm", 12, 24, num_layers=2, dropout=0.5)
    w, x = cupy.asarray(rnnkit.init_weights(desc, seed=0)), cupy.asarray(np.ones((STEPS, 4, 12), np.float32))
    ys = [rnnkit.forward(desc, w, x, seed=seed).y.get() for seed in (1, 1, 2)]
    same, differs = np.array_equal(ys[0], ys[1]), not np.array_equal(ys[0], ys[2])
    here.add("dropout", same_seed_same_bits=same, other_seed_differs=differs, ok=bool(same and differs))


def _module(here: Here, kind: str) -> None:
    """A module on a stream of its own, beside PyTorch's."""
    found = []
    for library in (torch.nn, rnnkit.torch):
        torch.manual_seed(0)
        module = getattr(library, kind)(12, 24, 2, bidirectional=True, dtype=torch.float64, device=here.device)
        x = torch.randn(STEPS, 4, 12, dtype=torch.float64, device=here.device, requires_grad=True)
        with nullcontext() if here.stand_in else torch.cuda.stream(torch.cuda.Stream()):
            output = module(x)[0]
            found.append((output, *torch.autograd.grad(output.sin().sum(), [x, *module.parameters()])))
            if not here.stand_in:
                torch.cuda.current_stream().synchronize()
    worst = max(float((own - plain).detach().abs().max()) for own, plain in zip(*found, strict=True))
    here.add(f"rnnkit.torch.{kind}", deviation=worst, ok=worst < 1e-9)
