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
from rnnkit import cells
from rnnkit.call.gates import activated_gates
from rnnkit.cells import Noise, cell, fma, forward, gradient, tanh
from rnnkit.cells import sigmoid as logistic


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
    assert [*workspace.gates(0)] == ["a"] and [*workspace.gates(0, names=["a"])] == ["a"]
    with raises(ValueError, "gates: names | name an entry | 'v' | \"a\""):
        workspace.gates(0, names=["v"])
    with raises(ValueError, "gates: names | \"a\" | 'other'"):
        workspace.gates(0, names=["other"])
