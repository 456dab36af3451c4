"""What is assigned to a network's weights, or to a block of them, is written to the buffer that others hold, too."""

import numpy as np
import pytest
from messages import raises
from tolerances import assert_same_bits

import rnnkit
from rnnkit import GRU, LSTM

BLOCK = "bias_hh_l0"


def test_assigned_array_is_copied():
    net, w = LSTM(3, 5, seed=0), np.arange(200, dtype=np.float32)
    buffer = net.weights
    net.weights = w
    w[:] = 0
    assert net.weights is buffer and net.views[BLOCK].tolist() == list(range(180, 200))
    net.weights = net.weights[::-1].copy()
    net.weights -= np.float32(1)
    assert net.weights is buffer and net.views[BLOCK].tolist() == list(range(18, -2, -1))


def test_block_is_assigned_and_changed_in_place():
    net = GRU(3, 2, seed=0)
    buffer, before = net.weights, net.weights.copy()
    net.views[BLOCK] = np.full(6, 2, np.float32)
    net.views[BLOCK] *= 3
    assert net.weights is buffer and (buffer[-6:] == 6).all()
    assert_same_bits("others", buffer[:-6], before[:-6])
    assert list(net.views) == [block.name for block in rnnkit.weight_layout(net.desc)]
    assert len(net.views) == 4 and BLOCK in net.views and repr(net.views).startswith("{'weight_ih_l0': array(")
    assert_same_bits("packed", rnnkit.pack_weights(net.desc, net.views), buffer)


VIEW = 'views["bias_hh_l0"]'
NO_BLOCK = "views | weight_ih_l0 | weight_hh_l0 | bias_ih_l0 | bias_hh_l0 | 'weight'"
REFUSED = [
    ("weight", np.zeros(6, "f4"), ValueError, NO_BLOCK),
    (BLOCK, np.zeros(6), TypeError, f'{VIEW} | float32 | float64 | .astype("float32")'),
    (BLOCK, np.zeros(5, "f4"), ValueError, f"{VIEW} | (rows=6,) | (5,)"),
    ("weight_ih_l0", np.zeros((3, 6), "f4"), ValueError, 'views["weight_ih_l0"] | (rows=6, columns=3) | (3, 6)'),
    (BLOCK, 0.0, TypeError, f"{VIEW} | array | float"),
    (BLOCK, np.ma.zeros(6, "f4"), TypeError, f"{VIEW} | array | numpy.ma.MaskedArray"),
    (None, np.zeros(41, "f4"), ValueError, "weights | (num_weights=42,) | (41,)"),
    (None, np.zeros(42), TypeError, 'weights | float32 | float64 | weights.astype("float32")'),
    (None, np.ma.zeros(42, "f4"), TypeError, "weights | numpy.ma.MaskedArray"),
    (None, [0.0] * 42, TypeError, "weights | array | list"),
]


@pytest.mark.parametrize(("name", "array", "kind", "text"), REFUSED)
def test_wrong_weights_are_refused_and_nothing_is_written(name, array, kind, text):
    net = GRU(3, 2, seed=0)
    buffer, before = net.weights, net.weights.copy()
    with raises(kind, f"GRU: {text}"):
        if name is None:
            net.weights = array
        else:
            net.views[name] = array
    assert net.weights is buffer
    assert_same_bits("weights", buffer, before)


def test_read_only_memory_is_not_written():
    w = LSTM(3, 5, seed=0).weights
    net = LSTM.from_descriptor(rnnkit.RNNDescriptor("lstm", 3, 5), w)
    w.flags.writeable = False
    with raises(ValueError, "LSTM: weights | read-only | array | net.copy()"):
        net.weights = np.zeros(200, np.float32)
    with raises(ValueError, f"LSTM: {VIEW} | read-only | array | net.copy()"):
        net.views[BLOCK] = np.zeros(20, np.float32)
    net.copy().weights = np.zeros(200, np.float32)


def test_arrays_of_another_device_are_refused(standin):
    import cupy

    net = LSTM(3, 5, seed=0)
    moved, before = net.to(cupy), net.weights.copy()
    moved.weights = cupy.asarray(np.zeros(200, np.float32))
    moved.views[BLOCK] = cupy.asarray(np.ones(20, np.float32))
    assert moved.weights.get().tolist() == [0] * 180 + [1] * 20
    facts = "host (NumPy) | GPU 0 (CuPy) | net.to(numpy or cupy)"
    with raises(ValueError, f"LSTM: weights | {facts}"):
        net.weights = moved.weights
    with raises(ValueError, f"LSTM: {VIEW} | {facts}"):
        net.views[BLOCK] = moved.views[BLOCK]
    assert_same_bits("weights", net.weights, before)
    with raises(ValueError, "LSTM: weights | GPU 0 (CuPy) | host"):
        moved.weights = before
