"""from_mxnet and to_mxnet: the vector of the RNN operator, unpacked here as MXNet's documentation has it."""

import numpy as np
import pytest
import reference
from combinations import nightly, pairs
from foreign import assert_outputs, assert_same_bits, assert_same_network, net_of, problem_of
from refused import refusals

import rnnkit
from rnnkit.interop import from_mxnet, to_mxnet

GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
NAMES = {"i2h": "ih", "h2h": "hh", "h2r": "hr"}


def unpacked(vector, problem):
    """As `gluon.rnn` concatenates: for weight, bias; for each layer; for l, r; for i2h, h2h, h2r (weight alone)."""
    found, start, size = {}, 0, problem.hidden_size
    rows, out = GATES[problem.mode] * size, problem.output_size
    for kind in ("weight", "bias"):
        for layer in range(problem.num_layers):
            for suffix in ("", "_reverse")[: problem.directions]:
                below = problem.input_size if layer == 0 else problem.directions * out
                for name, shape in {"i2h": (rows, below), "h2h": (rows, out), "h2r": (out, size)}.items():
                    if name == "h2r" and (kind == "bias" or not problem.proj_size):
                        continue
                    shape = shape if kind == "weight" else (rows,)
                    block = vector[start : start + np.prod(shape)].reshape(shape)
                    found[f"{kind}_{NAMES[name]}_l{layer}{suffix}"] = block
                    start += np.prod(shape)
    assert start == len(vector)
    return found


def operator(vector, problem):
    """What the operator returns for the problem's inputs, y and the last states: its gates are in our order."""
    names = "mode", "hidden_size", "num_layers", "bidirectional", "proj_size", "cell_clip"
    fields = {name: getattr(problem, name) for name in names}
    found = reference.forward(unpacked(vector, problem), problem.x, problem.hx, problem.cx, **fields)
    return found.y, [found.hy, found.cy]


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
def test_vector_becomes_the_network_of_the_operator(cell, dtype, bidirectional):
    problem = problem_of(**CELLS[cell], dtype=dtype, bidirectional=bidirectional)
    low, high = problem.cell_clip or (None, None)
    options = dict(projection_size=problem.proj_size, lstm_state_clip_min=low, lstm_state_clip_max=high)
    net = from_mxnet(problem.w, problem.mode, 7, 5, 2, bidirectional, **options)
    assert_same_network(net, net_of(problem))
    assert not np.shares_memory(net.weights, problem.w)
    assert_outputs(net, problem, *operator(problem.w.astype(np.float64), problem))
    assert_same_bits("vector", to_mxnet(net), problem.w)


def test_p_is_the_dropout():
    assert from_mxnet(np.zeros(42, "f4"), "gru", 3, 2, p=0.25).desc.dropout == 0.25


@pytest.mark.parametrize("bias", ["input", "recurrent", "none"])
def test_missing_bias_is_written_as_zeros(bias):
    problem = problem_of(mode="gru", bias=bias)
    assert_outputs(net_of(problem), problem, *operator(to_mxnet(net_of(problem)), problem))


class NDArray:
    """What is known of MXNet's array: it converts itself."""

    dtype = np.float32

    def __array__(self, dtype=None, copy=None):
        return np.arange(42, dtype=np.float32)


def test_ndarray_of_mxnet_is_taken():
    assert from_mxnet(NDArray(), "gru", 3, 2).weights.tolist() == list(range(42))


def given(size, *arguments, dtype="f4", **options):
    return lambda: from_mxnet(np.zeros(size, dtype), *arguments, **options)


REFUSED = [
    (given(43, "gru", 3, 2), "from_mxnet: vector | (num_weights=42,) | (43,)"),
    (given((42, 1), "gru", 3, 2), "from_mxnet: vector | (num_weights=42,) | (42, 1)"),
    (given(42, "gru", 3, 2, dtype="f2"), "TypeError from_mxnet: vector | float32 | float64 | float16"),
    (given(42, "gruu", 3, 2), "RNNDescriptor: mode | rnn_relu | rnn_tanh | lstm | gru | gruu"),
    (
        given(48, "lstm", 3, 2, lstm_state_clip_min=-1.0),
        "from_mxnet: lstm_state_clip_max | lstm_state_clip_min | None | -1.0",
    ),
    (lambda: to_mxnet(rnnkit.GRU(3, 2, reset_after=False)), "to_mxnet: net.desc.reset_after | True | False | MXNet"),
    (lambda: to_mxnet(rnnkit.GRU(2, 2, input_mode="skip")), "to_mxnet: net.desc.input_mode | linear | skip | MXNet"),
]


@refusals(anywhere=REFUSED)
def test_unfit_vectors_and_networks_are_refused(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()
