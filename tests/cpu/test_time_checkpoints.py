"""Checkpoints in time: the bits of a training step without, whatever the network, the lengths and the segments."""

import itertools
from contextlib import contextmanager

import numpy as np
import pytest
from combinations import pairs
from hypothesis import given
from hypothesis import strategies as st
from idle import forget
from messages import raises
from problems import CELLS, FLOAT32, Problem
from strategies import problems
from tolerances import GRADIENTS, OUTPUTS, assert_same_bits, assert_same_results

import rnnkit
from rnnkit.call import steps
from rnnkit.call.arena import Arena
from rnnkit.call.steps import gradient_chunk, segments
from rnnkit.cpu import route, scheduler
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.gemm import depth_block


def assert_same_training(problem, checkpoint_steps):
    """y, hy, cy and all gradients have the bits of a training step without checkpoints, also when backward is called
    again, without some cotangents, and when dw is added to."""
    whole, found = problem.forward(), problem.forward(checkpoint_steps=checkpoint_steps)
    assert_same_results(found, whole, OUTPUTS)
    start, (dy, dhy, dcy) = problem.draw(7, problem.w.shape), problem.cotangents
    for cotangents, dw in (problem.cotangents, None), ((None, dhy, None), None), ((dy, None, dcy), start):
        into, expected_into = (None if dw is None else dw.copy() for _ in range(2))
        gradients = rnnkit.backward(problem.desc, problem.w, found.workspace, *cotangents, dw=into)
        expected = rnnkit.backward(problem.desc, problem.w, whole.workspace, *cotangents, dw=expected_into)
        assert_same_results(gradients, expected, GRADIENTS)
        assert into is None or gradients.dw is into


@pytest.fixture
def short_chunks(monkeypatch):
    """Chunks of few rows of gradients, with and without checkpoints: small problems have several segments."""
    monkeypatch.setattr(steps, "_GRADIENT_BYTES", 24)


@st.composite
def checkpointed(draw, some=None):
    """A problem, steps between checkpoints, below, at and above its own, and the rows of a chunk."""
    problem = draw(problems() if some is None else some)
    return problem, draw(st.integers(1, problem.seq_len + 2), label="checkpoint_steps"), draw(st.integers(1, 9))


def assert_same_training_in_chunks(problem, checkpoint_steps, rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "_GRADIENT_BYTES", rows * problem.desc.np_dtype.itemsize)
        forget()  # what was laid out for chunks of other sizes
        assert_same_training(problem, checkpoint_steps)


@given(checkpointed())
def test_every_combination_has_the_same_bits(case):
    assert_same_training_in_chunks(*case)


@given(checkpointed(problems(bidirectional=True, num_layers=3, dropout=0.5, steps=st.integers(2, 8))))
def test_every_deep_network_of_two_directions_has_the_same_bits(case):
    assert_same_training_in_chunks(*case)


LAYERS = [dict(num_layers=3, dropout=0.5), dict(num_layers=3, bidirectional=True, dropout=0.25), dict(num_layers=4)]
# float32 sums up 1024 rows at a time: chunks of 204 and 146 steps, and of one.
LONG = [(5, 450, None), (7, 300, (0, 300, 160, 1, 299, 300, 146)), (1030, 3, None)]


@pytest.mark.parametrize(("cell", "batch", "layers", "checkpoint_steps"), pairs(FLOAT32, LONG, LAYERS, [1, 205]))
def test_long_sequences_have_the_same_bits(cell, batch, layers, checkpoint_steps):
    batch_size, seq_len, lengths = batch
    sizes = dict(batch_size=batch_size, seq_len=seq_len, lengths=lengths, dtype="float32")
    assert_same_training(Problem(**CELLS[cell], **layers, **sizes), checkpoint_steps)


@pytest.mark.parametrize("checkpoint_steps", [1, 10**30])
@pytest.mark.parametrize("changes", [{"seq_len": 0}, {"batch_size": 0}, {"lengths": (0, 0, 0)}, {"seq_len": 1}])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_empty_problems_train_with_checkpoints(short_chunks, bidirectional, changes, checkpoint_steps):
    problem = Problem("lstm", num_layers=2, bidirectional=bidirectional, dropout=0.5).twin(**changes)
    assert_same_training(problem, checkpoint_steps)


