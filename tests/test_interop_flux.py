"""from_flux and to_flux: cells computed here as Flux's documentation has them, in its order of axes."""

import numpy as np
import pytest
from foreign import assert_outputs, assert_refused, assert_same_bits, assert_same_network, net_of, problem_of

import rnnkit
from rnnkit.interop import from_flux, to_flux

MODES = ["rnn_tanh", "rnn_relu", "gru", "lstm"]


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def step(cell, mode, x, h, c):
    """One step of a cell, whose columns are sequences: h and c."""
    inside, recurrent, bias = cell["Wi"] @ x, cell["Wh"] @ h, cell.get("b", cell.get("bias", np.zeros(1)))[:, None]
    if mode.startswith("rnn_"):
        a = inside + recurrent + bias
        return (np.tanh(a) if mode == "rnn_tanh" else np.maximum(a, 0)), c
    if mode == "gru":
        size = len(h)
        a, b, d = (np.broadcast_to(part, (3 * size, x.shape[1])) for part in (inside, recurrent, bias))
        r = sigmoid(a[:size] + b[:size] + d[:size])
        z = sigmoid(a[size : 2 * size] + b[size : 2 * size] + d[size : 2 * size])
        candidate = np.tanh(a[2 * size :] + r * b[2 * size :] + d[2 * size :])
        return (1 - z) * candidate + z * h, c
    i, f, cell_input, o = np.split(inside + recurrent + bias, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(cell_input)
    return sigmoid(o) * np.tanh(c), c


def run_flux(cells, problem):
    """y and the last states; inside, x is (in, len, batch) as Flux's."""
    x, hy, cy = problem.x.transpose(2, 0, 1).astype(np.float64), [], []
    for layer, cell in enumerate(cells):
        h, c = (None if state is None else state[layer].T for state in (problem.hx, problem.cx))
        y = np.empty((len(h), *x.shape[1:]))
        for t in range(problem.seq_len):
            y[:, t], c = h, c = step(cell, problem.mode, x[:, t], h, c)
        hy, cy, x = [*hy, h.T], [*cy, None if c is None else c.T], y
    return x.transpose(1, 2, 0), [np.stack(hy)] if problem.cx is None else [np.stack(hy), np.stack(cy)]


def fields_of(problem):
    """Column-major arrays, as they come from Julia."""
    rng, fields, size = np.random.default_rng(1), [], problem.input_size
    gates = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4}[problem.mode]
    for _ in range(problem.num_layers):
        shapes = {"Wi": (gates * 5, size), "Wh": (gates * 5, 5), "b" if problem.mode == "gru" else "bias": (gates * 5,)}
        shapes = {name: shape for name, shape in shapes.items() if problem.bias == "input" or name.startswith("W")}
        fields.append({n: np.asfortranarray(0.5 * rng.standard_normal(s), problem.dtype) for n, s in shapes.items()})
        size = 5
    return fields


