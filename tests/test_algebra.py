"""Laws that hold between runs of the engine, whatever the right values are."""

import numpy as np
import pytest
from combinations import nightly
from problems import CASES, CELLS, Problem
from tolerances import (
    GRADIENTS,
    OUTPUTS,
    assert_close,
    assert_gradient_close,
    assert_gradients_close,
    assert_same_bits,
    assert_same_results,
)

import rnnkit
from rnnkit_kernels.machine import thread_pool

of_each_cell = pytest.mark.parametrize(("cell", "dtype"), CASES)
# One layer of one direction is a kernel of its own.
in_parts = pytest.mark.parametrize(("cell", "dtype"), [
    case if case.values[1] == "float32" else nightly(*case.values) for case in CASES
])  # fmt: skip

SHAPE = dict(seq_len=7, batch_size=6, hidden_size=17, input_size=5)
RAGGED = (7, 0, 3, 1, 7, 5)


def make(cell, dtype, **options):
    return Problem(**{**SHAPE, **CELLS[cell], "dtype": dtype, **options})


def some_weights(problem, names, of):
    """The flat buffer of `problem` from the blocks that `of` holds under other names."""
    return rnnkit.pack_weights(problem.desc, {name: of.views[names(name)] for name in problem.views})


def rows_of(array, rows):
    return None if array is None else np.ascontiguousarray(array[rows])


def columns_of(array, columns):
    return None if array is None else np.ascontiguousarray(array[:, columns])


def run(problem, w, x, hx, cx, dy, dhy, dcy, lengths=None):
    """Forward and backward on explicit arrays."""
    outputs = rnnkit.forward(problem.desc, w, x, hx, cx, lengths=lengths, seed=problem.seed)
    return outputs, rnnkit.backward(problem.desc, w, outputs.workspace, dy, dhy, dcy)


def run_all(problem):
    return run(problem, *problem.inputs, *problem.cotangents, lengths=problem.lengths_array)


def run_rows(problem, whole, rows, time=slice(None), length=None):
    """The rows of a batch by themselves, `time` steps of them."""
    part = (whole.w, np.ascontiguousarray(whole.x[time, rows]), columns_of(whole.hx, rows), columns_of(whole.cx, rows))
    cotangents = (whole.dy[time, rows], whole.dhy[:, rows], columns_of(whole.dcy, rows))
    return run(problem, *part, *(None if d is None else np.ascontiguousarray(d) for d in cotangents), lengths=length)


@in_parts
def test_two_directions_are_two_runs(cell, dtype):
    both = make(cell, dtype, bidirectional=True)
    one = both.twin(bidirectional=False)
    outputs, gradients = run_all(both)
    dx, size = 0, both.output_size
    for direction, suffix in enumerate(("", "_reverse")):
        w = some_weights(one, lambda name, suffix=suffix: name + suffix, both)
        order = slice(None, None, -1 if direction else 1)
        row = slice(direction, direction + 1)
        half = slice(direction * size, (direction + 1) * size)
        states = rows_of(both.hx, row), rows_of(both.cx, row)
        cotangents = both.dy[order, :, half].copy(), rows_of(both.dhy, row), rows_of(both.dcy, row)
        found, back = run(one, w, both.x[order].copy(), *states, *cotangents)
        assert_close("y", outputs.y[..., half], found.y[order], dtype)
        assert_close("hy", outputs.hy[row], found.hy, dtype)
        assert_close("cy", rows_of(outputs.cy, row), found.cy, dtype)
        assert_gradient_close("dhx", gradients.dhx[row], back.dhx, dtype)
        assert_gradient_close("dcx", rows_of(gradients.dcx, row), back.dcx, dtype)
        dw, wanted = rnnkit.weight_views(both.desc, gradients.dw), rnnkit.weight_views(one.desc, back.dw)
        for name in wanted:
            assert_gradient_close(name + suffix, dw[name + suffix], wanted[name], dtype)
        dx = dx + back.dx[order]
    assert_gradient_close("dx", gradients.dx, dx, dtype)


