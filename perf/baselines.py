"""The engines: each prepares a case and returns the callable to time. A worker imports only the engine that it runs.

On a GPU ("cuda") rnnkit and PyTorch share the arrays, and a call only starts the work: `finish` waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

import rnnkit
from perf import reduced_suite, serving
from perf.cases import Case, Problem, of_mode, problem
from perf.own_lstm import OwnLSTM
from perf.subject import Subject, named
from rnnkit.common.arrays import on_host
from rnnkit.network.classes import CLASSES

RNNKIT, BY_HAND, UNFUSED, FLOAT32 = "rnnkit", "by-hand", "unfused", "float32"
CELL_LOOPS = ("torch-loop", "torch-compiled", "numba", "built-in")  # for cells that are not modes (`cell_suite`)
COMPETITORS = ("torch", *reduced_suite.TRAINING, "onnxruntime", "openvino", BY_HAND, UNFUSED, *CELL_LOOPS, FLOAT32)
TABLES = ("ds2", "ds2-bi5")  # the families that have a non-fused row


def prepare(engine: str, case: Case, pass_name: str, threads: int, device: str = "cpu") -> Subject:
    """Return the case ready to run."""
    given = problem(case, pass_name)
    if engine == RNNKIT and device == "cuda":
        return _rnnkit_on_gpu(given, pass_name, threads)
    if engine in ("torch", *reduced_suite.TRAINING):
        kept = given._replace(precision=None) if engine == "torch-float32" else given
        return _torch(kept, pass_name, threads, device, is_autocast=engine == "torch" and pass_name == "train")
    if engine in CELL_LOOPS:
        return _cell_loop(engine, given, pass_name, threads)
    if engine == FLOAT32:
        return _rnnkit(given._replace(precision=None), pass_name, threads)
    if engine == BY_HAND:
        return _by_hand(given, rnnkit.prepare(given.desc, given.w).step)
    others = {RNNKIT: _rnnkit, UNFUSED: _unfused, "onnxruntime": _onnxruntime, "openvino": _openvino}
    return others[engine](given, pass_name, threads)


def refusal(engine: str, case: Case, pass_name: str, device: str = "cpu") -> str | None:
    """Return why the engine cannot run a case, or None."""
    if device == "cuda" and engine != "torch":
        return "not on a GPU"
    if engine == FLOAT32 and case.precision is None:
        return "only of quantized weights"
    own = not isinstance(case.desc.mode, str)
    if own != (engine in CELL_LOOPS):
        return "only of modes" if own else "only of cells"
    if engine == "built-in" and case.desc.mode != OwnLSTM():
        return "only of an LSTM"
    if any(find_spec(module) is None for module in _MODULES.get(engine, ())):
        return "not installed"
    if case.precision is not None:
        return reduced_suite.refusal(engine, case, pass_name)
    if engine in reduced_suite.TRAINING:
        return "only of products of bfloat16"
    if case.alone:
        return "not asked"
    if engine == UNFUSED and case.family not in TABLES:
        return "only in the tables"
    if engine == BY_HAND and pass_name != "serve":
        return "only of streams"
    if engine == "numba" and pass_name == "train":
        return "has no train"
    if engine in ("onnxruntime", "openvino"):  # OpenVINO accepts float64 arrays, but computes in float32
        missing = {"train": pass_name == "train", "float64": case.desc.dtype == "float64", "proj": case.desc.projected}
        return next((f"has no {name}" for name, asked in missing.items() if asked), None)
    return None


def reference(case: Case, pass_name: str) -> Subject:
    """Return the case in float64, on the same numbers, step by step; of a cell that is no mode PyTorch's loop."""
    given = problem(case, pass_name)
    arrays = {name: getattr(given, name) for name in ("w", "x", "hx", "cx", "dy")}
    wide = {name: None if array is None else array.astype(np.float64) for name, array in arrays.items()}
    wide = given._replace(desc=replace(given.desc, dtype="float64", allow_tf32=False), **wide)
    if isinstance(given.desc.mode, str):
        return _unfused(wide, pass_name, 1)
    return _cell_loop("torch-loop", wide, pass_name, 1)


_MODULES = {name: ("torch",) for name in ("torch", "torch-loop", "torch-compiled", *reduced_suite.TRAINING)}
_MODULES |= {name: ("onnx", name) for name in ("onnxruntime", "openvino")}


def gradients(desc: rnnkit.RNNDescriptor, dx: np.ndarray, dw: np.ndarray) -> dict[str, np.ndarray]:
    """dx, and the gradient of each named block."""
    return {"dx": dx} | {f"d{name}": view for name, view in rnnkit.weight_views(desc, dw).items()}


