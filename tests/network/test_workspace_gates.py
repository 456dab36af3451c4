"""`Workspace.gates`: the activated gates are those of the equations, whatever a cell saves for its gradient."""

from typing import NamedTuple

import numpy as np
import pytest
from messages import raises
from problems import Problem, problem_of
from reference import ACTIVATIONS, sigmoid
from several_states import arrays_of
from tolerances import TABLE, assert_within

import rnnkit


class Twin(NamedTuple):
    """The gates of W and of R, in the order of their rows, and the equations of all gates in NumPy."""

    of_w: str
    of_r: str
    gates: object


def of_lstm(a, before, now, own):
    return {"i": sigmoid(a("i")), "f": sigmoid(a("f")), "g": np.tanh(a("g")), "o": sigmoid(a("o"))}


def of_gru(a, before, now, own):
    r, z = sigmoid(a("r")), sigmoid(a("z"))
    return {"r": r, "z": z, "n": np.tanh(a("n", None) + r * (a("n") - a("n", None)))}


def of_gru_reset_before(a, before, now, own):
    r, z = sigmoid(a("r")), sigmoid(a("z"))
    return {"r": r, "z": z, "n": np.tanh(a("n", r * before["h"]))}


def of_peephole(a, before, now, own):
    def gate(x):
        return ACTIVATIONS["HardSigmoid"](x, 0.3, 0.4)

    i, f = gate(a("i") + own["peephole_i"] * before["c"]), gate(a("f") + own["peephole_f"] * before["c"])
    g = ACTIVATIONS["Softsign"](a("g"))
    return {"i": i, "f": f, "g": g, "o": gate(a("o") + own["peephole_o"] * now["c"])}


def of_slstm(a, before, now, own):
    f = ACTIVATIONS["log_sigmoid"](a("f")) + before["m"] - now["m"]
    return {"z": np.tanh(a("z")), "i": np.exp(a("i") - now["m"]), "f": np.exp(f), "o": sigmoid(a("o"))}


def of_lem(a, before, now, own):
    times = {name: sigmoid(a(name)) for name in ("ty", "tz")}
    return times | {"n": np.tanh(a("n")), "y": np.tanh(a("y", now["z"]))}


TWINS = {
    "tanh": Twin("a", "a", lambda a, *_: {"a": np.tanh(a("a"))}),
    "relu": Twin("a", "a", lambda a, *_: {"a": np.maximum(a("a"), 0)}),
    "lstm": Twin("i f g o", "i f g o", of_lstm),
    "lstm-projected-clipped": Twin("i f g o", "i f g o", of_lstm),
    "gru": Twin("r z n", "r z n", of_gru),
    "gru-reset-before": Twin("r z n", "r z n", of_gru_reset_before),
    "peephole-hard": Twin("i f g o", "i f g o", of_peephole),
    "slstm-sigmoid": Twin("z i f o", "z i f o", of_slstm),
    "lem": Twin("ty tz n y", "ty tz n y", of_lem),
    "own-feedforward": Twin("f z", "", lambda a, *_: {"f": sigmoid(a("f", None)), "z": np.tanh(a("z", None))}),
}
SIZES = dict(num_layers=2, bidirectional=True, seq_len=5, batch_size=4)


