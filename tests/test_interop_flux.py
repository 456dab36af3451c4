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
     "cells must be of an RNNCell, GRUCell or LSTMCell, got a GRUv3Cell; rnnkit.GRU has reset_after=True, which is "
     "GRUCell, and reset_after=False, which is Keras's and ONNX's and multiplies r*h with the third part of Wh, not "
     "with a matrix of its own"),
    (cell_of(drop=["Wh"]), {}, ValueError, "cells must hold the fields of a cell, got 2 names; missing: Wh"),
    (cell_of(state0=np.zeros(2, "f4")), {}, ValueError,
     "cells must hold the entries of this gru network's cells, got 4 names; unknown: state0"),
    (cell_of(bias=np.zeros(6, "f4")), {}, ValueError, "cells must have one bias, got b and bias"),
    (cell_of(Wi=np.ones((3, 6), "f4")), {}, ValueError,
     'cells["Wi"] must have shape (3*hidden_size=6, input_size=6), got (3, 6)'),
    (cell_of(Wh=np.ones((2, 6), "f4")), {}, ValueError,
     'cells["Wh"] must have 6 or 18 or 24 rows, 1, 3 or 4 gates of hidden_size=6, got 2'),
    (cell_of(Wh=np.ones(6, "f4")), {}, ValueError,
     'cells["Wh"] must have shape (gates*hidden_size, hidden_size), got (6,)'),
    (cell_of(b=np.ones(2, "f4")), {}, ValueError, 'cells["bias"] must have shape (3*hidden_size=6,), got (2,)'),
    (cell_of(b=np.ones(6)), {}, TypeError,
     'cells["bias"] must be float32 as cells["Wi"] is, got float64; convert one of them first'),
    (cell_of(b=np.ones(6, "f2")), {}, TypeError,
     'cells["bias"] must be float32 or float64, got float16; convert it to "float32" first'),
    ([cell_of(), cell_of()], {}, ValueError,
     'cells[1]["Wi"] must have shape (3*hidden_size=6, input_size=2), got (6, 3)'),
    ([cell_of(), cell_of(drop=["b"])], {}, ValueError,
     "cells[1] must hold the entries of this gru network's cells, got 2 names; missing: bias"),
    (cell_of(), dict(activation="relu"), ValueError, "activation must be left out with mode=\"gru\", got 'relu'"),
    (cell_of(Wi=np.ones((2, 3), "f4"), Wh=np.ones((2, 2), "f4")), dict(activation="elu"), ValueError,
     "activation must be \"tanh\" or \"relu\", got 'elu'"),
    ([], {}, TypeError, "cells must be a mapping of names to arrays, or a list of at least one, got list"),
    ("Wi", {}, TypeError, "cells must be a mapping of names to arrays, or a list of at least one, got str"),
]


@pytest.mark.parametrize(("source", "options", "kind", "text"), REFUSED, ids=[text[:60] for *_, text in REFUSED])
def test_from_flux_refuses(source, options, kind, text):
    assert_refused(lambda: from_flux(source, **options), kind, f"from_flux: {text}")


def gru_with_bias_inside():
    net = rnnkit.GRU(3, 2, num_layers=2, seed=0)
    net.views["bias_hh_l0"][4:] = 0
    net.views["bias_hh_l1"][4:] = [0, -0.5]
    return net


TO_REFUSED = [
    (rnnkit.GRU(3, 2, bidirectional=True), "net.desc.bidirectional must be False, got True; Flux has nothing else"),
    (rnnkit.LSTM(3, 2, proj_size=1), "net.desc.proj_size must be None, got 1; Flux has nothing else"),
    (rnnkit.LSTM(3, 2, cell_clip=(-1, 1)), "net.desc.cell_clip must be None, got (-1.0, 1.0); Flux has nothing else"),
    (rnnkit.GRU(3, 2, reset_after=False), "net.desc.reset_after must be True, got False; Flux has nothing else"),
    (rnnkit.GRU(2, 2, input_mode="skip"), "net.desc.input_mode must be 'linear', got 'skip'; Flux has nothing else"),
    (gru_with_bias_inside(), "net.views must be 0 in the rows of n of every bias_hh, got up to 0.5; "
     "Flux has one bias, outside of the product with r"),
]


@pytest.mark.parametrize(("net", "text"), TO_REFUSED, ids=[text[:60] for _, text in TO_REFUSED])
def test_to_flux_refuses(net, text):
    assert_refused(lambda: to_flux(net), ValueError, f"to_flux: {text}")
