"""The checks of a call's arguments: what passes, and the message for what does not."""

import re

import numpy as np
import pytest
from messages import says

import rnnkit
from rnnkit import RNNDescriptor
from rnnkit.call import checks
from rnnkit.descriptor.descriptor import check_descriptor

LSTM = RNNDescriptor("lstm", 3, 8, num_layers=2, bidirectional=True)
PROJECTED = RNNDescriptor("lstm", 3, 8, num_layers=2, bidirectional=True, proj_size=5)
GRU = RNNDescriptor("gru", 3, 2)
DOUBLE = RNNDescriptor("gru", 3, 2, dtype="float64")


def zeros(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


# These also take an array beside which the others must be: one on the host.
PLACED = (checks.array, checks.hidden, checks.cell_state, checks.dy, checks.weights, checks.weight_gradient)
HOST = np.zeros(1)


def run(check, *arguments):
    return check("forward", *arguments, *([HOST] if check in PLACED else []))


def read_only(array):
    array.flags.writeable = False
    return array


ACCEPTED = [
    (check_descriptor, GRU),
    (checks.array, "x", zeros(2, 3), (2, 3), ("rows", "columns"), GRU),
    (checks.array, "x", zeros(2, 3), (None, 3), ("rows", "columns"), GRU),
    (checks.inputs, zeros(7, 2, 3), checks.SEQUENCE_DIMS, GRU),
    (checks.inputs, zeros(2, 7, 3).swapaxes(0, 1), checks.SEQUENCE_DIMS, GRU),
    (checks.inputs, zeros(0, 2, 3), checks.SEQUENCE_DIMS, GRU),
    (checks.inputs, zeros(7, 0, 3), checks.SEQUENCE_DIMS, GRU),
    (checks.inputs, zeros(2, 3, dtype="float64"), checks.STEP_DIMS, DOUBLE),
    (checks.hidden, "hx", None, 3, LSTM),
    (checks.hidden, "hx", zeros(4, 3, 8), 3, LSTM),
    (checks.hidden, "dhy", zeros(4, 3, 5), 3, PROJECTED),
    (checks.cell_state, "cx", None, 3, GRU),
    (checks.cell_state, "cx", zeros(4, 3, 8), 3, LSTM),
    (checks.cell_state, "dcy", zeros(4, 3, 8), 3, PROJECTED),
    (checks.dy, None, 7, 3, LSTM),
    (checks.dy, zeros(7, 3, 16), 7, 3, LSTM),
    (checks.dy, zeros(7, 3, 10), 7, 3, PROJECTED),
    (checks.weights, read_only(zeros(42)), GRU),
    (checks.weight_gradient, None, GRU),
    (checks.weight_gradient, zeros(42), GRU),
    (checks.lengths, None, 7, 3),
    (checks.seed, None),
    (checks.seed, 0),
    (checks.seed, np.uint64(2**64 - 1)),
]


@pytest.mark.parametrize("call", ACCEPTED, ids=lambda call: call[0].__name__)
def test_accepted(call):
    assert run(*call) is None


LENGTHS = [
    ([7, 0, 3], 7), ((7, 0, 3), 7), (np.array([7, 0, 3], np.uint8), 7), (np.array([7, 0, 3]), 7), ([0, 0], 0), ([], 7)
]


@pytest.mark.parametrize(("lengths", "seq_len"), LENGTHS)
def test_accepted_lengths_are_copied(lengths, seq_len):
    found = run(checks.lengths, lengths, seq_len, len(lengths))
    assert found.dtype == np.int64 and found.tolist() == list(lengths)
    assert not np.may_share_memory(found, np.asarray(lengths))


CELL_CURE = 'mode="lstm"'
X_CURE = 'x.astype("float32")'
REFUSED = [
    (check_descriptor, ("gru",), TypeError, "desc", ["RNNDescriptor", "str"]),
    (checks.inputs, ([[[0.0]]], checks.SEQUENCE_DIMS, GRU), TypeError, "x", ["numpy.ndarray", "cupy.ndarray", "list"]),
    (checks.inputs, (zeros(7, 2, 3, dtype="float64"), checks.SEQUENCE_DIMS, GRU), TypeError,
     "x", ["float32", "float64", X_CURE]),
    (checks.inputs, (zeros(7, 2, 3, dtype="int64"), checks.SEQUENCE_DIMS, GRU), TypeError,
     "x", ["float32", "int64", X_CURE]),
    (checks.inputs, (zeros(7, 2, 3, dtype=">f4"), checks.SEQUENCE_DIMS, GRU), TypeError,
     "x", ["float32", ">f4", X_CURE]),
    (checks.inputs, (zeros(7, 2, 3), checks.SEQUENCE_DIMS, DOUBLE), TypeError,
     "x", ["float64", "float32", 'x.astype("float64")']),
    (checks.inputs, (zeros(7, 2, 4), checks.SEQUENCE_DIMS, GRU), ValueError,
     "x", ["(seq_len, batch_size, input_size=3)", (7, 2, 4)]),
    (checks.inputs, (zeros(7, 3), checks.SEQUENCE_DIMS, GRU), ValueError,
     "x", ["(seq_len, batch_size, input_size=3)", (7, 3)]),
    (checks.inputs, (zeros(), checks.SEQUENCE_DIMS, GRU), ValueError, "x", ["(seq_len, batch_size, input_size=3)", ()]),
    (checks.inputs, (zeros(1, 7, 3), checks.STEP_DIMS, GRU), ValueError,
     "x", ["(batch_size, input_size=3)", (1, 7, 3)]),
    (checks.hidden, ("hx", zeros(4, 3, 7), 3, LSTM), ValueError,
     "hx", ["(num_layers*num_directions=4, batch_size=3, hidden_size=8)", (4, 3, 7)]),
    (checks.hidden, ("dhy", zeros(2, 3, 8), 3, LSTM), ValueError,
     "dhy", ["(num_layers*num_directions=4, batch_size=3, hidden_size=8)", (2, 3, 8)]),
    (checks.hidden, ("hx", zeros(4, 3, 8), 3, PROJECTED), ValueError,
     "hx", ["(num_layers*num_directions=4, batch_size=3, proj_size=5)", (4, 3, 8)]),
    (checks.hidden, ("hx", 0.0, 3, LSTM), TypeError, "hx", ["numpy.ndarray", "float"]),
    (checks.cell_state, ("cx", zeros(4, 3, 5), 3, PROJECTED), ValueError,
     "cx", ["(num_layers*num_directions=4, batch_size=3, hidden_size=8)", (4, 3, 5)]),
    (checks.cell_state, ("cx", zeros(1, 3, 2), 3, GRU), ValueError,
     "cx", [None, 'mode="gru"', "array", (1, 3, 2), CELL_CURE]),
    (checks.cell_state, ("dcy", [0.0], 3, GRU), ValueError, "dcy", [None, 'mode="gru"', "list", CELL_CURE]),
    (checks.dy, (zeros(7, 3, 8), 7, 3, LSTM), ValueError,
     "dy", ["(seq_len=7, batch_size=3, num_directions*hidden_size=16)", (7, 3, 8)]),
    (checks.dy, (zeros(6, 3, 10), 7, 3, PROJECTED), ValueError,
     "dy", ["(seq_len=7, batch_size=3, num_directions*proj_size=10)", (6, 3, 10)]),
    (checks.weights, ([0.0], GRU), TypeError, "w", ["numpy.ndarray", "list"]),
    (checks.weights, (zeros(42, dtype="float64"), GRU), TypeError, "w", ["float32", "float64", 'w.astype("float32")']),
    (checks.weights, (zeros(41), GRU), ValueError, "w", ["(num_weights=42,)", (41,)]),
    (checks.weights, (zeros(84)[::2], GRU), ValueError, "w", ["C-contiguous", (8,), "w.copy()"]),
    (checks.weight_gradient, (zeros(43), GRU), ValueError, "dw", ["(num_weights=42,)", (43,)]),
    (checks.weight_gradient, (read_only(zeros(42)), GRU), ValueError, "dw", ["writeable", "read-only", "array"]),
    (checks.lengths, ([7, 8, 9], 7, 3), ValueError, "lengths[1]", ["0..seq_len=7", 8]),
    (checks.lengths, (np.array([7, 0, -1]), 7, 3), ValueError, "lengths[2]", ["0..seq_len=7", -1]),
    (checks.lengths, ([7, 0], 7, 3), ValueError, "lengths", ["(batch_size=3,)", (2,)]),
    (checks.lengths, ([[7, 0, 1]], 7, 3), ValueError, "lengths", ["(batch_size=3,)", (1, 3)]),
    (checks.lengths, (zeros(3), 7, 3), TypeError, "lengths", ["integers", "float32"]),
    (checks.lengths, ([7, 0.0, 1], 7, 3), TypeError, "lengths", ["integers", "float64"]),
    (checks.lengths, ([True, False, True], 7, 3), TypeError, "lengths", ["integers", "bool"]),
    (checks.lengths, (3, 7, 3), TypeError, "lengths", [None, "array", "host", "int"]),
    (checks.lengths, ("703", 7, 3), TypeError, "lengths", [None, "array", "host", "str"]),
    (checks.seed, (-1,), ValueError, "seed", [f"0..{2**64 - 1}", -1]),
    (checks.seed, (2**64,), ValueError, "seed", [f"0..{2**64 - 1}", 2**64]),
    (checks.seed, (1.0,), TypeError, "seed", [None, "int", "float"]),
    (checks.seed, (True,), TypeError, "seed", [None, "int", "bool"]),
]


@pytest.mark.parametrize(("check", "arguments", "kind", "argument", "facts"), REFUSED, ids=[row[3] for row in REFUSED])
def test_refused(check, arguments, kind, argument, facts):
    with pytest.raises(kind, match=says(f"forward: {argument}", *facts)) as caught:
        run(check, *arguments)
    assert re.match(r"\w+: \S+ must .+, got .+", str(caught.value))  # the form of all messages


@pytest.mark.parametrize("shift", [0, 1, 41])
def test_a_gradient_in_the_memory_of_the_weights_is_refused(shift):
    """Also where the two only overlap: adding to it would change the weights under way."""
    memory = np.zeros(84, np.float32)
    w, dw = memory[:42], memory[shift : shift + 42]
    y, *_, workspace = rnnkit.forward(GRU, w, zeros(4, 2, 3))
    with pytest.raises(ValueError, match=says("backward: dw", "w")):
        rnnkit.backward(GRU, w, workspace, y, dw=dw)
    assert rnnkit.backward(GRU, w, workspace, y, dw=memory[42:]).dw.base is memory
