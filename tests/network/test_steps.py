"""Row numbers, listed or arithmetic; a batch in several calls of a kernel; and that no list outlives its results."""

import gc

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
from rnnkit.cpu.rows import Rows, StepRows, same_length
from rnnkit_kernels.machine import thread_pool


def numbers(rows: Rows):
    return (rows.numbers + rows.shift).tolist()


def listed(seq_len, lengths):
    """The same steps, with a list of all rows even where the sequences are of one length."""
    return StepRows(seq_len, len(lengths), padded=True).relist(seq_len, np.array(lengths))


@pytest.mark.parametrize(("first", "last"), [(0, 5), (0, 2), (1, 4), (2, 5), (3, 4), (4, 5), (2, 2)])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_computed_rows_equal_listed_ones(batch_size, first, last):
    found, expected = same_length(5, batch_size).part(first, last), listed(5, [5] * batch_size).part(first, last)
    begin, end = expected.starts[0], expected.starts[-1]
    assert (found.starts - found.starts[0]).tolist() == (expected.starts - begin).tolist()
    assert found.count == expected.count == end - begin
    pairs = [(getattr(found, name), getattr(expected, name)) for name in ("positions", "rows", "batch", "following")]
    for name in ("previous", "double_buffered"):
        pairs += zip(getattr(found, name), getattr(expected, name), strict=True)
    for one, other in pairs:
        assert numbers(one)[: found.count] == numbers(other)[begin:end]


def test_listed_rows_are_those_written_by_hand():
    part = listed(3, [1, 0, 3]).whole
    assert part.starts.tolist() == [0, 2, 3, 4]
    assert numbers(part.positions)[:4] == [0, 1, 2, 3]
    assert numbers(part.rows) == [2, 0, 5, 8, 1, 3, 4, 6, 7]  # behind the last position, the padding
    assert numbers(part.batch)[:4] == [2, 0, 2, 2] and numbers(part.following)[:4] == [5, 3, 8, 11]
    assert numbers(part.previous[0])[:4] == [2, 0, 5, 8] and numbers(part.previous[1])[:4] == [8, 12, 11, 14]
    assert numbers(part.double_buffered[0])[:4] == [2, 0, 5, 2] and numbers(part.double_buffered[1])[:4] == [5, 3, 2, 5]


def test_lists_are_reused_for_other_batches():
    """What refers to the arrays of the first batch finds the rows of each that comes; so does a part of the steps."""
    rng, kept = np.random.default_rng(0), listed(7, [6, 0, 7, 3, 3])
    (part, later), bounds = (kept.whole, kept.part(2, 6)), kept.bounds(2)
    ends = *kept.final, *kept.double_buffered_ends
    for _ in range(50):
        lengths = rng.integers(0, 8, 5)
        assert kept.relist(7, lengths) is kept
        expected, order = listed(7, lengths), sorted(range(5), key=lambda n: (-lengths[n], n))
        positions = [(t, n) for t in range(7) for n in order if t < lengths[n]]
        count = part.starts[-1]
        assert part.count == count == len(positions)
        assert numbers(part.rows)[:count] == [5 * t + n for t, n in positions]
        assert sorted(numbers(part.rows)) == list(range(35))
        behind = [5 * (t + 2 if t + 1 < lengths[n] else 8) + n for t, n in positions]
        assert numbers(part.previous[1])[:count] == behind
        assert later.count == sum(2 <= t < 6 for t, _ in positions)
        assert bounds.tolist() == expected.bounds(2).tolist()
        for one, other in zip(ends, (*expected.final, *expected.double_buffered_ends), strict=True):
            assert numbers(one) == numbers(other)
        assert numbers(ends[0]) == [5 * length + n for n, length in enumerate(lengths)]


@pytest.mark.parametrize(("batch_size", "steps"), [(0, 5), (1, 5), (4, 2), (6, 1), (11, 1)])
def test_part_has_as_many_steps_as_are_listed_and_at_least_one(monkeypatch, batch_size, steps):
    monkeypatch.setattr(rows, "LISTED_ROWS", 10)
    found = [(part.start, part.stop) for part in same_length(5, batch_size).parts()]
    assert found == [(start, min(start + steps, 5)) for start in range(0, 5, steps)]


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
@pytest.mark.parametrize("size", [1, 64, 1024])
@pytest.mark.parametrize("batch_size", [1, 7, 4096, 100_000])
@pytest.mark.parametrize("chunk", [1, 16, 1024])
def test_kernel_call_has_little_work_or_one_chunk(mode, size, batch_size, chunk):
    (group,) = groups_of(rnnkit.RNNDescriptor(mode, size, size, num_layers=2))
    count = steps_of_call(group, batch_size, chunk)
    work = count * batch_size * sum(layer.work for layer in group)
    assert count >= 1
    assert count <= chunk or (count % chunk == 0 and work <= route._CALL_WORK)
    assert count == 1 or count * batch_size <= steps.LISTED_ROWS


def traced(call, x):
    """(bytes that stay, most bytes in between) of a call with x that has been made with a little of it."""

    def collected():
        call(x)
        gc.collect()

    call(x[:20, :20])
    gc.collect()
    return traced_bytes(collected)


@pytest.mark.parametrize("shape", [(100_000, 32, 1), (3, 400_000, 1)])
def test_row_numbers_do_not_outlive_the_results(shape):
    stays, _ = traced(rnnkit.RNN(1, 1, seed=0).infer, np.zeros(shape, np.float32))
    assert stays < 4 << 20


@pytest.mark.parametrize("directions", [1, 2])
def test_row_numbers_of_equal_lengths_take_little_memory(directions):
    net = rnnkit.RNN(1, 1, bidirectional=directions == 2, seed=0)
    x = np.zeros((100_000, 24, 1), np.float32)
    y_bytes = x.nbytes * directions
    _, most = traced(net.infer, x)
    assert most < y_bytes + (16 << 20)

    def train(x):
        net.backward(net.forward(x).workspace, dhy=np.ones((directions, x.shape[1], 1), x.dtype))

    _, most = traced(train, x)  # hidden states, gates, dx and, of two directions, one more of it
    assert most < (3 * directions + 1) * y_bytes + (32 << 20)
