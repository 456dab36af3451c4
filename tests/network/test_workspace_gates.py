"""`Workspace.gates`: the activated gates are those of the equations, whatever a cell saves for its gradient."""

from typing import NamedTuple

import numpy as np
import pytest
from declared_cells import declared
from messages import raises
from problems import Problem, problem_of
from reference import ACTIVATIONS, sigmoid
from several_states import arrays_of
from tolerances import TABLE, assert_within

import rnnkit
from rnnkit import cells
from rnnkit.call.gates import activated_gates
from rnnkit.cells import Noise, cell, fma, forward, gradient, tanh
from rnnkit.cells import sigmoid as logistic


def normalised(rows):
    """LN over all units of some gates together, with the eps of the cells."""
    rows = np.array(rows)
    return (rows - rows.mean()) / np.sqrt(rows.var() + 1e-5)


def of_layer_norm_lstm(d):
    own, recurrent = (dict(zip("ifgo", normalised([d[p + k] for k in "ifgo"]), strict=True)) for p in ("", "q"))
    a = {k: d[f"w{k}"] * own[k] + d[f"r{k}"] * recurrent[k] + d[f"b{k}"] for k in "ifgo"}
    return {k: np.tanh(a[k]) if k == "g" else sigmoid(a[k]) for k in "ifgo"}


def of_layer_norm_gru(d):
    own, recurrent = (dict(zip("rz", normalised([d[p + k] for k in "rz"]), strict=True)) for p in ("", "q"))
    found = {k: sigmoid(d[f"w{k}"] * own[k] + d[f"r{k}"] * recurrent[k] + d[f"b{k}"]) for k in "rz"}
    n, q = normalised(d["n"]), normalised(d["qn"])
    return found | {"n": np.tanh(d["wn"] * n + d["bn"] + found["r"] * (d["rn"] * q + d["bq"]))}


def activated(text):
    """A twin whose gates are each a function of the pre-activation alone: "s" the logistic one, "t" tanh, "r" ReLU, "-"
    none."""
    functions = {"s": sigmoid, "t": np.tanh, "r": lambda x: np.maximum(x, 0), "-": lambda x: x}
    pairs = [one.split(":") for one in text.split()]
    return lambda d: {name: functions[function](d[name]) for name, function in pairs}


def gru_of(r, z):
    return lambda d: {r: sigmoid(d[r]), z: sigmoid(d[z]), "n": np.tanh(d["n"] + sigmoid(d[r]) * d["q"])}


def of_bistable(d):
    a = 1 + np.tanh(d["a"])
    return {"a": a, "c": sigmoid(d["c"]), "n": np.tanh(d["n"] + a * d["h_prev"])}


def of_peephole(d):
    i, f = (sigmoid(d[k] + d[f"peephole_{k}"] * d["c_prev"]) for k in "if")
    return {"i": i, "f": f, "g": np.tanh(d["g"]), "o": sigmoid(d["o"] + d["peephole_o"] * d["c"])}


def slstm_of(log_f):
    def gates(d):
        i, f = np.exp(d["i"] - d["m"]), np.exp(log_f(d["f"]) + d["m_prev"] - d["m"])
        return {"z": np.tanh(d["z"]), "i": i, "f": f, "o": sigmoid(d["o"])}

    return gates


