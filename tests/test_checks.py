"""The checks of a call's arguments: what passes, and the message for what does not."""

import numpy as np
import pytest

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
PLACED = (checks.array, checks.hidden, checks.cell, checks.dy, checks.weights, checks.weight_gradient)
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
    (checks.cell, "cx", None, 3, GRU),
    (checks.cell, "cx", zeros(4, 3, 8), 3, LSTM),
    (checks.cell, "dcy", zeros(4, 3, 8), 3, PROJECTED),
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


CELL_CURE = 'only mode="lstm" has a cell'
X_CURE = 'convert it with x.astype("float32")'
REFUSED = [
    (check_descriptor, ("gru",), TypeError, "desc must be an RNNDescriptor, got str"),
    (checks.inputs, ([[[0.0]]], checks.SEQUENCE_DIMS, GRU), TypeError,
     "x must be a numpy.ndarray or a cupy.ndarray, got list"),
    (checks.inputs, (zeros(7, 2, 3, dtype="float64"), checks.SEQUENCE_DIMS, GRU), TypeError,
     f"x must be float32 as the descriptor says, got float64; {X_CURE}"),
    (checks.inputs, (zeros(7, 2, 3, dtype="int64"), checks.SEQUENCE_DIMS, GRU), TypeError,
     f"x must be float32 as the descriptor says, got int64; {X_CURE}"),
    (checks.inputs, (zeros(7, 2, 3, dtype=">f4"), checks.SEQUENCE_DIMS, GRU), TypeError,
     f"x must be float32 as the descriptor says, got >f4; {X_CURE}"),
    (checks.inputs, (zeros(7, 2, 3), checks.SEQUENCE_DIMS, DOUBLE), TypeError,
     'x must be float64 as the descriptor says, got float32; convert it with x.astype("float64")'),
    (checks.inputs, (zeros(7, 2, 4), checks.SEQUENCE_DIMS, GRU), ValueError,
     "x must have shape (seq_len, batch_size, input_size=3), got (7, 2, 4)"),
    (checks.inputs, (zeros(7, 3), checks.SEQUENCE_DIMS, GRU), ValueError,
     "x must have shape (seq_len, batch_size, input_size=3), got (7, 3)"),
    (checks.inputs, (zeros(), checks.SEQUENCE_DIMS, GRU), ValueError,
     "x must have shape (seq_len, batch_size, input_size=3), got ()"),
    (checks.inputs, (zeros(1, 7, 3), checks.STEP_DIMS, GRU), ValueError,
     "x must have shape (batch_size, input_size=3), got (1, 7, 3)"),
    (checks.hidden, ("hx", zeros(4, 3, 7), 3, LSTM), ValueError,
     "hx must have shape (num_layers*num_directions=4, batch_size=3, hidden_size=8), got (4, 3, 7)"),
    (checks.hidden, ("dhy", zeros(2, 3, 8), 3, LSTM), ValueError,
     "dhy must have shape (num_layers*num_directions=4, batch_size=3, hidden_size=8), got (2, 3, 8)"),
    (checks.hidden, ("hx", zeros(4, 3, 8), 3, PROJECTED), ValueError,
     "hx must have shape (num_layers*num_directions=4, batch_size=3, proj_size=5), got (4, 3, 8)"),
    (checks.hidden, ("hx", 0.0, 3, LSTM), TypeError, "hx must be a numpy.ndarray, got float"),
    (checks.cell, ("cx", zeros(4, 3, 5), 3, PROJECTED), ValueError,
     "cx must have shape (num_layers*num_directions=4, batch_size=3, hidden_size=8), got (4, 3, 5)"),
    (checks.cell, ("cx", zeros(1, 3, 2), 3, GRU), ValueError,
     f'cx must be None with mode="gru", got an array of shape (1, 3, 2); {CELL_CURE}'),
    (checks.cell, ("dcy", [0.0], 3, GRU), ValueError, f'dcy must be None with mode="gru", got list; {CELL_CURE}'),
    (checks.dy, (zeros(7, 3, 8), 7, 3, LSTM), ValueError,
     "dy must have shape (seq_len=7, batch_size=3, num_directions*hidden_size=16), got (7, 3, 8)"),
    (checks.dy, (zeros(6, 3, 10), 7, 3, PROJECTED), ValueError,
     "dy must have shape (seq_len=7, batch_size=3, num_directions*proj_size=10), got (6, 3, 10)"),
    (checks.weights, ([0.0], GRU), TypeError, "w must be a numpy.ndarray, got list"),
    (checks.weights, (zeros(42, dtype="float64"), GRU), TypeError,
     'w must be float32 as the descriptor says, got float64; convert it with w.astype("float32")'),
    (checks.weights, (zeros(41), GRU), ValueError, "w must have shape (num_weights=42,), got (41,)"),
    (checks.weights, (zeros(84)[::2], GRU), ValueError,
     "w must be C-contiguous, got strides (8,); copy it with w.copy()"),
    (checks.weight_gradient, (zeros(43), GRU), ValueError, "dw must have shape (num_weights=42,), got (43,)"),
    (checks.weight_gradient, (read_only(zeros(42)), GRU), ValueError, "dw must be writeable, got a read-only array"),
    (checks.lengths, ([7, 8, 9], 7, 3), ValueError, "lengths[1] must be in 0..seq_len=7, got 8"),
    (checks.lengths, (np.array([7, 0, -1]), 7, 3), ValueError, "lengths[2] must be in 0..seq_len=7, got -1"),
    (checks.lengths, ([7, 0], 7, 3), ValueError, "lengths must have shape (batch_size=3,), got (2,)"),
    (checks.lengths, ([[7, 0, 1]], 7, 3), ValueError, "lengths must have shape (batch_size=3,), got (1, 3)"),
    (checks.lengths, (zeros(3), 7, 3), TypeError, "lengths must hold integers, got dtype float32"),
    (checks.lengths, ([7, 0.0, 1], 7, 3), TypeError, "lengths must hold integers, got dtype float64"),
    (checks.lengths, ([True, False, True], 7, 3), TypeError, "lengths must hold integers, got dtype bool"),
    (checks.lengths, (3, 7, 3), TypeError, "lengths must be None or an integer array on the host, got int"),
    (checks.lengths, ("703", 7, 3), TypeError, "lengths must be None or an integer array on the host, got str"),
    (checks.seed, (-1,), ValueError, f"seed must be in 0..{2**64 - 1}, got -1"),
    (checks.seed, (2**64,), ValueError, f"seed must be in 0..{2**64 - 1}, got {2**64}"),
    (checks.seed, (1.0,), TypeError, "seed must be None or an int, got float"),
    (checks.seed, (True,), TypeError, "seed must be None or an int, got bool"),
]


@pytest.mark.parametrize(("check", "arguments", "kind", "text"), REFUSED, ids=[case[-1] for case in REFUSED])
def test_refused(check, arguments, kind, text):
    with pytest.raises(kind) as caught:
        run(check, *arguments)
    assert str(caught.value) == f"forward: {text}"


@pytest.mark.parametrize("shift", [0, 1, 41])
def test_a_gradient_in_the_memory_of_the_weights_is_refused(shift):
    """Also where the two only overlap: adding to it would change the weights under way."""
    memory = np.zeros(84, np.float32)
    w, dw = memory[:42], memory[shift : shift + 42]
    y, *_, workspace = rnnkit.forward(GRU, w, zeros(4, 2, 3))
    with pytest.raises(ValueError, match=r"\Abackward: dw must "):
        rnnkit.backward(GRU, w, workspace, y, dw=dw)
    assert rnnkit.backward(GRU, w, workspace, y, dw=memory[42:]).dw.base is memory
