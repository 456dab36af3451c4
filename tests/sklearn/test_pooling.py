"""Pooling and the model around it: naive twins, gradients by finite differences, padding that is never read."""

import numpy as np
import pytest
from gradcheck import assert_gradients
from hypothesis import given
from hypothesis import strategies as st
from tolerances import assert_close, assert_same_bits

import rnnkit
from rnnkit import training
from rnnkit.sklearn import model as module
from rnnkit.sklearn.model import Model
from rnnkit.sklearn.pooling import POOLINGS, pool
from rnnkit.sklearn.sequences import Sequences, from_list

LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=5)
MODES = {"lstm": rnnkit.LSTM, "gru": rnnkit.GRU, "rnn_tanh": rnnkit.RNN}


def sequences_of(lengths, input_size, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(length, input_size)).astype(dtype) for length in lengths]


def make(net, num_outputs, pooling, dropout=0.0):
    width = net.desc.num_directions * net.desc.output_size
    return Model(net, training.init_dense(width, num_outputs, 1, net.desc.dtype), pooling, dropout)


def naive_scores(model, net, pooling, sequences):
    """One sequence at a time, and one output after the other."""
    weights = model.parameters[1]
    size, found = net.desc.output_size, []
    num_outputs = weights.size // (size * net.desc.num_directions + 1)
    matrix, bias = weights[:-num_outputs].reshape(num_outputs, -1), weights[-num_outputs:]
    for sequence in sequences:
        y = net.infer(sequence[:, np.newaxis]).y[:, 0]
        columns = {
            "last": [y[-1, j] if j < size else y[0, j] for j in range(y.shape[1])],
            "mean": [sum(y[:, j]) / len(y) for j in range(y.shape[1])],
            "max": [max(y[:, j]) for j in range(y.shape[1])],
        }[pooling]
        found.append([sum(row * columns) + b for row, b in zip(matrix, bias, strict=True)])
    return np.array(found)


@pytest.mark.parametrize("pooling", POOLINGS)
@given(lengths=LENGTHS, bidirectional=st.booleans(), layers=st.integers(1, 2))
def test_scores_equal_those_of_each_sequence_alone(pooling, lengths, bidirectional, layers):
    net = rnnkit.GRU(2, 3, layers, bidirectional, seed=0, dtype="float64")
    model, sequences = make(net, 2, pooling), sequences_of(lengths, 2)
    found = model.scores(from_list("test", sequences))
    assert_close("scores", found, naive_scores(model, net, pooling, sequences), "float64")


@pytest.mark.parametrize("pooling", POOLINGS)
def test_scores_do_not_depend_on_blocks(pooling, monkeypatch):
    sequences = from_list("test", sequences_of([3, 9, 1, 4, 9, 2, 5], 2))
    model = make(rnnkit.LSTM(2, 3, seed=0, dtype="float64"), 2, pooling)
    expected = model.scores(sequences)
    for most, steps in (2, 1 << 16), (256, 10), (256, 1):
        monkeypatch.setattr(module, "BLOCK_SEQUENCES", most)
        monkeypatch.setattr(module, "BLOCK_STEPS", steps)
        assert [len(block) for block in module._blocks(sequences.lengths)][0] == min(most, max(1, steps // 9), 7)
        assert_close("scores", model.scores(sequences), expected, "float64")


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradient_equals_finite_differences(mode, pooling, dropout):
    net = MODES[mode](2, 3, 2, True, seed=0, dtype="float64", dropout=dropout)
    model = make(net, 2, pooling, dropout)
    sequences = from_list("test", sequences_of([4, 1, 6, 3], 2))
    targets, numbers = np.random.default_rng(1).normal(size=(4, 2)), np.array([2, 0, 3, 1])
    blocks = dict(zip(("network", "readout"), [array.copy() for array in model.parameters], strict=True))

    def objective(scores, numbers):
        return training.squared_error(scores, targets[numbers])[:2]

    def loss(values):
        for array, value in zip(model.parameters, values.values(), strict=True):
            array[...] = value
        return model.find_gradient(sequences, numbers, objective, seed=5)

    def gradients(values):
        loss(values)
        loss(values)  # what is there from before does not count
        return dict(zip(values, [array.copy() for array in model.gradients], strict=True))

    assert_gradients(loss, gradients, blocks, seed=0)


def test_mean_of_single_numbers_ignores_other_sequences():
    y = np.random.default_rng(0).normal(size=(200, 3, 1)).astype("float32")
    lengths = np.full(3, 200)
    whole = pool("mean", y, y[:1], lengths, 1).values
    for row in range(3):
        alone = pool("mean", np.ascontiguousarray(y[:, row : row + 1]), y[:1, :1], lengths[:1], 1).values
        assert_same_bits("mean", alone, whole[row : row + 1])


def test_first_of_equal_outputs_is_the_maximum():
    y = np.array([[[1.0, -2.0]], [[1.0, -1.0]], [[0.0, -1.0]], [[0.0, 0.0]]])
    found = pool("max", y, np.zeros((1, 1, 2)), np.array([3]), 1)
    assert found.values.tolist() == [[1.0, -1.0]]
    assert found.steps.tolist() == [[[0, 1]]]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_padding_is_never_read(pooling):
    lengths = np.array([2, 5, 1])
    arrays, starts, numbers = sequences_of(lengths, 2), np.array([1, 4, 10]), np.array([0, 1, 2])
    together = from_list("test", arrays)
    wild = np.concatenate([np.full((1, 2), np.nan) if i % 2 == 0 else arrays[i // 2] for i in range(7)])
    apart = Sequences(wild, starts, lengths)
    assert np.isnan(apart.batch()).any()
    model = make(rnnkit.GRU(2, 3, bidirectional=True, seed=0, dtype="float64"), 2, pooling)
    assert_same_bits("scores", model.scores(apart), model.scores(together))
    assert_same_bits("steps", apart.valid(), together.steps)

    def gradient_of(sequences):
        model.find_gradient(sequences, numbers, lambda scores, _: (0.0, scores), 0)
        return [array.copy() for array in model.gradients]

    for actual, expected in zip(gradient_of(apart), gradient_of(together), strict=True):
        assert_same_bits("gradient", actual, expected)


def test_dropout_keeps_the_mean():
    model = make(rnnkit.GRU(2, 400, seed=0), 2, "last", 0.25)
    mask = model._dropout_mask(np.ones((50, 400), np.float32), 3)
    assert mask.dtype == np.float32 and set(np.unique(mask)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
    assert abs(mask.mean() - 1) < 0.02
    assert_same_bits("mask", model._dropout_mask(mask, 3), mask)
    assert (model._dropout_mask(mask, 4) != mask).any()
