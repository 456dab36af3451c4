"""Cells as functions of arrays: the engine has the same values, and gradients that other code derives."""

import math

import numpy as np
import pytest
from combinations import weekly
from messages import raises
from one_step import BY_DEFAULT, FIELDS, Case, N, T, Turning, assert_near, assert_samples
from optional import needs
from problems import Problem
from several_states import arrays_of, as_given

import rnnkit
from rnnkit.cells import AUGRU, SLSTM, RegularizedLSTM, derivative, step, unrolled

EACH = [(pytest.param if name in BY_DEFAULT else weekly)(one, id=name) for name, one in FIELDS.items()]


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


@pytest.mark.nightly
def test_samples_have_gradients_of_their_own():
    """By PyTorch's vmap, over a loop of the engine's calls."""
    torch = needs("torch")
    net, x = rnnkit.GRU(3, 5, dtype="float64", seed=0), np.random.default_rng(0).normal(size=(T, N, 3))
    run = unrolled(net.desc, "torch")
    gradient = torch.func.grad(lambda w, one: run(w, one[:, None]).y.sum())
    assert_samples(net, x, torch.func.vmap(gradient, (None, 1))(torch.tensor(net.weights), torch.tensor(x)))


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
    sizes = np.ones((2, 3)), np.zeros((2, 3))
    with raises(ValueError, "step: inputs | side inputs attention | missing: attention"):
        step(AUGRU, "numpy")({}, *sizes)
    with raises(ValueError, "step: noises | (none) | keep"):
        step("gru", "numpy")({}, *sizes, noises={"keep": sizes[1]})
    run, net = unrolled(rnnkit.RNNDescriptor("gru", 3, 3, dtype="float64"), "numpy"), rnnkit.GRU(3, 3, dtype="float64")
    for options, text in (
        (dict(lengths=[3, 0]), "lengths[0] | 0..seq_len=2 | 3"),
        (dict(mask=np.ones((2, 3))), "mask | (seq_len=2, batch_size=2) | (2, 3)"),
        (dict(resets=np.ones((2, 2)), initial="cx"), "initial | zeros | hx | cx"),
        (dict(resets=np.ones((2, 2)), mask=np.eye(2)), "resets[0, 1] | 0 where mask is 0 | 1"),
    ):
        with raises(ValueError, f"unrolled: {text}"):
            run(net.weights, np.ones((2, 2, 3)), **options)
    with raises(TypeError, "unrolled: desc | RNNDescriptor | str"):
        unrolled("gru", "numpy")
    with raises(rnnkit.cells.CellError, "@derivative: forms | numpy, torch or jax | cupy=1"):
        derivative(math.atan, cupy=1)