def _rnnkit(given: Problem, pass_name: str, threads: int) -> Subject:
    desc, w, x, lengths = given.desc, given.w, given.x, given.lengths
    if pass_name == "train":
        return _rnnkit_train(given)
    if pass_name == "serve":
        return _server(*serving.streams(given))
    plan = rnnkit.prepare(desc, w, precision=given.precision)
    if pass_name == "step":
        return Subject(lambda: plan.step(x[0], given.hx, given.cx), lambda result: named(*result))
    return Subject(lambda: plan.infer(x, lengths=lengths), lambda result: named(*result))


def _cell_loop(engine: str, given: Problem, pass_name: str, threads: int) -> Subject:
    from perf import cell_loops

    if engine == "built-in":
        return _rnnkit(given._replace(desc=replace(given.desc, mode="lstm")), pass_name, threads)
    if engine == "numba":
        return cell_loops.numba_loop(given)
    return cell_loops.torch_loop(given, pass_name, threads, compiled=engine == "torch-compiled")


def _by_hand(given: Problem, step: Callable[..., Any]) -> Subject:
    return _server(*serving.by_hand(given, step))


def _server(run: Callable[[], Any], states: Callable[[], Any]) -> Subject:
    return Subject(run, lambda y: named(y, *states()))


def _rnnkit_on_gpu(given: Problem, pass_name: str, threads: int) -> Subject:
    import cupy

    arrays = {name: getattr(given, name) for name in ("w", "x", "hx", "cx", "dy")}
    moved = {name: None if array is None else cupy.asarray(array) for name, array in arrays.items()}
    subject = _rnnkit(given._replace(**moved), pass_name, threads)
    pool = cupy.get_default_memory_pool()
    finish = cupy.cuda.Device().synchronize
    return subject._replace(finish=finish, memory=pool.total_bytes, release=pool.free_all_blocks)


def _rnnkit_train(given: Problem) -> Subject:
    desc, w, dw = given.desc, given.w, given.w.copy()
    workspace = None

    def run():
        nonlocal workspace
        options = {"lengths": given.lengths, "workspace": workspace, "precision": given.precision}
        result = rnnkit.forward(desc, w, given.x, **options)
        workspace = result.workspace
        dw.fill(0)
        return result, rnnkit.backward(desc, w, workspace, given.dy, dw=dw)

    return Subject(run, lambda done: named(*done[0][:3]) | gradients(desc, on_host(done[1].dx), on_host(dw)))


def _unfused(given: Problem, pass_name: str, threads: int) -> Subject:
    from perf.unfused import Unfused

    network = Unfused(given.desc, given.w)
    if pass_name == "serve":

        def step(x, hx, cx):
            y, hy, cy = network.forward(x[None], hx, cx)
            return y[0], hy, cy

        return _by_hand(given, step)
    states = given.hx, given.cx, given.lengths
    if pass_name != "train":
        return Subject(lambda: network.forward(given.x, *states), lambda result: _outputs(*result, pass_name))

    def run():
        tape = []
        result = network.forward(given.x, *states, tape)
        return result, network.backward(tape, given.dy)

    return Subject(run, lambda done: _outputs(*done[0], pass_name) | gradients(given.desc, *done[1]))


def _outputs(y, hy, cy, pass_name):
    """Results of an engine whose step is a sequence of one step."""
    return named(y[0] if pass_name == "step" else y, hy, cy)


def _torch(given: Problem, pass_name: str, threads: int, device: str, is_autocast: bool = False) -> Subject:
    import torch

    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = given.desc.allow_tf32

    def move(array: np.ndarray) -> Any:
        return torch.from_numpy(array).to(device)

    module, dtype = torch_module(torch, given).to(device), getattr(torch, given.desc.dtype)
    autocast = torch.autocast(device, torch.bfloat16, enabled=is_autocast and given.precision is not None)
    if given.precision is not None and not is_autocast:
        module, dtype = reduced_suite.torch_module(torch, module, given)
    if pass_name == "serve":
        return _by_hand(given, _torch_step(torch, module, given.desc))
    x, dy = move(given.x).to(dtype), move(given.dy)
    states = None if given.hx is None else tuple(move(s).to(dtype) for s in (given.hx, given.cx) if s is not None)
    states = states if states is None or given.desc.has_cell_state else states[0]

    def forward():
        if given.lengths is None:
            return module(x, states)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.from_numpy(given.lengths), enforce_sorted=False)
        y, ends = module(packed, states)
        return torch.nn.utils.rnn.pad_packed_sequence(y, total_length=len(x))[0], ends

    def infer():
        with torch.inference_mode():
            return forward()

    def train():
        module.zero_grad(set_to_none=True)
        x.grad = None
        with autocast:
            result = forward()
        result[0].backward(dy.to(result[0].dtype))
        return result

    def results(result):
        y, ends = result
        hy, cy = ends if given.desc.has_cell_state else (ends, None)
        of = getattr(torch, given.desc.dtype)
        arrays = (None if end is None else end.detach().to("cpu", of).numpy() for end in (y, hy, cy))
        arrays = _outputs(*arrays, pass_name)
        if pass_name == "train":
            arrays["dx"] = x.grad.to("cpu", of).numpy()
            arrays |= {f"d{name}": one.grad.to("cpu", of).numpy() for name, one in module.named_parameters()}
        return arrays

    x.requires_grad_(pass_name == "train")
    subject = Subject(train if pass_name == "train" else infer, results)
    if device == "cpu":
        return subject
    memory = torch.cuda.memory_reserved
    return subject._replace(finish=torch.cuda.synchronize, memory=memory, release=torch.cuda.empty_cache)