@pytest.mark.cores(2)
@pytest.mark.parametrize(("dealt", "batch_size", "layers", "threads"), pairs([False, True], [5, 12], LAYERS, [2, 3, 4]))
def test_number_of_threads_changes_no_bit(monkeypatch, short_chunks, dealt, batch_size, layers, threads):
    """By rows of the batch or units, shared or dealt out; in several calls of a kernel a segment."""
    problem = Problem("lstm", 17, 33, batch_size=batch_size, seq_len=20, **layers, dtype="float32")
    monkeypatch.setattr(thread_pool, "wanted_size", lambda: 1)
    whole = problem.forward()
    expected = problem.backward(whole.workspace)
    monkeypatch.setattr(thread_pool, "wanted_size", lambda: threads)
    monkeypatch.setattr(thread_pool, "WAKE_THRESHOLD", 0)
    monkeypatch.setattr(route, "_CALL_WORK", 1)
    for constant, value in (("_UNIT_GRAIN", 16), ("_GRAIN_WORK", 0), ("CACHED_BYTES", -1)) if dealt else ():
        monkeypatch.setattr(scheduler, constant, value)
    found = problem.forward(checkpoint_steps=7)
    assert_same_results(found, whole, OUTPUTS)
    assert_same_results(problem.backward(found.workspace), expected, GRADIENTS)


DEEP = dict(num_layers=2, dropout=0.5, seq_len=9, lengths=(9, 0, 5))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_workspace_is_reused_with_and_without_checkpoints(short_chunks, bidirectional):
    """Between runs of other seeds, lengths, and sizes."""
    first, workspace = Problem("lstm", **DEEP, bidirectional=bidirectional), None
    changes = ({}, {"seed": 1, "lengths": None}, {"seq_len": 12}, {"hidden_size": 7, "batch_size": 5, "lengths": None})
    for change, checkpoint_steps in itertools.product(changes, (3, None, 1)):
        problem = first.twin(**change)
        result, alone = problem.forward(workspace=workspace, checkpoint_steps=checkpoint_steps), problem.forward()
        workspace = result.workspace
        assert_same_results(result, alone, OUTPUTS)
        assert_same_results(problem.backward(workspace), problem.backward(alone.workspace), GRADIENTS)


def test_training_loop_takes_no_more_memory(short_chunks, monkeypatch):
    """From the second step on y, the results of backward and small states alone are new."""
    problem, new, take = Problem("lstm", **DEEP, hidden_size=40), [], Arena._new_buffer
    workspace = problem.forward(checkpoint_steps=3).workspace
    problem.backward(workspace)
    monkeypatch.setattr(Arena, "_new_buffer", lambda *given: new.append(given) or take(*given))
    problem.backward(problem.forward(checkpoint_steps=3, workspace=workspace).workspace)
    assert new == []


def test_y_belongs_to_the_caller(short_chunks):
    """Nothing depends on it afterwards, neither backward nor the next forward."""
    problem = Problem("gru", **DEEP)
    result = problem.forward(checkpoint_steps=3)
    expected, y = problem.backward(problem.forward().workspace), result.y.copy()
    problem.twin(seed=5).forward(checkpoint_steps=3, workspace=problem.forward().workspace)
    assert_same_bits("y", result.y, y)
    result.y[:] = np.nan
    assert_same_results(problem.backward(result.workspace), expected, GRADIENTS)
    reused = problem.twin(seed=5).forward(checkpoint_steps=2, workspace=result.workspace)
    assert np.isnan(result.y).all() and not np.isnan(reused.y).any()


@pytest.mark.parametrize("layers", LAYERS)
def test_strided_inputs_and_nan_padding_change_no_bit(short_chunks, soil, layers):
    """Read-only ones; all new memory holds NaN, too."""
    problem, own = Problem("lstm", **DEEP | layers), Problem("lstm", **DEEP | layers)
    expected = problem.forward()
    gradients = problem.backward(expected.workspace)
    x, dy = (np.where(problem.valid[:, :, None], array, np.nan) for array in (problem.x, problem.dy))
    x, dy = np.repeat(x, 2, axis=1)[:, ::2], np.asfortranarray(dy)
    x.flags.writeable = dy.flags.writeable = False
    own.__dict__.update(x=x, dy=dy)
    soil(0xFF)
    found = own.forward(checkpoint_steps=2)
    assert_same_results(found, expected, OUTPUTS)
    assert_same_results(own.backward(found.workspace), gradients, GRADIENTS)


def kernel_calls(monkeypatch, call):
    """The names of the kernels that a call runs."""
    run, names = thread_pool.run, []
    with monkeypatch.context() as patch:
        patch.setattr(thread_pool, "run", lambda *arguments: names.append(arguments[0].__name__) or run(*arguments))
        call()
    return names


class Interruption(Exception):
    pass


@contextmanager
def interruption(monkeypatch, number):
    """Within it the kernel call of this number, and every later one, raises."""
    run, left = thread_pool.run, iter(range(number))

    def limited(*arguments):
        if next(left, None) is None:
            raise Interruption
        run(*arguments)

    with monkeypatch.context() as patch, pytest.raises(Interruption):
        patch.setattr(thread_pool, "run", limited)
        yield


