"""Laws that hold between runs of the engine, whatever the right values are."""

import numpy as np
import pytest
from problems import ALL_CASES, problem_of
from several_states import arrays_of, each_of
from tolerances import GRADIENTS, OUTPUTS, assert_gradient_close, assert_same_bits, assert_same_results

import rnnkit
from rnnkit_kernels.machine import thread_pool

of_each_cell = pytest.mark.parametrize(("cell", "dtype"), ALL_CASES)

SHAPE = dict(seq_len=7, batch_size=6, hidden_size=17, input_size=5)
STACK = dict(num_layers=2, bidirectional=True)
RAGGED = (7, 0, 3, 1, 7, 5)


def make(cell, dtype, **options):
    return problem_of(cell, **SHAPE | {"dtype": dtype} | options)


def columns_of(state, columns):
    return each_of(lambda array: np.ascontiguousarray(array[:, columns]), state)


def run_all(problem):
    outputs = problem.forward()
    return outputs, problem.backward(outputs.workspace)


def run_row(batch, row, length):
    """A sequence of a batch by itself, that many steps of it."""
    arrays = (batch.x[:length], batch.hx, batch.cx, batch.dy[:length], batch.dhy, batch.dcy)
    x, hx, cx, *cotangents = (columns_of(array, slice(row, row + 1)) for array in arrays)
    outputs = rnnkit.forward(batch.desc, batch.w, x, hx, cx, seed=batch.seed)
    return outputs, rnnkit.backward(batch.desc, batch.w, outputs.workspace, *cotangents)


def assert_same_runs(actual, expected):
    """Training step and inference have the same bits."""
    for found, wanted, names in zip(run_all(actual), run_all(expected), (OUTPUTS, GRADIENTS), strict=True):
        assert_same_results(found, wanted, names)
    assert_same_results(actual.infer(), expected.infer(), OUTPUTS)


@of_each_cell
@pytest.mark.parametrize("lengths", [None, RAGGED])
def test_batch_has_the_bits_of_its_sequences_alone(cell, dtype, lengths):
    """Their weight gradients add up."""
    batch = make(cell, dtype, **STACK, lengths=lengths)
    outputs, gradients = run_all(batch)
    dw = np.zeros(batch.w.shape)
    for row, length in enumerate(batch.lengths or [batch.seq_len] * batch.batch_size):
        found, back = run_row(batch, row, length)
        whole = outputs._replace(y=outputs.y[:length]), gradients._replace(dx=gradients.dx[:length])
        for all_rows, alone, names in zip(whole, (found, back), (OUTPUTS, GRADIENTS[:3]), strict=True):
            own = {name: columns_of(getattr(all_rows, name), slice(row, row + 1)) for name in names}
            assert_same_results(all_rows._replace(**own), alone, names)
        assert not outputs.y[length:, row].any() and not gradients.dx[length:, row].any()
        dw += back.dw
    assert_gradient_close("dw", gradients.dw, dw, batch.dtype)


@of_each_cell
def test_missing_state_is_zeros(cell, dtype):
    absent = make(cell, dtype, **STACK, lengths=RAGGED, states=False)
    zeros = absent.twin(states=True)
    for name in ("hx", "cx"):
        zeros.__dict__[name] = each_of(np.zeros_like, getattr(zeros, name))
    assert_same_runs(absent, zeros)


@of_each_cell
@pytest.mark.parametrize("garbage", [np.nan, np.inf])
def test_padding_is_ignored_whatever_it_holds(cell, dtype, garbage):
    clean = make(cell, dtype, **STACK, lengths=RAGGED, dropout=0.5)
    dirty = clean.twin()
    dirty.x[~dirty.valid] = garbage
    dirty.dy[~dirty.valid] = garbage
    assert_same_runs(dirty, clean)
    assert not run_all(dirty)[1].dx[~clean.valid].any()


@of_each_cell
@pytest.mark.parametrize(("seq_len", "lengths"), [(7, RAGGED), (7, (0,) * 6), (0, None), (0, (0,) * 6)])
def test_empty_sequences_pass_states_and_gradients_through(cell, dtype, seq_len, lengths):
    problem = make(cell, dtype, **STACK, seq_len=seq_len, lengths=lengths)
    outputs, gradients = run_all(problem)
    planned = rnnkit.prepare(problem.desc, problem.w).infer(*problem.inputs[1:], lengths=problem.lengths_array)
    empty = [n for n, length in enumerate(lengths or (0,) * 6) if length == 0]
    passed = [("hy", one.hy, problem.hx) for one in (outputs, problem.infer(), planned)]
    passed += [("cy", one.cy, problem.cx) for one in (outputs, problem.infer(), planned)]
    for name, *pair in (*passed, ("dhx", gradients.dhx, problem.dhy), ("dcx", gradients.dcx, problem.dcy)):
        for found, given in zip(*map(arrays_of, pair), strict=True):
            assert_same_bits(name, found[:, empty], given[:, empty])
    assert outputs.y.shape == (seq_len, 6, 2 * problem.output_size) and gradients.dx.shape == problem.x.shape
    assert not outputs.y[:, empty].any() and not gradients.dx[:, empty].any()
    assert gradients.dw.any() == (seq_len > 0 and any(lengths))


def strided(array):
    """Batch-major, and every other element."""
    return np.repeat(array.swapaxes(0, 1), 2, axis=-1)[..., ::2].swapaxes(0, 1)


def misaligned(array):
    """As in a record that begins with a byte."""
    return np.frombuffer(b"." + array.tobytes(), array.dtype, offset=1).reshape(array.shape)


def arrays_in(value):
    parts = [array for part in value for array in arrays_in(part)] if isinstance(value, tuple) else []
    return [value] if isinstance(value, np.ndarray) else parts


@pytest.fixture
def aligned(monkeypatch):
    """Every array that a kernel receives is aligned: it is no part of a type, and many CPUs do not care."""
    run = thread_pool.run

    def watched(kernel, work, *arguments):
        assert all(array.flags.aligned for array in arrays_in(arguments)), f"{kernel} received a misaligned array"
        run(kernel, work, *arguments)

    monkeypatch.setattr(thread_pool, "run", watched)


@of_each_cell
@pytest.mark.parametrize("moved", [strided, misaligned])
def test_any_memory_order_gives_the_same_bits(aligned, cell, dtype, moved):
    plain = make(cell, dtype, **STACK, lengths=RAGGED)
    other = plain.twin()
    for name in ("x", "hx", "cx", "dy", "dhy", "dcy"):
        other.__dict__[name] = each_of(moved, getattr(plain, name))
    assert_same_runs(other, plain)
    planned = rnnkit.prepare(plain.desc, plain.w).infer(*other.inputs[1:], lengths=plain.lengths_array)
    assert_same_results(planned, plain.infer(), OUTPUTS)
    problem = plain.twin(bidirectional=False, lengths=None)
    plan, arrays = rnnkit.prepare(problem.desc, problem.w), (problem.x[0], problem.hx, problem.cx)
    found = plan.step(*(each_of(moved, state) for state in arrays))
    assert_same_results(found, plan.step(*arrays), OUTPUTS)