@pytest.mark.parametrize("bias", ["input", "none"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", MODES)
def test_cells_become_their_network(mode, dtype, bias):
    problem = problem_of(mode=mode, dtype=dtype, bias=bias)
    cells = fields_of(problem)
    net = from_flux(cells, activation="relu" if mode == "rnn_relu" else None)
    assert net.desc == problem.desc
    assert_outputs(net, problem, *run_flux(cells, problem))
    for cell, again in zip(cells, to_flux(net), strict=True):
        assert cell.keys() == again.keys()
        for name, array in cell.items():
            assert_same_bits(name, again[name], array)
    net = net_of(problem)
    assert_same_network(from_flux(to_flux(net), activation="relu" if mode == "rnn_relu" else None), net)


@pytest.mark.parametrize("bias", ["both", "recurrent"])
@pytest.mark.parametrize("mode", MODES)
def test_two_biases_are_added(mode, bias):
    problem = problem_of(mode=mode, bias=bias)
    for name, view in problem.views.items():
        if mode == "gru" and name.startswith("bias_hh"):
            view[-problem.hidden_size :] = 0
    assert_outputs(net_of(problem), problem, *run_flux(to_flux(net_of(problem)), problem))


def cell_of(drop=(), **changes):
    """The fields of a GRUCell(3 => 2)."""
    fields = {"Wi": np.ones((6, 3), "f4"), "Wh": np.ones((6, 2), "f4"), "b": np.ones(6, "f4"), **changes}
    return {name: array for name, array in fields.items() if name not in drop}


def test_one_cell_is_a_stack_of_one_and_the_bias_has_either_name_or_none():
    net = from_flux(cell_of())
    assert net.desc == rnnkit.RNNDescriptor("gru", 3, 2, bias="input")
    assert_same_network(from_flux([cell_of()]), net)
    assert_same_network(from_flux(cell_of(drop=["b"], bias=np.ones(6, "f4"))), net)
    for fields in (cell_of(b=False), cell_of(drop=["b"]), cell_of(b=np.bool_(False))):
        assert from_flux(fields).desc.bias == "none"


def test_the_weights_are_copies():
    fields = cell_of()
    net = from_flux(fields)
    fields["Wi"][:] = 2
    assert (net.weights == 1).all()
    for array in to_flux(net)[0].values():
        array[:] = 3
    assert (net.weights == 1).all()


REFUSED = [
    (cell_of(**{"Wh_h\u0303": np.ones((2, 2), "f4")}), {}, ValueError,
     "cells", ["RNNCell", "GRUCell", "LSTMCell", "GRUv3Cell", "rnnkit.GRU", "reset_after=True", "reset_after=False",
     "Keras", "ONNX", "r*h", "Wh"]),
    (cell_of(drop=["Wh"]), {}, ValueError, "cells", [2, "missing: Wh"]),
    (cell_of(state0=np.zeros(2, "f4")), {}, ValueError, "cells", [4, "gru", "unknown: state0"]),
    (cell_of(bias=np.zeros(6, "f4")), {}, ValueError, "cells", ["one", "b", "bias"]),
    (cell_of(Wi=np.ones((3, 6), "f4")), {}, ValueError,
     'cells["Wi"]', ["(3*hidden_size=6, input_size=6)", (3, 6)]),
    (cell_of(Wh=np.ones((2, 6), "f4")), {}, ValueError,
     'cells["Wh"]', [6, 18, 24, 1, 3, 4, "hidden_size=6", 2]),
    (cell_of(Wh=np.ones(6, "f4")), {}, ValueError,
     'cells["Wh"]', ["(gates*hidden_size, hidden_size)", (6,)]),
    (cell_of(b=np.ones(2, "f4")), {}, ValueError, 'cells["bias"]', ["(3*hidden_size=6,)", (2,)]),
    (cell_of(b=np.ones(6)), {}, TypeError,
     'cells["bias"]', ["float32", 'cells["Wi"]', "float64"]),
    (cell_of(b=np.ones(6, "f2")), {}, TypeError,
     'cells["bias"]', ["float32", "float64", "float16"]),
    ([cell_of(), cell_of()], {}, ValueError,
     'cells[1]["Wi"]', ["(3*hidden_size=6, input_size=2)", (6, 3)]),
    ([cell_of(), cell_of(drop=["b"])], {}, ValueError,
     "cells[1]", [2, "gru", "missing: bias"]),
    (cell_of(), dict(activation="relu"), ValueError, "activation", ['mode="gru"', "relu"]),
    (cell_of(Wi=np.ones((2, 3), "f4"), Wh=np.ones((2, 2), "f4")), dict(activation="elu"), ValueError,
     "activation", ["tanh", "relu", "elu"]),
    ([], {}, TypeError, "cells", ["mapping", "list"]),
    ("Wi", {}, TypeError, "cells", ["mapping", "list", "str"]),
]


@pytest.mark.parametrize(("source", "options", "kind", "argument", "facts"), REFUSED, ids=[row[3] for row in REFUSED])
def test_from_flux_refuses(source, options, kind, argument, facts):
    assert_refused(lambda: from_flux(source, **options), kind, f"from_flux: {argument}", *facts)


def gru_with_bias_inside():
    net = rnnkit.GRU(3, 2, num_layers=2, seed=0)
    net.views["bias_hh_l0"][4:] = 0
    net.views["bias_hh_l1"][4:] = [0, -0.5]
    return net


TO_REFUSED = [
    (rnnkit.GRU(3, 2, bidirectional=True), "net.desc.bidirectional", [False, True, "Flux"]),
    (rnnkit.LSTM(3, 2, proj_size=1), "net.desc.proj_size", [None, 1, "Flux"]),
    (rnnkit.LSTM(3, 2, cell_clip=(-1, 1)), "net.desc.cell_clip", [None, (-1.0, 1.0), "Flux"]),
    (rnnkit.GRU(3, 2, reset_after=False), "net.desc.reset_after", [True, False, "Flux"]),
    (rnnkit.GRU(2, 2, input_mode="skip"), "net.desc.input_mode", ["linear", "skip", "Flux"]),
    (gru_with_bias_inside(), "net.views", [0, "rows of n", "bias_hh", 0.5, "Flux", "r"]),
]


@pytest.mark.parametrize(("net", "argument", "facts"), TO_REFUSED, ids=[row[1] for row in TO_REFUSED])
def test_to_flux_refuses(net, argument, facts):
    assert_refused(lambda: to_flux(net), ValueError, f"to_flux: {argument}", *facts)
