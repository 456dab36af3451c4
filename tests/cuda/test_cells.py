"""What cuDNN does not have, by kernels that are compiled from the equations: the same numbers as on the host.

Without a GPU the kernels run on the host, compiled by a C compiler (`standin_kernels`).
"""

import math
import sys
from typing import NamedTuple

import cuda_compiler
import numpy as np
import own_cells
import pytest
from combinations import nightly, weekly
from gpu_cases import (
    ALL,
    BY_DEFAULT,
    MODES,
    NIGHTLY,
    TOLERANCES,
    Case,
    assert_as_on_the_host,
    assert_near,
    desc_of,
    moved,
)
from messages import says
from optional import IN_CI

import rnnkit
from examples.gallery.page import CELLS
from rnnkit import cells
from rnnkit.cells import derivative, exp, forward

GALLERY = {name: one() if isinstance(one, type) else one for name, one in CELLS.items()}


def marks(probability):
    return np.random.default_rng(1).random((5, 4)) < probability


OPTIONS = {
    "plain": {},
    "lengths": {"lengths": [3, 0, 5, 1]},
    "mask": {"mask": marks(0.6)},
    "resets": {"resets": marks(0.4)},
    "resets to hx": {"resets": marks(0.4), "initial": "hx"},
    "resets and lengths": {"lengths": [3, 0, 5, 1], "resets": marks(0.4)},
    "resets and mask": {"mask": (mask := marks(0.6)), "resets": marks(0.4) & mask},
    "checkpoints": {"checkpoint_steps": 2},
    "row of a batch": {"seed": 7, "first_row": 3},
    "seed and mask": {"seed": 7, "mask": marks(0.6)},
}


BY_PART = [one if one in BY_DEFAULT else (nightly if one in NIGHTLY else weekly)(one) for one in ALL]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", BY_PART)
def test_cells_equal_the_host(gpu, name, options):
    drops = {"dropout": 0.5} if "seed" in OPTIONS[options] else {}
    for dtype in TOLERANCES:
        assert_as_on_the_host(Case(desc_of(name, dtype, **drops), options=OPTIONS[options]))


@pytest.mark.parametrize("options", [one for one in OPTIONS if one not in ("plain", "lengths")])
@pytest.mark.parametrize("name", MODES)
def test_options_that_cudnn_lacks_equal_the_host(gpu, name, options):
    drops = {"dropout": 0.5} if "seed" in OPTIONS[options] else {}
    assert_as_on_the_host(Case(desc_of(name, "float64", **drops), options=OPTIONS[options]))


@pytest.mark.parametrize("name", [weekly(one) for one in GALLERY])
def test_cells_of_papers_equal_the_host(gpu, name):
    for dtype in TOLERANCES:
        desc = rnnkit.RNNDescriptor(GALLERY[name], 4, 4, 1, True, dtype=dtype)
        assert_as_on_the_host(Case(desc, options=OPTIONS["lengths"]))


@pytest.mark.parametrize("sizes", [dict(seq_len=0), dict(batch_size=0), dict(seq_len=1, batch_size=1)], ids=str)
@pytest.mark.parametrize("name", ["lem", "layer-norm", "gru, before"])
def test_extreme_sizes_equal_the_host(gpu, name, sizes):
    assert_as_on_the_host(Case(desc_of(name), **sizes))


@pytest.mark.parametrize("options", ["plain", "resets", "seed and mask", "checkpoints"])
def test_chunks_of_steps_equal_the_host(gpu, options, monkeypatch):
    """Long calls have memory for the gates of some steps only."""
    from rnnkit.cuda import layer

    monkeypatch.setattr(layer, "_CHUNK_BYTES", 2 * 4 * 24 * 8)
    assert_as_on_the_host(Case(desc_of("peephole-hard"), seq_len=5, options=OPTIONS[options]))


@pytest.mark.parametrize("units", [17, *map(nightly, (1, 15, 31, 33, 65))])
def test_sizes_around_blocks_equal_the_host(gpu, units):
    for name in ("layer-norm", "variational"):
        desc = rnnkit.RNNDescriptor(ALL[name], 3, units, dtype="float64")
        assert_as_on_the_host(Case(desc, options={"seed": 5}))


def test_what_a_reset_to_learned_states_needs(gpu):
    for options in ("resets", "resets and mask"):
        for states in (True, False):
            desc = desc_of("lem", learned_initial_state=True)
            assert_as_on_the_host(Case(desc, options=OPTIONS[options], states=states))


def test_padding_is_never_read(gpu):
    case = Case(desc_of("augru"), options=OPTIONS["lengths"])
    expected = case.step(moved)
    beyond = np.arange(5)[:, None] >= np.array(case.options["lengths"])
    for array in (case.x, case.dy, *case.inputs.values()):
        array[beyond] = np.nan
    case.hx[:, 1] = np.nan  # of a sequence without steps
    found, gradients = case.step(moved)
    assert_near((found.y,), (expected[0].y,), 0)
    assert np.isnan(found.hy.get()[:, 1]).all()
    assert_near(gradients, expected[1], 0)