def _torch_step(torch: Any, module: Any, desc: rnnkit.RNNDescriptor) -> Callable[..., Any]:
    """One step of PyTorch's module, on NumPy arrays."""
    of = torch.from_numpy

    def step(x, hx, cx):
        with torch.inference_mode():
            y, ends = module(of(x[None]), (of(hx), of(cx)) if desc.has_cell_state else of(hx))
        hy, cy = ends if desc.has_cell_state else (ends, None)
        return y[0].numpy(), hy.numpy(), None if cy is None else cy.numpy()

    return step


def torch_module(torch: Any, given: Problem) -> Any:
    """Return PyTorch's own module with the weights of a case."""
    desc = given.desc
    kind, options = of_mode(desc.mode, CLASSES, "torch")
    options = options | dict(bidirectional=desc.bidirectional, dtype=getattr(torch, desc.dtype))
    options["bias"] = desc.bias == "both"  # else "none": PyTorch has no other
    if desc.projected:
        options["proj_size"] = desc.proj_size
    module = getattr(torch.nn, kind)(desc.input_size, desc.hidden_size, desc.num_layers, **options)
    views = rnnkit.weight_views(desc, given.w)
    module.load_state_dict({name: torch.from_numpy(view) for name, view in views.items()})
    return module


def _onnxruntime(given: Problem, pass_name: str, threads: int) -> Subject:
    import onnxruntime

    from perf.onnx_graph import model

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Its threads spin only during a call; by default they would spin on afterwards and disturb the next engine.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    graph = model(given) if given.precision is None else reduced_suite.onnx_model(model(given))
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feeds = _graph_inputs(given)
    return _graph(given, pass_name, names, lambda: session.run(None, feeds), lambda new: session.run(None, new))


def silent_openvino() -> Any:
    """Import OpenVINO without its telemetry, which would fork a process while we time."""
    sys.modules.setdefault("openvino_telemetry", None)
    import openvino

    return openvino


def _openvino(given: Problem, pass_name: str, threads: int) -> Subject:
    from perf.onnx_graph import model

    openvino = silent_openvino()
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32" if given.precision is None else "bf16",
        "ENABLE_CPU_PINNING": False,  # else each call takes 1.5 us more (1 and 2 threads, measured)
    }
    feeds = _graph_inputs(given)
    if pass_name == "serve":  # one step of this many streams
        rows = given.rows.shape[1]
        feeds = {name: (array[:1] if name == "x" else array[:, :rows]).copy() for name, array in feeds.items()}
    core = openvino.Core()
    graph = core.read_model(model(given))
    graph.reshape({name: array.shape for name, array in feeds.items()})
    compiled = core.compile_model(graph, "CPU", options)
    request = compiled.create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, openvino.Tensor(array, shared_memory=True))

    def run():
        return request.infer(share_outputs=True).to_tuple()

    run.inputs = feeds  # a shared tensor does not keep its memory alive

    def run_on(new):
        for name, array in new.items():
            np.copyto(feeds[name], array)
        return run()

    return _graph(given, pass_name, [output.any_name for output in compiled.outputs], run, run_on)


def _graph_inputs(given: Problem) -> dict[str, np.ndarray]:
    """What an ONNX graph takes, by name."""
    lengths = None if given.lengths is None else given.lengths.astype(np.int32)
    inputs = {"x": given.x, "hx": given.hx, "cx": given.cx, "lengths": lengths}
    return {name: array for name, array in inputs.items() if array is not None}


def _graph(
    given: Problem, pass_name: str, names: list[str], run: Callable[[], Any], run_on: Callable[..., Any]
) -> Subject:
    """An ONNX graph with outputs of these names: `run` has all inputs, and `run_on` is given those of a step."""

    def step(x, hx, cx):
        found = dict(zip(names, run_on({"x": x[None], "hx": hx} | ({} if cx is None else {"cx": cx})), strict=True))
        return found["y"][0], found["hy"], found.get("cy")

    def results(arrays):
        found = dict(zip(names, arrays, strict=True))
        return _outputs(found["y"], found["hy"], found.get("cy"), pass_name)

    return _by_hand(given, step) if pass_name == "serve" else Subject(run, results)