@pytest.mark.parametrize("layers", LAYERS)
def test_calls_are_right_after_an_exception_in_any_kernel(monkeypatch, short_chunks, layers):
    """What was interrupted in a segment is not taken for whole."""
    problem = Problem("gru", **DEEP | layers)
    expected = problem.backward(problem.forward().workspace)
    workspace = problem.forward(checkpoint_steps=3).workspace
    calls = len(kernel_calls(monkeypatch, lambda: problem.backward(workspace)))
    assert calls > 9
    for number in range(calls):
        with interruption(monkeypatch, number):
            problem.backward(workspace)
        assert_same_results(problem.backward(workspace), expected, GRADIENTS)
    for number in range(6):
        with interruption(monkeypatch, number):
            problem.twin(seed=9).forward(checkpoint_steps=3, workspace=workspace)
        workspace = problem.forward(checkpoint_steps=3, workspace=workspace).workspace
        assert_same_results(problem.backward(workspace), expected, GRADIENTS)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_last_segment_is_not_run_again(monkeypatch, short_chunks, bidirectional):
    problem = Problem("rnn_tanh", seq_len=12, batch_size=6, bidirectional=bidirectional, dtype="float32")
    workspace = problem.forward(checkpoint_steps=3).workspace
    chains = 1 + bidirectional  # each with four segments
    for again in (4 * chains - 1, 4 * chains):  # then the first steps of the sequence were run last
        names = kernel_calls(monkeypatch, lambda: problem.backward(workspace))
        assert (names.count("forward"), names.count("backward")) == (again, 4 * chains)
    if not bidirectional:
        workspace = problem.forward(checkpoint_steps=12).workspace
        for _ in range(2):
            assert "forward" not in kernel_calls(monkeypatch, lambda: problem.backward(workspace))


def test_segments_are_whole_chunks_counted_from_the_end():
    """A chunk is what a product works through at once."""
    assert gradient_chunk(100, 4) == 10 and gradient_chunk(1, 8) == gradient_chunk(0, 8) == depth_block(8)
    assert segments(95, 100, 4, 11) == [(0, 15), (15, 35), (35, 55), (55, 75), (75, 95)]
    assert segments(40, 100, 4, 20) == [(0, 20), (20, 40)]
    assert segments(40, 100, 4, 50) == segments(40, 100, 4, 10**30) == [(0, 40)]
    assert segments(0, 100, 4, 1) == [(0, 0)] and segments(3, 0, 8, 1) == [(0, 3)]


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int64])
def test_checkpoint_steps_may_be_of_any_integer_type(kind):
    """What has no negative, or overflows, where it is rounded up."""
    net, x = rnnkit.GRU(3, 4, seed=0), np.ones((9, 2, 3), np.float32)
    found = net.forward(x, checkpoint_steps=kind(100))
    assert type(found.workspace.checkpoint_steps) is int
    assert_same_results(found, net.forward(x, checkpoint_steps=100), OUTPUTS)
    assert rnnkit.workspace_nbytes(net.desc, 9, 2, kind(100)) == rnnkit.workspace_nbytes(net.desc, 9, 2, 100)


WRONG = [(0, ValueError, "1 | 0"), (-3, ValueError, "1 | -3"), (True, TypeError, "None | int | bool")]
WRONG += [("8", TypeError, "None | int | str"), (np.float32(8), TypeError, "None | int | numpy.float32")]


@pytest.mark.parametrize(("value", "error", "facts"), WRONG)
def test_invalid_checkpoint_steps_are_refused(value, error, facts):
    problem = Problem("gru")
    with raises(error, f"forward: checkpoint_steps | {facts}"):
        problem.forward(checkpoint_steps=value)
    with raises(error, f"workspace_nbytes: checkpoint_steps | {facts}"):
        rnnkit.workspace_nbytes(problem.desc, 4, 3, value)


def test_states_of_every_step_are_refused():
    problem = Problem("lstm", dtype="float32")
    workspace = problem.forward(checkpoint_steps=np.int64(3)).workspace
    assert workspace.checkpoint_steps == 3 and problem.forward().workspace.checkpoint_steps is None
    for name in ("hidden", "cell"):
        with raises(rnnkit.WorkspaceError, f"{name}: checkpoint_steps | None | 3"):
            getattr(workspace, name)(0)
    problem.forward(checkpoint_steps=3, workspace=workspace)
    with raises(rnnkit.WorkspaceError, "hidden: workspace | latest forward"):
        workspace.hidden(0)
