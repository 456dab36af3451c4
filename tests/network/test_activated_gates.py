"""Activated gates of cells, shipped and own, from what forward leaves in the slots."""

from typing import NamedTuple

import numpy as np
import pytest
from messages import raises
from reference import sigmoid
from tolerances import TABLE, assert_within

import rnnkit
from rnnkit import cells
from rnnkit.call.gates import activated_gates
from rnnkit.cells import Noise, cell, fma, forward, gradient, tanh
from rnnkit.cells import sigmoid as logistic

# What of each cell is a gate: no kernel is compiled here. `slots_after` runs what kernels run, as Python functions.


def slots_after(kind, drawn):
    """What the forward stages leave in the slots, (U,) for U units, and all that a step reads, by name."""
    declaration, known = kind.declaration, dict(drawn)
    for phase in declaration.phases:
        terms = {}
        for stage in phase.forward:
            rows = [np.broadcast_to(known[name], 3) for name in stage.reads]
            made = [stage.function(kind, *map(float, numbers)) for numbers in zip(*rows, strict=True)]
            for name, values in zip(stage.writes, np.array(made).T.reshape(len(stage.writes), -1), strict=True):
                (terms if name in declaration.means else known)[name] = values
        known |= {name: values.mean() for name, values in terms.items()}
    return [known.get(name, np.full(3, np.nan)) for name in declaration.slots]


def drawn_for(kind, seed):
    declaration, rng = kind.declaration, np.random.default_rng(seed)
    names = [gate.name for gate in declaration.gates] + [gate.apart for gate in declaration.gates if gate.apart]
    names += ["h_prev", *(f"{state}_prev" for state in declaration.states), *(one.name for one in declaration.given())]
    scalars = {one.name for one in declaration.scalars}
    return {name: rng.uniform(0.2, 1.2, None if name in scalars else 3) * rng.choice([-1, 1]) for name in names}


def gates_of(kind, drawn, names=None):
    saved = slots_after(kind, drawn)
    return activated_gates(kind, lambda number: saved[number].copy(), names)


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
    """A twin whose gates are each a function of the pre-activation alone: "s" the logistic one, "t" tanh, "-" none."""
    functions = {"s": sigmoid, "t": np.tanh, "-": lambda x: x}
    pairs = [one.split(":") for one in text.split()]
    return lambda d: {name: functions[function](d[name]) for name, function in pairs}


def of_relu(*names):
    return lambda d: {name: np.maximum(d[name], 0) for name in names}


def gru_of(r, z):
    return lambda d: {r: sigmoid(d[r]), z: sigmoid(d[z]), "n": np.tanh(d["n"] + sigmoid(d[r]) * d["q"])}


def of_bistable(d):
    a = 1 + np.tanh(d["a"])
    return {"a": a, "c": sigmoid(d["c"]), "n": np.tanh(d["n"] + a * d["h_prev"])}


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
    "LiGRU": lambda d: {"z": sigmoid(d["z"]), "n": np.maximum(d["n"], 0)},
    "MinGRU": activated("z:s n:-"),
    "MinimalGatedUnit": activated("f:s n:t"),
    "MinimalRNN": lambda d: {"n": np.tanh(d["n"]), "u": sigmoid(d["u"] + d["v"])},
    "MultiplicativeLSTM": activated("p:- i:s f:s n:t o:s"),
    "NBR": of_bistable,
    "RAN": activated("n:- i:s f:s"),
    "RegularizedGRU": gru_of("r", "z"),
    "RegularizedLSTM": activated("i:s f:s g:t o:s"),
    "STAR": activated("z:t k:s"),
    "UGRNN": activated("n:t g:s"),
    "VariationalGRU": gru_of("r", "z"),
    "VariationalLSTM": activated("i:s f:s g:t o:s"),
}
BY_ENGINE = {"PeepholeLSTM", "SLSTM", "MultiHeadSLSTM"}  # `TWINS` has them, with the states that they need


def test_every_shipped_cell_is_compared():
    kinds = {name for name, one in vars(cells).items() if hasattr(one, "declaration")} | {*cells.__all__}
    kinds = {name for name in kinds if hasattr(getattr(cells, name), "declaration")}
    assert kinds == SHIPPED.keys() | BY_ENGINE


@pytest.mark.parametrize("name", SHIPPED)
def test_gates_of_shipped_cells(name):
    kind = getattr(cells, name)()
    for seed in range(3):
        drawn = drawn_for(kind, seed)
        found, expected = gates_of(kind, drawn), SHIPPED[name](drawn)
        assert [*found] == [*expected]
        for gate, values in expected.items():
            assert_within(gate, found[gate], values, TABLE["float64"].value)


def test_parameters_of_a_cell_are_in_its_gates():
    drawn = drawn_for(cells.LEM, 0)
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