@in_parts
def test_two_layers_are_two_runs(cell, dtype):
    stack = make(cell, dtype, num_layers=2, lengths=RAGGED)
    lower = stack.twin(num_layers=1)
    upper = lower.twin(input_size=stack.output_size)
    outputs, gradients = run_all(stack)
    w = [some_weights(one, lambda name, k=k: name[:-1] + str(k), stack) for k, one in enumerate((lower, upper))]
    states = [(rows_of(stack.hx, slice(k, k + 1)), rows_of(stack.cx, slice(k, k + 1))) for k in (0, 1)]
    ends = [(rows_of(stack.dhy, slice(k, k + 1)), rows_of(stack.dcy, slice(k, k + 1))) for k in (0, 1)]
    lengths = stack.lengths_array
    first = rnnkit.forward(lower.desc, w[0], stack.x, *states[0], lengths=lengths)
    second = rnnkit.forward(upper.desc, w[1], first.y, *states[1], lengths=lengths)
    above = rnnkit.backward(upper.desc, w[1], second.workspace, stack.dy, *ends[1])
    below = rnnkit.backward(lower.desc, w[0], first.workspace, above.dx, *ends[0])
    assert_close("y", outputs.y, second.y, dtype)
    assert_close("hy", outputs.hy, np.concatenate([first.hy, second.hy]), dtype)
    assert_gradient_close("dx", gradients.dx, below.dx, dtype)
    assert_gradient_close("dhx", gradients.dhx, np.concatenate([below.dhx, above.dhx]), dtype)
    dw = rnnkit.weight_views(stack.desc, gradients.dw)
    for layer, (one, back) in enumerate(((lower, below), (upper, above))):
        for name, wanted in rnnkit.weight_views(one.desc, back.dw).items():
            assert_gradient_close(name[:-1] + str(layer), dw[name[:-1] + str(layer)], wanted, dtype)


def assert_row(outputs, gradients, row, found, back, length):
    """The row of a batch has the bits of the same sequence run by itself, and zeros behind it."""
    one = slice(row, row + 1)
    assert_same_bits("y", outputs.y[:length, one], found.y)
    assert_same_bits("hy", outputs.hy[:, one], found.hy)
    assert_same_bits("cy", columns_of(outputs.cy, one), found.cy)
    assert_same_bits("dx", gradients.dx[:length, one], back.dx)
    assert_same_bits("dhx", gradients.dhx[:, one], back.dhx)
    assert_same_bits("dcx", columns_of(gradients.dcx, one), back.dcx)
    assert not outputs.y[length:, row].any()
    assert not gradients.dx[length:, row].any()


@of_each_cell
@pytest.mark.parametrize("lengths", [None, RAGGED])
@pytest.mark.parametrize("input_mode", ["linear", "skip"])
def test_a_batch_is_its_sequences(cell, dtype, lengths, input_mode):
    """Every sequence by itself, at its own length, gives the same bits; their weight gradients add up."""
    sizes = {"input_size": SHAPE["hidden_size"]} if input_mode == "skip" else {}
    batch = make(cell, dtype, num_layers=2, bidirectional=True, lengths=lengths, input_mode=input_mode, **sizes)
    outputs, gradients = run_all(batch)
    dw = np.zeros(batch.w.shape)
    for row in range(batch.batch_size):
        length = batch.seq_len if lengths is None else lengths[row]
        found, back = run_rows(batch, batch, slice(row, row + 1), slice(0, length))
        assert_row(outputs, gradients, row, found, back, length)
        dw += back.dw
    assert_gradient_close("dw", gradients.dw, dw, dtype)


@of_each_cell
def test_the_order_of_rows_does_not_matter(cell, dtype):
    batch = make(cell, dtype, bidirectional=True, lengths=RAGGED)
    outputs, gradients = run_all(batch)
    order = np.array([3, 5, 0, 2, 4, 1])
    found, back = run_rows(batch, batch, order, length=batch.lengths_array[order])
    assert_same_bits("y", found.y, outputs.y[:, order])
    assert_same_bits("hy", found.hy, outputs.hy[:, order])
    assert_same_bits("dx", back.dx, gradients.dx[:, order])
    assert_same_bits("dhx", back.dhx, gradients.dhx[:, order])
    assert_gradient_close("dw", back.dw, gradients.dw, dtype)


@of_each_cell
@pytest.mark.parametrize("cut", [1, 4, 6])
def test_chunks_with_carried_state_are_one_run(cell, dtype, cut):
    whole = make(cell, dtype, num_layers=2)
    outputs, gradients = run_all(whole)
    first = rnnkit.forward(whole.desc, whole.w, whole.x[:cut], whole.hx, whole.cx)
    second = rnnkit.forward(whole.desc, whole.w, whole.x[cut:], first.hy, first.cy)
    late = rnnkit.backward(whole.desc, whole.w, second.workspace, whole.dy[cut:], whole.dhy, whole.dcy)
    early = rnnkit.backward(whole.desc, whole.w, first.workspace, whole.dy[:cut], late.dhx, late.dcx, dw=late.dw)
    assert_same_bits("y", np.concatenate([first.y, second.y]), outputs.y)
    assert_same_results(second, outputs, ("hy", "cy"))
    joined = rnnkit.Backward(np.concatenate([early.dx, late.dx]), early.dhx, early.dcx, early.dw)
    assert_gradients_close(joined, gradients, dtype)