def twin_gates(twin, problem, workspace, layer, direction):
    """The gates of a layer from its weights and its states before each step; zeros where no step runs."""
    suffix, row = f"_l{layer}" + "_reverse" * direction, 2 * layer + direction
    own = {name.removesuffix(suffix): view for name, view in problem.views.items() if name.endswith(suffix)}
    names = "h", *problem.desc.states
    below = np.concatenate([workspace.hidden(layer - 1, d) for d in range(2)], 2) if layer else problem.x
    states = {name: workspace.state(name, layer, direction) for name in names}
    initial = dict(zip(names, (problem.hx, *arrays_of(problem.cx)), strict=True))
    lengths = problem.valid.sum(0)
    runs = problem.valid if problem.mask is None else problem.valid & problem.mask
    size, found = problem.hidden_size, {}

    def rows(block, bias, gates, name, operand):
        place = slice(gates.index(name) * size, (gates.index(name) + 1) * size)
        return own[block][place] @ operand + own[bias][place]

    for t, n in zip(*np.nonzero(runs), strict=True):
        earlier = t + 1 if direction else t - 1
        at_start = not 0 <= earlier < lengths[n]
        before = {name: initial[name][row, n] if at_start else states[name][earlier, n] for name in names}

        def a(name, operand="h", t=t, n=n, before=before):
            """W x + bW of a gate, and unless `operand` is None R operand + bR."""
            found = rows("weight_ih", "bias_ih", twin.of_w.split(), name, below[t, n])
            operand = before["h"] if isinstance(operand, str) else operand
            return found if operand is None else found + rows("weight_hh", "bias_hh", twin.of_r.split(), name, operand)

        now = {name: state[t, n] for name, state in states.items()}
        for name, gate in twin.gates(a, before, now, own).items():
            found.setdefault(name, np.zeros((*runs.shape, size)))[t, n] = gate
    return found


STEPS = {
    "all steps": {},
    "lengths": dict(lengths=(2, 5, 0, 3)),
    "mask": dict(masked=True),
    "lengths and mask": dict(lengths=(4, 5, 0, 3), masked=True),
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", TWINS)
def test_gates_are_those_of_the_equations(name, steps):
    problem = problem_of(name, **SIZES, **STEPS[steps])
    workspace = problem.forward().workspace
    for layer, direction in np.ndindex(2, 2):
        found = workspace.gates(layer, direction)
        expected = twin_gates(TWINS[name], problem, workspace, layer, direction)
        assert list(found) == list(expected) == [gate.name for gate in problem.desc.cell.declaration.gates]
        for gate, values in found.items():
            assert_within(f"{gate} of {layer}, {direction}", values, expected[gate], TABLE["float64"].value)
            assert values.dtype == np.float64 and values.flags.writeable


def test_gates_are_new_arrays_of_the_dtype():
    problem = Problem(mode="gru", dtype="float32")
    workspace = problem.forward().workspace
    before = workspace.gates(0)["n"].copy()
    workspace.gates(0)["n"][:] = 7
    np.testing.assert_array_equal(workspace.gates(0)["n"], before, strict=True)
    gradients = problem.backward(workspace)
    np.testing.assert_array_equal(gradients.dw, problem.backward(problem.forward().workspace).dw)
    assert before.dtype == np.float32 and before.shape == (4, 3, 4)


@pytest.mark.parametrize("seq_len", [0, 1])
def test_gates_of_few_steps(seq_len):
    problem = Problem(mode="lstm", seq_len=seq_len)
    assert problem.forward().workspace.gates(0)["f"].shape == (seq_len, 3, 4)


def test_places_that_are_not_there_are_refused():
    workspace = Problem(mode="lstm", **SIZES).forward().workspace
    for place, error, text in (
        ((2,), ValueError, "layer | 2"),
        ((0, 2), ValueError, "direction | 2"),
        ((0, 1.0), TypeError, "direction | float"),
        (("0",), TypeError, "layer | str"),
    ):
        with raises(error, f"gates: {text}"):
            workspace.gates(*place)


def test_workspaces_without_gates_are_refused():
    problem = Problem(mode="lstm", **SIZES)
    first = problem.forward().workspace
    problem.forward(workspace=first)
    with raises(rnnkit.WorkspaceError, "gates: workspace | latest forward"):
        first.gates(0)
    with raises(rnnkit.WorkspaceError, "gates: checkpoint_steps | None | 2"):
        problem.forward(checkpoint_steps=2).workspace.gates(0)
    of_gpu = problem.forward().workspace
    of_gpu.record = object()
    with raises(rnnkit.BackendError, "gates: | CPU | NumPy arrays"):
        of_gpu.gates(0)
