"""from_mxnet and to_mxnet: the vector of the RNN operator, unpacked here as MXNet's documentation has it."""

import numpy as np
import pytest
from combinations import nightly, pairs
from foreign import assert_outputs, assert_refused, assert_same_bits, assert_same_network, net_of, problem_of

import rnnkit
from rnnkit.interop import from_mxnet, to_mxnet

GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def unpacked(vector, mode, features, size, layers, directions, projection):
    """As `gluon.rnn` concatenates: for weight, bias; for each layer; for l, r; for i2h, h2h, h2r (weight alone)."""
    found, start, rows, out = {}, 0, GATES[mode] * size, projection or size
    for kind in ("weight", "bias"):
        for layer in range(layers):
            for direction in ("l", "r")[:directions]:
                below = features if layer == 0 else directions * out
                shapes = {"i2h": (rows, below), "h2h": (rows, out), "h2r": (out, size)}
                for name, shape in shapes.items():
                    if name == "h2r" and (kind == "bias" or not projection):
                        continue
                    shape = shape if kind == "weight" else (rows,)
                    found[f"{direction}{layer}_{name}_{kind}"] = vector[start : start + np.prod(shape)].reshape(shape)
                    start += np.prod(shape)
    assert start == len(vector)
    return found


def step(named, prefix, mode, x, h, c, clip):
    """The equations of the operator's documentation, for a batch: a pair of h and c."""
    a = x @ named[f"{prefix}_i2h_weight"].T + named[f"{prefix}_i2h_bias"]
    b = h @ named[f"{prefix}_h2h_weight"].T + named[f"{prefix}_h2h_bias"]
    if mode == "rnn_relu":
        return np.maximum(a + b, 0), c
    if mode == "rnn_tanh":
        return np.tanh(a + b), c
    if mode == "gru":
        (ar, az, an), (br, bz, bn) = np.split(a, 3, axis=1), np.split(b, 3, axis=1)
        r, z = sigmoid(ar + br), sigmoid(az + bz)
        return (1 - z) * np.tanh(an + r * bn) + z * h, c
    i, f, g, o = np.split(a + b, 4, axis=1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    c = c if clip is None else np.clip(c, *clip)
    h = sigmoid(o) * np.tanh(c)
    return (h @ named[f"{prefix}_h2r_weight"].T if f"{prefix}_h2r_weight" in named else h), c


def operator(vector, problem):
    """What the operator returns for the problem's inputs: y and the last states."""
    directions, x, hy, cy = problem.directions, problem.x, [], []
    sizes = problem.input_size, problem.hidden_size, problem.num_layers, directions, problem.proj_size
    named = unpacked(vector, problem.mode, *sizes)
    for layer in range(problem.num_layers):
        outputs = []
        for direction in range(directions):
            row = layer * directions + direction
            h, c = problem.hx[row], None if problem.cx is None else problem.cx[row]
            y = np.empty((problem.seq_len, *h.shape))
            for t in range(problem.seq_len)[:: -1 if direction else 1]:
                y[t], c = h, c = step(named, f"{'lr'[direction]}{layer}", problem.mode, x[t], h, c, problem.cell_clip)
            outputs.append(y)
            hy.append(h)
            cy.append(c)
        x = np.concatenate(outputs, axis=2)
    return x, [np.stack(hy), np.stack(cy)] if problem.cx is not None else [np.stack(hy)]


CELLS = {
    "tanh": dict(mode="rnn_tanh"),
    "relu": dict(mode="rnn_relu"),
    "gru": dict(mode="gru"),
    "lstm": dict(mode="lstm"),
    "lstm-projected-clipped": dict(mode="lstm", proj_size=3, cell_clip=(-0.2, 0.3)),
}


@pytest.mark.parametrize(
    ("cell", "dtype", "bidirectional"), pairs(CELLS, ["float64", nightly("float32")], [False, True])
)
def test_the_vector_becomes_the_operators_network(cell, dtype, bidirectional):
    problem = problem_of(**CELLS[cell], dtype=dtype, bidirectional=bidirectional)
    low, high = problem.cell_clip or (None, None)
    net = from_mxnet(
        problem.w, problem.mode, 7, 5, 2, bidirectional, projection_size=problem.proj_size, lstm_state_clip_min=low,
        lstm_state_clip_max=high,
    )
    assert_same_network(net, net_of(problem))
    assert not np.shares_memory(net.weights, problem.w)
    assert_outputs(net, problem, *operator(problem.w.astype(np.float64), problem))
    assert_same_bits("vector", to_mxnet(net), problem.w)


def test_p_is_the_dropout():
    assert from_mxnet(np.zeros(42, "f4"), "gru", 3, 2, p=0.25).desc.dropout == 0.25


@pytest.mark.parametrize("bias", ["input", "recurrent", "none"])
def test_a_bias_that_is_not_there_is_zeros(bias):
    problem = problem_of(mode="gru", bias=bias)
    vector = to_mxnet(net_of(problem))
    assert_outputs(net_of(problem), problem, *operator(vector, problem))


class NDArray:
    """What is known of MXNet's array: it converts itself."""

    dtype = np.float32

    def __array__(self, dtype=None, copy=None):
        return np.arange(42, dtype=np.float32)


def test_an_ndarray_is_taken():
    assert from_mxnet(NDArray(), "gru", 3, 2).weights.tolist() == list(range(42))


REFUSED = [
    ((np.zeros(43, "f4"), "gru", 3, 2), {}, ValueError, "from_mxnet: vector", ["(num_weights=42,)", (43,)]),
    ((np.zeros((42, 1), "f4"), "gru", 3, 2), {}, ValueError, "from_mxnet: vector", ["(num_weights=42,)", (42, 1)]),
    ((np.zeros(42, "f2"), "gru", 3, 2), {}, TypeError, "from_mxnet: vector", ["float32", "float64", "float16"]),
    ((np.zeros(42, "f4"), "gruu", 3, 2), {}, ValueError,
     "RNNDescriptor: mode", ["rnn_relu", "rnn_tanh", "lstm", "gru", "gruu"]),
    ((np.zeros(48, "f4"), "lstm", 3, 2), dict(lstm_state_clip_min=-1.0), ValueError,
     "from_mxnet: lstm_state_clip_max", ["lstm_state_clip_min", None, -1.0]),
]


@pytest.mark.parametrize(("arguments", "options", "kind", "where", "facts"), REFUSED, ids=[row[3] for row in REFUSED])
def test_from_mxnet_refuses(arguments, options, kind, where, facts):
    assert_refused(lambda: from_mxnet(*arguments, **options), kind, where, *facts)


@pytest.mark.parametrize(("net", "argument", "facts"), [
    (rnnkit.GRU(3, 2, reset_after=False), "reset_after", [True, False, "MXNet"]),
    (rnnkit.GRU(2, 2, input_mode="skip"), "input_mode", ["linear", "skip", "MXNet"]),
])
def test_to_mxnet_refuses(net, argument, facts):
    assert_refused(lambda: to_mxnet(net), ValueError, f"to_mxnet: net.desc.{argument}", *facts)