@of_each_cell
def test_no_state_is_zeros(cell, dtype):
    absent = make(cell, dtype, num_layers=2, bidirectional=True, lengths=RAGGED, states=False)
    zeros = absent.twin()
    zeros.__dict__["hx"] = np.zeros(zeros.hidden_shape, dtype)
    zeros.__dict__["cx"] = np.zeros(zeros.cell_shape, dtype) if zeros.mode == "lstm" else None
    for found, expected, names in zip(run_all(absent), run_all(zeros), (OUTPUTS, GRADIENTS), strict=True):
        assert_same_results(found, expected, names)
    assert_same_results(absent.infer(), zeros.infer(), OUTPUTS)


@of_each_cell
@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e30])
def test_padding_touches_nothing(cell, dtype, garbage):
    clean = make(cell, dtype, num_layers=2, bidirectional=True, lengths=RAGGED, dropout=0.5)
    dirty = clean.twin()
    dirty.x[~dirty.valid] = garbage
    dirty.dy[~dirty.valid] = garbage
    for found, expected, names in zip(run_all(dirty), run_all(clean), (OUTPUTS, GRADIENTS), strict=True):
        assert_same_results(found, expected, names)
    assert_same_results(dirty.infer(), clean.infer(), OUTPUTS)
    assert not run_all(dirty)[1].dx[~clean.valid].any()


@of_each_cell
@pytest.mark.parametrize("lengths", [RAGGED, (0,) * 6])
def test_length_zero_passes_state_and_gradient_through(cell, dtype, lengths):
    problem = make(cell, dtype, num_layers=2, bidirectional=True, lengths=lengths)
    outputs, gradients = run_all(problem)
    empty = [n for n, length in enumerate(lengths) if length == 0]
    for found, passed in ((outputs.hy, problem.hx), (outputs.cy, problem.cx), (problem.infer().hy, problem.hx)):
        assert_same_bits("state", columns_of(found, empty), columns_of(passed, empty))
    for found, passed in ((gradients.dhx, problem.dhy), (gradients.dcx, problem.dcy)):
        assert_same_bits("gradient", columns_of(found, empty), columns_of(passed, empty))
    assert not outputs.y[:, empty].any()
    assert not gradients.dx[:, empty].any()
    assert gradients.dw.any() == any(lengths)


@of_each_cell
@pytest.mark.parametrize("lengths", [None, (0,) * 6])
def test_no_time_steps(cell, dtype, lengths):
    problem = make(cell, dtype, num_layers=2, bidirectional=True, seq_len=0, lengths=lengths)
    outputs, gradients = run_all(problem)
    assert outputs.y.shape == (0, 6, 2 * problem.output_size)
    for found in (outputs, problem.infer(), rnnkit.prepare(problem.desc, problem.w).infer(*problem.inputs[1:])):
        assert_same_bits("hy", found.hy, problem.hx)
        assert_same_bits("cy", found.cy, problem.cx)
    assert gradients.dx.shape == problem.x.shape
    assert_same_bits("dhx", gradients.dhx, problem.dhy)
    assert_same_bits("dcx", gradients.dcx, problem.dcy)
    assert not gradients.dw.any()


def strided(array):
    """Batch-major, and every other element."""
    found = np.repeat(array.swapaxes(0, 1), 2, axis=-1)[..., ::2].swapaxes(0, 1)
    assert not found.flags.c_contiguous
    return found


def misaligned(array):
    """As in a record that begins with a byte."""
    found = np.frombuffer(b"." + array.tobytes(), array.dtype, offset=1).reshape(array.shape)
    assert not found.flags.aligned
    return found


def arrays_in(value):
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from arrays_in(part)


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
def test_any_memory_order(aligned, cell, dtype, moved):
    """Arrays are taken wherever they stand."""
    plain = make(cell, dtype, num_layers=2, bidirectional=True, lengths=RAGGED)
    other = plain.twin()
    for name in ("x", "hx", "cx", "dy", "dhy", "dcy"):
        array = getattr(plain, name)
        if array is not None:
            other.__dict__[name] = moved(array)
    for found, expected, names in zip(run_all(other), run_all(plain), (OUTPUTS, GRADIENTS), strict=True):
        assert_same_results(found, expected, names)
    assert_same_results(other.infer(), plain.infer(), OUTPUTS)
    planned = rnnkit.prepare(plain.desc, plain.w).infer(*other.inputs[1:], lengths=plain.lengths_array)
    assert_same_results(planned, plain.infer(), OUTPUTS)


@of_each_cell
@pytest.mark.parametrize("moved", [strided, misaligned])
def test_steps_in_any_memory_order(aligned, cell, dtype, moved):
    problem = make(cell, dtype, num_layers=2)
    plan = rnnkit.prepare(problem.desc, problem.w)
    arrays = problem.x[0], problem.hx, problem.cx
    expected = plan.step(*arrays)
    found = plan.step(*(None if array is None else moved(array) for array in arrays))
    assert_same_results(found, expected, OUTPUTS)
