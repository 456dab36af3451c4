"""Cells as functions of arrays: the engine has the same values, and gradients that other code derives."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from combinations import nightly, weekly
from messages import raises
from optional import needs
from other_cells import DEFAULT, KINDS, OWN, whole_heads
from problems import Problem
from several_states import arrays_of, as_given

import rnnkit
from examples.gallery.page import CELLS as PAGE
from rnnkit.cells import AUGRU, SLSTM, RegularizedLSTM, cell, derivative, forward, step, unrolled
from rnnkit_kernels.cells.running import with_defaults

N, T, INPUT, BOUND = 5, 6, 3, 1e-12
MODES = {
    "rnn_tanh": {}, "rnn_relu": {}, "gru": {}, "reset before": {"mode": "gru", "reset_after": False}, "lstm": {},
    "clipped": {"mode": "lstm", "cell_clip": (-0.3, 0.4)}, "projected": {"mode": "lstm", "proj_size": 3},
    "skipped": {"mode": "gru", "input_mode": "skip", "input_size": 8},
}  # fmt: skip
GALLERY = {name: with_defaults(kind) for name, kind in PAGE.items() if kind.__module__.startswith("examples")}
SHIPPED = {name for name, dtype in DEFAULT if dtype == "float64"}  # their kernels are compiled by others, too
EACH = [pytest.param({"mode": name} | options, id=name) for name, options in MODES.items()]
EACH += [(pytest.param if name in SHIPPED else weekly)({"mode": one}, id=name) for name, one in (KINDS | OWN).items()]
EACH += [weekly({"mode": one}, id=name) for name, one in GALLERY.items()]


class Case:
    """A layer of a cell, what a step takes, and the engine's results and gradients."""

    def __init__(self, fields):
        kind, rng = fields["mode"], np.random.default_rng(0)
        size = 8 if isinstance(kind, str) else whole_heads(kind, 8)
        inputs = INPUT if isinstance(kind, str) or kind.declaration.input_gates else 0
        desc = self.desc = rnnkit.RNNDescriptor(**{"input_size": inputs} | fields, hidden_size=size, dtype="float64")
        w, self.x = rnnkit.init_weights(desc, 0), rng.normal(size=(N, desc.input_size))
        self.weights = {name.removesuffix("_l0"): one for name, one in rnnkit.weight_views(desc, w).items()}
        self.states = [rng.normal(size=(N, desc.output_size))]
        self.states += [rng.normal(size=(N, size)) + (3 if name == "n" else 0) for name in desc.states]
        self.inputs = {one.name: rng.random((N, size)) for one in desc.cell.declaration.inputs}
        self.cotangents = [rng.normal(size=one.shape) for one in self.states]
        given = self.x[None], self.states[0][None], as_given([one[None] for one in self.states[1:]])
        sides = {name: one[None] for name, one in self.inputs.items()} or None
        found = rnnkit.forward(desc.evaluating, w, *given, inputs=sides)
        dhy, *dcy = (one[None] for one in self.cotangents)
        back = rnnkit.backward(desc.evaluating, w, found.workspace, None, dhy, as_given(dcy))
        self.values = [found.hy[0], *(one[0] for one in arrays_of(found.cy))]
        of_weights = {name.removesuffix("_l0"): one for name, one in rnnkit.weight_views(desc, back.dw).items()}
        self.gradients = {**of_weights, "x": back.dx[0], "h": back.dhx[0]}
        self.gradients |= dict(zip(desc.states, (one[0] for one in arrays_of(back.dcx)), strict=True))

    def leaves(self):
        return {**self.weights, "x": self.x, **dict(zip(("h", *self.desc.states), self.states, strict=True))}

    def run(self, backend, leaves, inputs):
        states = [leaves[name] for name in ("h", *self.desc.states)]
        weights = {name: leaves[name] for name in self.weights}
        return step(self.desc, backend)(weights, leaves["x"], *states, inputs=inputs)


def assert_near(name, found, expected):
    found = np.asarray(found)
    assert found.shape == expected.shape, name
    worst = np.abs(found - expected).max(initial=0) / max(1, np.abs(expected).max(initial=0))
    assert worst < BOUND, f"{name}: {worst}"