def test_nan_stays_in_its_sequence(gpu):
    case = Case(desc_of("peephole-hard", layers=1), options=OPTIONS["lengths"])
    case.x[1, 0] = np.nan
    found, expected = case.step(moved)[0].y.get(), case.step(lambda one: one)[0].y
    assert np.array_equal(np.isnan(found), np.isnan(expected)) and np.isnan(found[:3, 0]).any()
    assert not found[3:, 0].any()  # beyond its length


def test_backward_may_run_again_and_add(gpu):
    for options in ("resets", "checkpoints"):
        case = Case(desc_of("peephole-hard"), options=OPTIONS[options])
        found, gradients = case.step(moved)
        dw = moved(np.ones_like(case.w))
        cotangents = moved((case.dy, case.dhy, case.dcy))
        for _ in range(2):
            again = rnnkit.backward(case.desc, moved(case.w), found.workspace, *cotangents, dw=dw)
        assert_near(again[:3], gradients[:3], 0)
        assert_near((dw,), (2 * gradients.dw.get() + 1,), 1e-12)


@pytest.mark.parametrize("options", ["plain", "lengths", "mask"])
def test_states_of_every_step_are_those_of_the_host(gpu, options):
    case = Case(desc_of("lem"), options=OPTIONS[options])
    found, expected = case.step(moved)[0].workspace, case.step(lambda one: one)[0].workspace
    for layer in range(2):
        for direction in range(2):
            for state in ("h", *case.desc.states):
                place = state, layer, direction
                assert_near((found.state(*place),), (expected.state(*place),), 1e-12)
    with pytest.raises(rnnkit.WorkspaceError, match=says("hidden", "checkpoint_steps")):
        Case(case.desc, options=OPTIONS["checkpoints"]).step(moved)[0].workspace.hidden(0)


def test_plans_and_streams_equal_the_host(gpu):
    desc = rnnkit.RNNDescriptor(cells.LEM(), 4, 4, 2, dtype="float64")
    case = Case(desc)
    plan, expected = rnnkit.prepare(desc, moved(case.w)), case.infer(lambda one: one)
    assert_near(plan.infer(moved(case.x), moved(case.hx), moved(case.cx))[:3], expected[:3], 1e-12)
    hx, cx = moved(case.hx), moved(case.cx)
    for t in range(case.seq_len):
        y, hx, cx = plan.step(moved(case.x[t]), hx, cx)
        assert_near((y,), (expected.y[t],), 1e-12)


def test_networks_may_have_cells_of_their_own(gpu):
    net = rnnkit.Network(own_cells.OwnLSTM(), 3, 4, seed=0)
    x = np.ones((5, 2, 3), np.float32)
    assert_near((net.to(sys.modules["cupy"]).infer(moved(x)).y,), (net.infer(x).y,), 1e-5)


def _softest(x):
    return x / (1 + abs(x))


@derivative(_softest)
def _of_softest(x):
    return 1 / (1 + abs(x)) ** 2


@derivative(math.atan)
def _of_atan(x):
    return 1 / (1 + x * x)


@cells.cell(gates="a")
class Softest(NamedTuple):
    """A cell whose function has a declared derivative: its value is what its Python computes."""

    power: float = 1.5

    @forward("h")
    def update(self, a, h_prev):
        return _softest(a) + math.atan(h_prev) * exp(-h_prev * h_prev) ** self.power / 16


def test_functions_with_a_declared_derivative_run(gpu):
    assert_as_on_the_host(Case(rnnkit.RNNDescriptor(Softest(), 3, 4, dtype="float64")))


def test_long_sequences_run_without_cudnn(gpu, monkeypatch):
    from rnnkit.call import options

    monkeypatch.setattr(options, "MAX_CUDNN_STEPS", 4)
    assert_as_on_the_host(Case(desc_of("lstm")))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_of_own_cells_is_refused(gpu, dtype):
    desc = rnnkit.RNNDescriptor(own_cells.OwnLSTM, 3, 4, dtype=dtype)
    w, x = moved(rnnkit.init_weights(desc, seed=0)), moved(np.ones((2, 1, 3), desc.np_dtype))
    for call, arrays in ((rnnkit.forward, (w, x)), (rnnkit.infer, (w, x)), (rnnkit.prepare, (w,))):
        facts = f"{call.__name__}: desc.dtype", "float32", "float64", "cuDNN", dtype
        with pytest.raises(rnnkit.BackendError, match=says(*facts)):
            call(desc, *arrays)
    desc = rnnkit.RNNDescriptor("lstm", 3, 4, dtype=dtype)
    w = moved(rnnkit.init_weights(desc, seed=0))
    with pytest.raises(rnnkit.BackendError, match=says("forward: desc.dtype", "masks", dtype)):
        rnnkit.forward(desc, w, x, mask=np.ones((2, 1)))