# Of each cell the gates, from what a step reads, by name, and the states after it.
SHIPPED = {
    "AUGRU": gru_of("r", "u"),
    "ActivatedLSTM": activated("i:s f:s g:t o:s"),
    "CoRNN": lambda d: {"a": np.tanh(d["a"] + d["v"])},
    "CoupledLSTM": activated("i:s g:t o:s"),
    "FastGRNN": activated("a:s"),
    "IndRNN": lambda d: {"a": np.maximum(d["a"] + d["u"] * d["h_prev"], 0)},
    "JANET": activated("f:s n:t"),
    "LEM": activated("ty:s tz:s n:t y:t"),
    "LayerNormGRU": of_layer_norm_gru,
    "LayerNormLSTM": of_layer_norm_lstm,
    "LiGRU": activated("z:s n:r"),
    "MinGRU": activated("z:s n:-"),
    "MinimalGatedUnit": activated("f:s n:t"),
    "MinimalRNN": lambda d: {"n": np.tanh(d["n"]), "u": sigmoid(d["u"] + d["v"])},
    "MultiHeadSLSTM": slstm_of(lambda f: f),
    "MultiplicativeLSTM": activated("p:- i:s f:s n:t o:s"),
    "NBR": of_bistable,
    "PeepholeLSTM": of_peephole,
    "RAN": activated("n:- i:s f:s"),
    "RegularizedGRU": gru_of("r", "z"),
    "RegularizedLSTM": activated("i:s f:s g:t o:s"),
    "SLSTM": slstm_of(lambda f: f),
    "STAR": activated("z:t k:s"),
    "UGRNN": activated("n:t g:s"),
    "VariationalGRU": gru_of("r", "z"),
    "VariationalLSTM": activated("i:s f:s g:t o:s"),
}
MODES = {
    "rnn_tanh": ({}, activated("a:t")),
    "rnn_relu": ({}, activated("a:r")),
    "lstm": ({"cell_clip": (-0.5, 0.5)}, activated("i:s f:s g:t o:s")),
    "gru": ({}, gru_of("r", "z")),
    "reset before": ({"mode": "gru", "reset_after": False}, activated("r:s z:s n:t")),
}


def slots_after(kind, drawn):
    """What the forward stages leave in the slots, (U,) for U units, and the states; nothing is compiled."""
    declaration, known = kind.declaration, dict(drawn)
    for phase in declaration.phases:
        terms = {}
        for stage in phase.forward:
            rows = [np.broadcast_to(known[name], 3) for name in stage.reads]
            made = [stage.function(kind, *map(float, numbers)) for numbers in zip(*rows, strict=True)]
            for name, values in zip(stage.writes, np.array(made).T.reshape(len(stage.writes), -1), strict=True):
                (terms if name in declaration.means else known)[name] = values
        known |= {name: values.mean() for name, values in terms.items()}
    slots = [known.get(name, np.full(3, np.nan)) for name in declaration.slots]
    return slots, {name: known[name] for name in declaration.states}


def drawn_for(kind, seed=0):
    """All that a step reads, by name."""
    declaration, rng = kind.declaration, np.random.default_rng(seed)
    names = [gate.name for gate in declaration.gates] + [gate.apart for gate in declaration.gates if gate.apart]
    names += ["h_prev", *(f"{state}_prev" for state in declaration.states), *(one.name for one in declaration.given())]
    scalars = {one.name for one in declaration.scalars}
    return {name: rng.uniform(0.2, 1.2, None if name in scalars else 3) * rng.choice([-1, 1]) for name in names}


def gates_of(kind, drawn, names=None):
    saved, _ = slots_after(kind, drawn)
    return activated_gates(kind, lambda number: saved[number].copy(), names)


def assert_gates(kind, expected_of, seeds=(0,)):
    for seed in seeds:
        drawn = drawn_for(kind, seed)
        found, expected = gates_of(kind, drawn), expected_of(slots_after(kind, drawn)[1] | drawn)
        assert [*found] == [*expected]
        for gate, values in expected.items():
            assert_within(gate, found[gate], values, TABLE["float64"].value)


def test_every_shipped_cell_is_compared():
    kinds = {name for name, one in vars(cells).items() if hasattr(one, "declaration")} | {*cells.__all__}
    assert {name for name in kinds if hasattr(getattr(cells, name), "declaration")} == SHIPPED.keys()


@pytest.mark.parametrize("name", SHIPPED)
def test_gates_of_shipped_cells(name):
    assert_gates(getattr(cells, name)(), SHIPPED[name], range(3))