@pytest.mark.parametrize("fields", EACH)
def test_step_of_numpy_has_the_engines_values(fields):
    case = Case(fields)
    for name, found, expected in zip(
        ("h", *case.desc.states), case.run("numpy", case.leaves(), case.inputs), case.values, strict=True
    ):
        assert_near(name, found, expected)


@pytest.mark.parametrize("fields", EACH)
def test_autograd_of_pytorch_has_the_engines_gradients(fields):
    torch, case = needs("torch"), Case(fields)
    leaves = {name: torch.tensor(one, requires_grad=True) for name, one in case.leaves().items()}
    found = case.run("torch", leaves, {name: torch.tensor(one) for name, one in case.inputs.items()})
    for name, one, expected in zip(("h", *case.desc.states), found, case.values, strict=True):
        assert_near(name, one.detach(), expected)
    total = sum((one * torch.tensor(d)).sum() for one, d in zip(found, case.cotangents, strict=True))
    gradients = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    for name, one in zip(leaves, gradients, strict=True):
        assert_near(f"d{name}", one, case.gradients[name])


@pytest.mark.parametrize("fields", EACH)
def test_gradient_of_jax_is_the_engines(fields):
    jax, case = needs("jax"), Case(fields)
    with jax.enable_x64(True):

        def total(leaves):
            found = case.run("jax", leaves, case.inputs)
            return sum((one * d).sum() for one, d in zip(found, case.cotangents, strict=True))

        for name, one in jax.jit(jax.grad(total))(case.leaves()).items():
            assert_near(f"d{name}", one, case.gradients[name])