def test_refused_call_keeps_the_workspace(gpu):
    """Nothing has been changed: the workspace that was given is good."""
    case = Case(desc_of("lem", "float32", layers=1))
    found, gradients = case.step(moved)
    half = rnnkit.RNNDescriptor("lstm", 4, 4, dtype="float16")
    w, x = moved(rnnkit.init_weights(half, seed=0)), moved(case.x.astype(half.np_dtype))
    with pytest.raises(rnnkit.BackendError, match=says("forward: desc.dtype", "float16", "checkpoints")):
        rnnkit.forward(half, w, x, checkpoint_steps=3, workspace=found.workspace)
    again = rnnkit.backward(case.desc, moved(case.w), found.workspace, *map(moved, (case.dy, case.dhy, case.dcy)))
    assert_near(again, gradients, 0)


def test_a_network_stays_usable_after_an_allocation_has_failed(standin, monkeypatch):
    import standin_cupy

    case = Case(desc_of("lem"))
    found, gradients = case.step(moved)
    w, empty, left = moved(case.w), standin_cupy.empty, []

    def failing(shape, dtype=np.float64):
        if not left:
            raise MemoryError("out of memory")
        left.pop()
        return empty(shape, dtype)

    for count in (0, 2, 5):
        left[:] = range(count)
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(standin_cupy, "empty", failing)
            rnnkit.backward(case.desc, w, found.workspace, moved(case.dy))
    again = rnnkit.backward(case.desc, w, found.workspace, *map(moved, (case.dy, case.dhy, case.dcy)))
    assert_near(again, gradients, 0)


# Loops over steps that are captured as CUDA graphs


def test_graphs_repeat_what_they_captured(gpu, monkeypatch):
    """The same loop again, with the same memory and other values in it."""
    from rnnkit.cuda import graphs

    monkeypatch.setattr(graphs, "enabled", True)
    monkeypatch.setattr(graphs, "_graphs", graphs._Graphs())
    case, workspace = Case(desc_of("layer-norm")), None
    w, inputs = moved(case.w), [case.x, 2 * case.x, 3 * case.x, -case.x]
    for x in inputs:
        found = rnnkit.forward(case.desc, w, moved(x), workspace=workspace)
        workspace = found.workspace
        assert_near((found.y,), (rnnkit.forward(case.desc, case.w, x).y,), 1e-12)
        gradients = rnnkit.backward(case.desc, w, workspace, moved(case.dy))
        expected = rnnkit.forward(case.desc, case.w, x).workspace
        assert_near(gradients, rnnkit.backward(case.desc, case.w, expected, case.dy), 1e-12)
    captured = [one for one in graphs._graphs.found.values() if one is not None]
    assert len(captured) >= case.desc.num_pseudo_layers  # at least those of forward
    monkeypatch.setattr(graphs, "_KEPT", 1)
    rnnkit.forward(case.desc, w, moved(case.x))
    assert len(graphs._graphs.found) == 1


def test_short_loops_and_streams_that_are_captured_make_no_graphs(gpu, monkeypatch):
    from rnnkit.cuda import graphs

    monkeypatch.setattr(graphs, "enabled", True)
    monkeypatch.setattr(graphs, "_graphs", graphs._Graphs())
    case, stream = Case(desc_of("lem"), seq_len=9), sys.modules["cupy"].cuda.Stream(non_blocking=True)
    plan, x = rnnkit.prepare(case.desc, moved(case.w)), moved(case.x)
    plan.infer(x[:3])
    assert not graphs._graphs.found
    with stream:
        plan.infer(x)
        known = dict(graphs._graphs.found)
        stream.begin_capture()
        y = plan.infer(x).y  # in memory of its own
        stream.end_capture()
    assert y.shape == (9, 4, 8) and graphs._graphs.found == known
    assert len(known) == case.desc.num_pseudo_layers and set(known.values()) == {None}


# CUDA's own compiler


@pytest.mark.weekly
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_nvrtc_compiles_every_cell(architecture):
    """Without a warning, and without a GPU."""
    if cuda_compiler.library() is None and not IN_CI:
        pytest.skip("needs libnvrtc: pip install nvidia-cuda-nvrtc")
    from rnnkit.cuda.common import common_source
    from rnnkit.cuda.source import source_of

    kinds = [*ALL.values(), *GALLERY.values(), *(desc_of(name).cell for name in MODES)]
    options = "-default-device", "-fmad=false", f"--gpu-architecture={architecture}"
    for dtype in map(np.dtype, TOLERANCES):
        assert cuda_compiler.compiled(common_source(dtype), options)[1] == ""
        for cell in kinds:
            for kind in ("infer", "forward", "gradient"):
                code, log = cuda_compiler.compiled(source_of(cell, dtype, False, kind, True), options)
                assert code and log == "", (cell, kind, log)