@pytest.mark.parametrize("mode", MODES)
def test_gates_of_modes(mode):
    options, expected_of = MODES[mode]
    assert_gates(rnnkit.RNNDescriptor(**{"mode": mode, "input_size": 3, "hidden_size": 3} | options).cell, expected_of)


def test_parameters_of_a_cell_are_in_its_gates():
    drawn = drawn_for(cells.LEM())
    assert_within("ty", gates_of(cells.LEM(dt=0.25), drawn)["ty"], 0.25 * sigmoid(drawn["ty"]), TABLE["float64"].value)


@cell(gates="a b s", noises=[Noise("keep", "rate", per_step=True)])
class Varied(NamedTuple):
    """Gates with other names on the way, one that a random number follows, and one that is read twice."""

    rate: float = 0.0

    @forward("h")
    def step(self, a, b, s, h_prev, keep):
        a = 2 * a
        a = 3 + tanh(a)
        b = keep * tanh(b)
        return fma(a, h_prev, b) + s * logistic(s)


def swish(x):
    t = logistic(x)
    return x * t


@forward("h")
def arithmetic(self, t, v, u, d, q, e, h_prev):
    u = logistic(u + (2 * v if h_prev < 0 else v) / (3 + h_prev))
    return fma(u, h_prev, swish(t)) + (1 / d + fma(q, q, 1)) + e


@forward("a h")
def of_loop(self, a):
    for _ in range(2):
        a = tanh(a)
    return a, a


@gradient("da")
def through_loop(self, a, dh):
    return dh * a


def test_gates_of_own_cells():
    def of_varied(d):
        return {"a": 3 + np.tanh(2 * d["a"]), "b": np.tanh(d["b"]), "s": d["s"] * sigmoid(d["s"])}

    def of_arithmetic(d):
        """A helper with a variable that is named like a gate; two gates of one function, named after the second; and
        functions of gates without a name. e is linear, and its gradient needs no value of it."""
        u = sigmoid(d["u"] + d["v"] * np.where(d["h_prev"] < 0, 2, 1) / (3 + d["h_prev"]))
        return {"t": d["t"] * sigmoid(d["t"]), "u": u, "d": 1 / d["d"], "q": d["q"] ** 2 + 1, "e": d["e"]}

    assert_gates(Varied(0.5), of_varied)
    assert_gates(declared(arithmetic, gates="t v u d q e")(), of_arithmetic)
    assert_gates(declared(of_loop, through_loop)(), lambda d: {"a": np.tanh(np.tanh(d["a"]))})


@forward("h")
def ambiguous(self, n, a, h_prev):
    return fma(logistic(a + h_prev), tanh(n), logistic(a - h_prev))


@forward("h")
def mixed(self, a, h_prev):
    return fma(tanh(a), h_prev, a)


@forward("c h")
def in_two_states(self, a, c_prev):
    return c_prev + a, tanh(a)


@forward("h")  # the gradient needs two functions of p and nothing of n: the slot of n holds one of them
def overwritten(self, n, p):
    p = tanh(p) * logistic(p)
    return p + n


@forward("b kept h")
def unnamed_loop(self, a, b):
    for _ in range(2):
        a = tanh(a)
    return tanh(b), a, a * tanh(b)


@gradient("da db")
def through_unnamed(self, b, kept, dh):
    return dh * b, dh * kept


OVERWRITTEN = declared(overwritten, gates="n p")()
UNNAMED = declared(unnamed_loop, through_unnamed, gates="a b", slots="kept")()
REFUSED = [
    (declared(ambiguous, gates="n a")(), "a", "one function | several | assign the activated gate to the name a"),
    (declared(mixed)(), "a", "one function | several"),
    (declared(in_two_states, states="c")(), "a", "one function | several"),
    (OVERWRITTEN, "n", "computed from what forward saves | depends on n"),
    (UNNAMED, "a", "by a stage | equations that cannot be read"),
]


