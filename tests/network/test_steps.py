"""Row numbers, listed or arithmetic; a batch in several calls of a kernel; and that no list outlives its results."""

import gc
import itertools

import numpy as np
import pytest
from combinations import pairs
from problems import CELLS, FLOAT32, Problem
from tolerances import GRADIENTS, OUTPUTS, assert_same_results
from traced import traced_bytes

import rnnkit
from rnnkit.call import steps
from rnnkit.cpu import route, rows, scheduler
from rnnkit.cpu.layer import groups_of
from rnnkit.cpu.route import steps_of_call
from rnnkit.cpu.rows import StepRows
from rnnkit_kernels.machine import thread_pool


def test_listed_rows_are_those_written_by_hand():
    part = StepRows(3, 3, padded=True).relist(3, np.array([1, 0, 3])).whole

    def numbers(rows, count=4):
        return (rows.numbers + rows.shift)[:count].tolist()

    assert part.starts.tolist() == [0, 2, 3, 4]
    assert numbers(part.positions) == [0, 1, 2, 3]
    assert numbers(part.rows, 9) == [2, 0, 5, 8, 1, 3, 4, 6, 7]  # behind the last position, the padding
    assert numbers(part.batch) == [2, 0, 2, 2] and numbers(part.following) == [5, 3, 8, 11]
    assert numbers(part.previous[0]) == [2, 0, 5, 8] and numbers(part.previous[1]) == [8, 12, 11, 14]
    assert numbers(part.double_buffered[0]) == [2, 0, 5, 2] and numbers(part.double_buffered[1]) == [5, 3, 2, 5]


@pytest.fixture
def many_calls(monkeypatch):
    """Few rows and little work in a call of a kernel."""
    monkeypatch.setattr(route, "_CALL_WORK", 1)
    monkeypatch.setattr(route, "_CHUNK_BYTES", 1 << 10)
    for module in (steps, rows, route):
        monkeypatch.setattr(module, "LISTED_ROWS", 1050)


# Backward goes through 1024 rows at a time, whole steps of them.
BATCHES = [(3, 700, None), (1030, 3, None), (3, 700, (700, 0, 350)), (5, 450, (450, 449, 0, 1, 230))]
LAYERS = [dict(num_layers=3, dropout=0.5), dict(num_layers=4), dict(num_layers=2, bidirectional=True)]


def run_everything(problem):
    result = problem.forward()
    return result, problem.backward(result.workspace), problem.infer()


def assert_same_in_many_calls(problem, request):
    expected = run_everything(problem)
    request.getfixturevalue("many_calls")
    for one, other, names in zip(run_everything(problem), expected, (OUTPUTS, GRADIENTS, OUTPUTS), strict=True):
        assert_same_results(one, other, names)


@pytest.mark.parametrize(("cell", "batch", "layers"), pairs(FLOAT32, BATCHES, LAYERS))
def test_several_calls_of_a_kernel_are_bit_identical_to_one(request, cell, batch, layers):
    batch_size, seq_len, lengths = batch
    problem = Problem(**CELLS[cell], **layers, batch_size=batch_size, seq_len=seq_len, lengths=lengths, dtype="float32")
    assert_same_in_many_calls(problem, request)


@pytest.mark.cores(2)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", FLOAT32)
def test_several_calls_with_dealt_units_are_bit_identical_to_one(request, monkeypatch, cell, directions):
    """Both layers, or directions, then run one after the other in each call, with all threads."""
    monkeypatch.setattr(thread_pool, "wanted_size", lambda: 2)
    for constant, value in (("_UNIT_GRAIN", 16), ("_GRAIN_WORK", 0), ("CACHED_BYTES", -1)):
        monkeypatch.setattr(scheduler, constant, value)
    sizes = dict(input_size=9, hidden_size=33, batch_size=5, seq_len=450, dtype="float32")
    problem = Problem(**CELLS[cell], **sizes, num_layers=2, bidirectional=directions == 2)
    assert_same_in_many_calls(problem, request)


@pytest.mark.parametrize("mode", ["rnn_tanh", "lstm"])
def test_kernel_call_has_little_work_or_one_chunk(mode):
    for size, batch_size, chunk in itertools.product([1, 64, 1024], [1, 7, 4096, 100_000], [1, 16, 1024]):
        (group,) = groups_of(rnnkit.RNNDescriptor(mode, size, size, num_layers=2))
        count = steps_of_call(group, batch_size, chunk)
        work = count * batch_size * sum(layer.work for layer in group)
        assert count >= 1
        assert count <= chunk or (count % chunk == 0 and work <= route._CALL_WORK)
        assert count == 1 or count * batch_size <= steps.LISTED_ROWS


@pytest.mark.parametrize("directions", [1, 2])
def test_row_numbers_of_equal_lengths_take_little_memory(directions):
    net = rnnkit.RNN(1, 1, bidirectional=directions == 2, seed=0)
    x = np.zeros((100_000, 24, 1), np.float32)
    y_bytes = x.nbytes * directions

    def train(x):
        net.backward(net.forward(x).workspace, dhy=np.ones((directions, x.shape[1], 1), x.dtype))

    for call in (net.infer, train):
        call(x[:20, :20])  # compiled
    gc.collect()
    stays, most = traced_bytes(lambda: (net.infer(x), gc.collect()))
    assert stays < 4 << 20  # no list outlives the results
    assert most < y_bytes + (16 << 20)
    _, most = traced_bytes(lambda: train(x))  # hidden states, gates, dx and, of two directions, one more of it
    assert most < (3 * directions + 1) * y_bytes + (32 << 20)