@cell(gates="t v u d q e")
class Arithmetic(NamedTuple):
    """A helper with a variable that is named like a gate; two gates of one function, named after the second; and
    functions of gates without a name. e is linear, and its gradient needs no value of it."""

    @forward("h")
    def step(self, t, v, u, d, q, e, h_prev):
        u = logistic(u + (2 * v if h_prev < 0 else v) / (3 + h_prev))
        return fma(u, h_prev, swish(t)) + (1 / d + fma(q, q, 1)) + e


@cell(gates="n a")
class Ambiguous(NamedTuple):
    """Two functions of one gate, neither under its name."""

    @forward("h")
    def step(self, n, a, h_prev):
        return fma(logistic(a + h_prev), tanh(n), logistic(a - h_prev))


@cell(gates="a")
class Mixed(NamedTuple):
    """A gate that is used with and without its activation, in one sum."""

    @forward("h")
    def step(self, a, h_prev):
        return fma(tanh(a), h_prev, a)


@cell(gates="a", states="c")
class Twice(NamedTuple):
    """The same, in two states."""

    @forward("c h")
    def step(self, a, c_prev):
        return c_prev + a, tanh(a)


@cell(gates="n p")
class Overwritten(NamedTuple):
    """The gradient needs two functions of p and nothing of n: the slot of n holds one of them."""

    @forward("h")
    def step(self, n, p):
        p = tanh(p) * logistic(p)
        return p + n


@cell(gates="a")
class ByHand(NamedTuple):
    """Equations that only Python can read, with a gradient by hand."""

    @forward("a h")
    def step(self, a):
        for _ in range(2):
            a = tanh(a)
        return a, a

    @gradient("da")
    def through_step(self, a, dh):
        return dh * a


@cell(gates="a b", slots="kept")
class UnnamedByHand(NamedTuple):
    """The same, with a gate under another name than its own."""

    @forward("b kept h")
    def step(self, a, b):
        for _ in range(2):
            a = tanh(a)
        return tanh(b), a, a * tanh(b)

    @gradient("da db")
    def through_step(self, b, kept, dh):
        return dh * b, dh * kept


def test_gates_of_own_cells():
    drawn = drawn_for(Varied(0.5), 0)
    found, s = gates_of(Varied(0.5), drawn), drawn["s"]
    expected = {"a": 3 + np.tanh(2 * drawn["a"]), "b": np.tanh(drawn["b"]), "s": s * sigmoid(s)}
    assert [*found] == [*expected]
    for gate, values in expected.items():
        assert_within(gate, found[gate], values, TABLE["float64"].value)
    drawn = d = drawn_for(Arithmetic(), 0)
    found = gates_of(Arithmetic(), drawn)
    u = sigmoid(d["u"] + d["v"] * np.where(d["h_prev"] < 0, 2, 1) / (3 + d["h_prev"]))
    expected = {"t": d["t"] * sigmoid(d["t"]), "u": u, "d": 1 / d["d"], "q": d["q"] ** 2 + 1, "e": d["e"]}
    assert [*found] == [*expected]
    for gate, values in expected.items():
        assert_within(gate, found[gate], values, TABLE["float64"].value)
    drawn = drawn_for(ByHand(), 0)
    assert_within("a", gates_of(ByHand(), drawn)["a"], np.tanh(np.tanh(drawn["a"])), TABLE["float64"].value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Ambiguous(), "the gate a of Ambiguous | one function | several | assign the activated gate to the name a"),
        (Mixed(), "the gate a of Mixed | one function | several"),
        (Twice(), "the gate a of Twice | one function | several"),
        (Overwritten(), "the gate n of Overwritten | computed from what forward saves | depends on n"),
        (UnnamedByHand(), "the gate a of UnnamedByHand | by a stage | equations that cannot be read"),
    ],
)
def test_gates_that_are_no_single_value_are_refused(kind, text):
    name = text.split()[2]
    with raises(ValueError, f"gates: {text}"):
        gates_of(kind, drawn_for(kind, 0), names=[name])


def test_gates_that_cannot_be_computed_are_left_out():
    found = gates_of(Overwritten(), drawn_for(Overwritten(), 0))
    assert found and "n" not in found


def test_gates_that_enter_one_function_are_one_entry():
    workspace = rnnkit.Network(cells.CoRNN(), 3, 4, seed=0).forward(np.ones((2, 1, 3), np.float32)).workspace
    assert workspace.joined_gates() == {"a": ("a", "v")}
    assert [*workspace.gates(0)] == ["a"] and [*workspace.gates(0, names=["a"])] == ["a"]
    with raises(ValueError, "gates: names | name an entry | 'v' | \"a\""):
        workspace.gates(0, names=["v"])
    with raises(ValueError, "gates: names | \"a\" | 'other'"):
        workspace.gates(0, names=["other"])