@pytest.mark.parametrize(("kind", "name", "text"), REFUSED)
def test_gates_that_are_no_single_value_are_refused(kind, name, text):
    with raises(ValueError, f"gates: the gate {name} of Mine | {text}"):
        gates_of(kind, drawn_for(kind), names=[name])


def test_gates_that_cannot_be_computed_are_left_out():
    found = gates_of(OVERWRITTEN, drawn_for(OVERWRITTEN))
    assert found and "n" not in found


def test_gates_that_enter_one_function_are_one_entry():
    workspace = rnnkit.Network(cells.CoRNN(), 3, 4, seed=0).forward(np.ones((2, 1, 3), np.float32)).workspace
    assert workspace.joined_gates() == {"a": ("a", "v")}
    assert [*workspace.gates(0)] == ["a"] and [*workspace.gates(0, names=["a"])] == ["a"]
    with raises(ValueError, "gates: names | name an entry | 'v' | \"a\""):
        workspace.gates(0, names=["v"])
    with raises(ValueError, "gates: names | \"a\" | 'other'"):
        workspace.gates(0, names=["other"])


def rows_of_steps(problem, workspace, layer, direction):
    """What each step that runs reads of a row: (t, n) -> by name, from the weights and the states before it."""
    suffix, row = f"_l{layer}" + "_reverse" * direction, 2 * layer + direction
    own = {name.removesuffix(suffix): view for name, view in problem.views.items() if name.endswith(suffix)}
    below = np.concatenate([workspace.hidden(layer - 1, d) for d in range(2)], 2) if layer else problem.x
    names, gates = ("h", *problem.desc.states), problem.desc.cell.declaration.gates
    after = {name: workspace.state(name, layer, direction) for name in names}
    initial = dict(zip(names, (problem.hx, *arrays_of(problem.cx)), strict=True))
    runs = problem.valid & (True if problem.mask is None else problem.mask)
    lengths, size, found = problem.valid.sum(0), problem.hidden_size, {}
    for t, n in zip(*np.nonzero(runs), strict=True):
        earlier = t + 1 if direction else t - 1
        at_start = not 0 <= earlier < lengths[n]
        d = {f"{name}_prev": initial[name][row, n] if at_start else after[name][earlier, n] for name in names}
        states = {"h": d["h_prev"]} | {name: after[name][t, n] for name in problem.desc.states}
        of_w = (own["weight_ih"] @ below[t, n] + own["bias_ih"]).reshape(-1, size)
        d |= dict(zip([gate.name for gate in gates], of_w, strict=True))
        for number, gate in enumerate(gate for gate in gates if gate.multiplies):
            of_r = (own["weight_hh"] @ states[gate.multiplies] + own["bias_hh"]).reshape(-1, size)[number]
            d[gate.apart or gate.name] = of_r if gate.apart else d[gate.name] + of_r
        found[t, n] = states | d
    return found


ENGINE = {
    "lstm-projected-clipped": MODES["lstm"][1],
    "gru": MODES["gru"][1],
    "slstm-sigmoid": slstm_of(ACTIVATIONS["log_sigmoid"]),
    "lem": SHIPPED["LEM"],
    "own-feedforward": activated("f:s z:t"),
}
STEPS = {
    "all steps": {},
    "lengths": dict(lengths=(2, 5, 0, 3)),
    "mask": dict(masked=True),
    "lengths and mask": dict(lengths=(4, 5, 0, 3), masked=True),
}
SIZES = dict(num_layers=2, bidirectional=True, seq_len=5, batch_size=4)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", ENGINE)
def test_gates_are_those_of_the_equations(name, steps):
    problem = problem_of(name, **SIZES, **STEPS[steps])
    workspace = problem.forward().workspace
    for layer, direction in np.ndindex(2, 2):
        found, expected = workspace.gates(layer, direction), {}
        for place, d in rows_of_steps(problem, workspace, layer, direction).items():
            for gate, values in ENGINE[name](d).items():
                expected.setdefault(gate, np.zeros((5, 4, problem.hidden_size)))[place] = values
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