MASK = np.random.default_rng(3).random((T, N)) < 0.6
RESETS = MASK & (np.random.default_rng(4).random((T, N)) < 0.5)
LENGTHS = [6, 0, 3, 5, 6]
OPTIONS = {
    "nothing": {}, "lengths": {"lengths": LENGTHS}, "mask": {"mask": MASK}, "resets": {"resets": RESETS},
    "resets to hx": {"resets": RESETS, "initial": "hx"},
    "all": {"lengths": LENGTHS, "mask": MASK, "resets": RESETS},
}  # fmt: skip
NETWORKS = {
    "lstm": dict(mode="lstm", bidirectional=True), "projected": dict(mode="lstm", proj_size=3),
    "gru": dict(mode="gru", bidirectional=True), "three states": dict(mode=SLSTM()),
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_unrolled_network_has_the_engines_values(backend, kind, options):
    convert = (lambda one: one) if backend == "numpy" else needs("torch").tensor
    problem = Problem(**NETWORKS[kind], num_layers=2, hidden_size=5, seq_len=T, batch_size=N)
    run, options = unrolled(problem.desc, backend), OPTIONS[options]
    for states in ((problem.hx, problem.cx), (None, None)):
        expected = rnnkit.infer(problem.desc, problem.w, problem.x, *states, **options)
        given = [None if one is None else as_given([convert(part) for part in arrays_of(one)]) for one in states]
        found = run(convert(problem.w), convert(problem.x), *given, **options)
        for name in ("y", "hy", "cy"):
            pairs = zip(arrays_of(getattr(found, name)), arrays_of(getattr(expected, name)), strict=True)
            for ours, wanted in pairs:
                assert_near(name, ours, wanted)


def test_unrolled_network_takes_side_inputs_own_states_masks_and_noises():
    net, rng = rnnkit.Network(AUGRU, 3, 5, dtype="float64", seed=0), np.random.default_rng(0)
    x, sides = rng.normal(size=(T, N, 3)), {"attention": rng.random((T, N, 5))}
    assert_near("y", unrolled(net.desc, "numpy")(net.weights, x, inputs=sides).y, net.infer(x, inputs=sides).y)
    net = rnnkit.GRU(3, 5, 2, dtype="float64", seed=0, learned_initial_state=True)
    net.views["h0_l1"][:] = 0.5
    assert_near("y", unrolled(net.desc, "numpy")(net.weights, x, resets=RESETS).y, net.infer(x, resets=RESETS).y)
    net = rnnkit.GRU(3, 5, 2, dropout=0.5, dtype="float64", seed=0)
    result = net.forward(x, seed=1)
    masks = [np.asarray(result.workspace.arrays["mask_l1"]) * 2.0]
    assert_near("y", unrolled(net.desc, "numpy")(net.views, x, masks=masks).y, result.y)
    net = rnnkit.Network(RegularizedLSTM(zoneout=0.25, recurrent_dropout=0.5), 3, 5, dtype="float64", seed=0)
    result, noises = net.forward(x, seed=1), {}
    at = {False: 0, True: 0}
    for one in net.desc.cell.declaration.noises:
        drawn = result.workspace.arrays["step_noises_0" if one.per_step else "noises_0"]
        noises[one.name] = np.array(drawn[..., at[one.per_step] : at[one.per_step] + 5])[None]
        at[one.per_step] += 5
    assert_near("y", unrolled(net.desc, "numpy")(net.weights, x, noises=noises).y, result.y)


def test_second_derivatives_are_right():
    """What the engine does not have: by PyTorch's own check."""
    torch = needs("torch")
    for fields in (dict(mode="lstm"), dict(mode="gru", reset_after=False), dict(mode=SLSTM())):
        desc = rnnkit.RNNDescriptor(input_size=2, hidden_size=3, dtype="float64", **fields)
        run, w = unrolled(desc, "torch"), torch.tensor(rnnkit.init_weights(desc, 0), requires_grad=True)
        x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradgradcheck(lambda w, x, run=run: run(w, x, lengths=[3, 1]).y, (w, x))


@pytest.mark.parametrize("backend", [nightly("torch"), nightly("jax")])
def test_samples_have_gradients_of_their_own(backend):
    """By the library's vmap, over a loop of the engine's calls."""
    library = needs(backend)
    net, x = rnnkit.GRU(3, 5, dtype="float64", seed=0), np.random.default_rng(0).normal(size=(T, N, 3))
    run = unrolled(net.desc, backend)
    if backend == "torch":
        found = library.func.vmap(library.func.grad(lambda w, one: run(w, one[:, None]).y.sum()), (None, 1))(
            library.tensor(net.weights), library.tensor(x)
        )
    else:
        with library.enable_x64(True):
            found = library.vmap(library.grad(lambda w, one: run(w, one[:, None]).y.sum()), (None, 1))(net.weights, x)
    for n in range(N):
        result = net.forward(x[:, n : n + 1])
        assert_near(str(n), found[n], net.backward(result.workspace, np.ones_like(result.y)).dw)


@derivative(math.atan, numpy=np.arctan)
def of_atan(x):
    return 1 / (1 + x * x)


@cell(gates="a")
class Turning(NamedTuple):
    @forward("h")
    def step(self, a, h_prev):
        return math.atan(a) + 0.5 * h_prev


def test_function_with_a_declared_derivative_needs_a_form():
    weights = {"weight_ih": np.eye(3), "weight_hh": np.zeros((3, 3))}
    (h,) = step(Turning, "numpy")(weights, np.ones((2, 3)), np.zeros((2, 3)))
    assert np.array_equal(h, np.full((2, 3), math.pi / 4))
    needs("torch")
    with raises(TypeError, "step: cell Turning: atan | form for torch | @derivative(atan, torch=...)"):
        step(Turning, "torch")


def test_wrong_arguments_are_refused():
    with raises(ValueError, "step: backend | numpy, torch, jax | 'cupy'"):
        step("gru", "cupy")
    with raises(ValueError, "step: cell | \"lstm\" | 'mgu'"):
        step("mgu", "numpy")
    with raises(TypeError, "step: weights | mapping | list"):
        step("gru", "numpy")([], np.ones((2, 3)), np.zeros((2, 3)))
    with raises(TypeError, "unrolled: desc | RNNDescriptor | str"):
        unrolled("gru", "numpy")
    with raises(rnnkit.cells.CellError, "@derivative: forms | numpy, torch or jax | cupy=1"):
        derivative(math.atan, cupy=1)
