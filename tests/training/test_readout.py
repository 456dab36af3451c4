"""The dense readout and what it reads: against central differences and naive twins; what is refused."""

import numpy as np
import pytest
from gradcheck import assert_gradients
from messages import raises
from problems import Problem
from tolerances import assert_close, assert_gradient_close, assert_same_bits

from rnnkit.training import dense, dense_backward, init_dense, last_output, last_output_backward
from rnnkit_kernels.machine.thread_pool import thread_override

SHAPES = [(4,), (1, 4), (5, 4), (6, 3, 4), (0, 4), (2, 0, 3, 4)]
OUTPUTS = 3
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def problem(shape=(6, 3, 4), dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    w, x, dy = (rng.normal(size=n).astype(dtype) for n in (OUTPUTS * 5, shape, (*shape[:-1], OUTPUTS)))
    return w, x, dy


@every_dtype
@pytest.mark.parametrize("shape", SHAPES)
def test_dense_equals_each_output_by_itself(shape, dtype):
    w, x, _ = problem(shape, dtype)
    y = dense(w, x, OUTPUTS)
    assert y.dtype == dtype and y.shape == (*shape[:-1], OUTPUTS)
    for i in range(OUTPUTS):
        weight, bias = w[4 * i : 4 * i + 4], w[4 * OUTPUTS + i]
        assert_close(f"output {i}", y[..., i], (x * weight).sum(axis=-1) + bias, dtype)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_equal_central_differences(shape):
    w, x, dy = problem(shape)

    def loss(blocks):
        return float((dense(np.concatenate([blocks["weight"], blocks["bias"]]), blocks["x"], OUTPUTS) * dy).sum())

    def gradients(blocks):
        dx, dw = dense_backward(np.concatenate([blocks["weight"], blocks["bias"]]), blocks["x"], dy)
        return {"weight": dw[:-OUTPUTS], "bias": dw[-OUTPUTS:], "x": dx}

    blocks = {"weight": w[:-OUTPUTS], "bias": w[-OUTPUTS:], "x": x}
    if not x.size:
        assert_same_bits("dw", dense_backward(w, x, dy).dw, np.zeros_like(w))
        return
    assert_gradients(loss, gradients, blocks, 0)


@every_dtype
@pytest.mark.parametrize("input_size", [1, 5, 16, 17, 65])
@pytest.mark.parametrize(("rows", "num_outputs"), [(1, 17), (7, 1), (8, 33), (9, 16), (17, 15), (100, 257), (1100, 7)])
def test_bits_depend_on_neither_rows_nor_threads(rows, input_size, num_outputs, dtype):
    """Sizes around a vector, a tile, what is read in place and a block of rows: against float64, too."""
    rng = np.random.default_rng(rows)
    shapes = (num_outputs * (input_size + 1),), (rows, input_size), (rows, num_outputs)
    w, x, dy = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    found = []
    for size in (1, 2, 3):
        with thread_override(size):
            found.append((dense(w, x, num_outputs), *dense_backward(w, x, dy)))
    for other in found[1:]:
        for name, one, expected in zip(("y", "dx", "dw"), other, found[0], strict=True):
            assert_same_bits(name, one, expected)
    y, dx, dw = found[0]
    for start in range(0, rows, 5):
        assert_same_bits("y", dense(w, x[start : start + 5], num_outputs), y[start : start + 5])
        assert_same_bits("dx", dense_backward(w, x[start : start + 5], dy[start : start + 5]).dx, dx[start : start + 5])
    weight, wide_x, wide_dy = w[:-num_outputs].reshape(num_outputs, -1).astype("f8"), x.astype("f8"), dy.astype("f8")
    assert_close("y", y, (wide_x @ weight.T + w[-num_outputs:]).astype(dtype), dtype)
    assert_gradient_close("dx", dx, (wide_dy @ weight).astype(dtype), dtype)
    expected = np.concatenate([(wide_dy.T @ wide_x).ravel(), wide_dy.sum(axis=0)])
    assert_gradient_close("dw", dw, expected.astype(dtype), dtype)


def test_weight_gradient_is_added():
    w, x, dy = problem()
    fresh = dense_backward(w, x, dy)
    dw = np.arange(w.size, dtype=float)
    found = dense_backward(w, x, dy, dw=dw)
    assert found.dw is dw
    assert_close("dw", dw, np.arange(w.size) + fresh.dw, "float64")
    assert_same_bits("dx", found.dx, fresh.dx)


def test_dense_writes_into_out():
    w, x, _ = problem()
    out = np.full((6, 3, OUTPUTS), np.nan)
    assert dense(w, x, OUTPUTS, out=out) is out
    assert_same_bits("y", out, dense(w, x, OUTPUTS))


def test_inputs_may_have_gaps_and_are_not_changed():
    w, x, dy = arrays = problem()
    wide_x, wide_dy = (np.repeat(array, 2, axis=1)[:, ::2] for array in (x, dy))
    assert_close("y", dense(w, wide_x, OUTPUTS), dense(w, x, OUTPUTS), "float64")
    found, expected = dense_backward(w, wide_x, wide_dy), dense_backward(w, x, dy)
    assert_close("dx", found.dx, expected.dx, "float64")
    assert_close("dw", found.dw, expected.dw, "float64")
    for array, before in zip(arrays, problem(), strict=True):
        assert_same_bits("input", array, before)


@every_dtype
def test_weights_are_drawn_within_their_bound_and_by_the_seed(dtype):
    w = init_dense(16, 100, seed=3, dtype=dtype)
    assert w.shape == (1700,) and w.dtype == dtype
    assert 0.24 < np.abs(w).max() <= 0.25 and abs(w.mean()) < 0.01
    assert_same_bits("w", init_dense(16, 100, seed=3, dtype=dtype), w)
    assert (init_dense(16, 100, seed=4, dtype=dtype) != w).any()
    assert (init_dense(16, 100) != init_dense(16, 100)).any()


@pytest.mark.parametrize("num_directions", [1, 2])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_last_output_equals_its_twin_and_differences(num_layers, num_directions):
    rng = np.random.default_rng(0)
    hy = rng.normal(size=(num_layers * num_directions, 3, 5))
    found = last_output(hy, num_directions)
    top = list(hy[-num_directions:])
    assert_same_bits("output", found, np.stack([np.concatenate([h[n] for h in top]) for n in range(3)]))
    assert not np.may_share_memory(found, hy)
    cotangent = rng.normal(size=found.shape)

    def loss(blocks):
        return float((last_output(blocks["hy"], num_directions) * cotangent).sum())

    def gradients(blocks):
        return {"hy": last_output_backward(cotangent, num_layers, num_directions)}

    assert_gradients(loss, gradients, {"hy": hy}, 0)


@pytest.mark.parametrize("num_directions", [1, 2])
def test_empty_batch_has_outputs(num_directions):
    hy = np.zeros((2 * num_directions, 0, 5), np.float32)
    found = last_output(hy, num_directions)
    assert found.shape == (0, 5 * num_directions) and found.dtype == np.float32
    assert_same_bits("dhy", last_output_backward(found, 2, num_directions), hy)


def test_last_output_is_where_each_direction_ends():
    problem = Problem(mode="gru", hidden_size=5, num_layers=2, bidirectional=True, dtype="float64", lengths=(4, 1, 3))
    y, hy, *_ = problem.forward()
    expected = np.stack([np.concatenate([y[length - 1, n, :5], y[0, n, 5:]]) for n, length in enumerate((4, 1, 3))])
    assert_same_bits("output", last_output(hy, 2), expected)


W, X, DY = problem()
SQUARE, FIXED = np.zeros((6, OUTPUTS)), np.zeros((6, OUTPUTS))
FIXED.flags.writeable = False
GAPS, ODD = np.repeat(W, 2)[::2], np.zeros((2, 5))
HY = "hy | (num_layers*num_directions, batch_size, hidden_size) | num_directions=2"
THREE, LAST, WIDTH = "num_outputs=3", "last_output_backward:", "num_directions*hidden_size"
REFUSED = [
    (lambda: dense(W, X, 0), ValueError, "dense: num_outputs | 1 | 0"),
    (lambda: dense(W, X, True), TypeError, "dense: num_outputs | int | bool"),
    (lambda: dense(W, [1.0], 3), TypeError, "dense: x | numpy.ndarray | cupy.ndarray | list"),
    (lambda: dense(W, X.astype(int), 3), TypeError, "dense: x | float32 | float64 | int64"),
    (lambda: dense(W, np.array(1.0), 3), ValueError, "dense: x | (..., input_size) | ()"),
    (lambda: dense(W, X[..., :0], 3), ValueError, "dense: x | (..., input_size) | (6, 3, 0)"),
    (lambda: dense([1.0], X, 3), TypeError, "dense: w | numpy.ndarray | list"),
    (lambda: dense(W.astype("f4"), X, 3), TypeError, "dense: w | float64 | x | float32"),
    (lambda: dense(W[1:], X, 3), ValueError, "dense: w | (15,) | input_size=4 | num_outputs=3 | (14,)"),
    (lambda: dense(GAPS, X, 3), ValueError, "dense: w | C-contiguous | (16,)"),
    (lambda: dense(W, X, 3, out=[1.0]), TypeError, "dense: out | numpy.ndarray | list"),
    (lambda: dense(W, X, 3, out=DY.astype("f4")), TypeError, "dense: out | float64 | x | float32"),
    (lambda: dense(W, X, 3, out=DY[1:]), ValueError, "dense: out | (6, 3, 3) | num_outputs | (5, 3, 3)"),
    (lambda: dense(W, X, 3, out=np.repeat(DY, 2, 1)[:, ::2]), ValueError, "dense: out | C-contiguous | (144, 48, 8)"),
    (lambda: dense(np.zeros(12), SQUARE, 3, out=SQUARE), ValueError, "dense: out | memory | x"),
    (lambda: dense(np.zeros(12), SQUARE, 3, out=FIXED), ValueError, "dense: out | writeable"),
    (lambda: dense_backward(W, X, DY[..., :0]), ValueError, "dense_backward: dy | (..., num_outputs) | (6, 3, 0)"),
    (lambda: dense_backward(W, X, DY[1:]), ValueError, "dense_backward: dy | (6, 3, 3) | x | (5, 3, 3)"),
    (lambda: dense_backward(W[1:], X, DY), ValueError, f"dense_backward: w | (15,) | input_size=4 | {THREE} | (14,)"),
    (lambda: dense_backward(W, X, DY, dw=W[1:].copy()), ValueError, "dense_backward: dw | (15,) | w | (14,)"),
    (lambda: dense_backward(W, X, DY, dw=GAPS), ValueError, "dense_backward: dw | C-contiguous | (16,)"),
    (lambda: dense_backward(W, X, DY, dw=W), ValueError, "dense_backward: dw | memory | w"),
    (lambda: init_dense(0, 2), ValueError, "init_dense: input_size | 1 | 0"),
    (lambda: init_dense(2**64, 2), ValueError, f"init_dense: input_size | 2147483647 | {2**64}"),
    (lambda: init_dense(4, "2"), TypeError, "init_dense: num_outputs | int | str"),
    (lambda: init_dense(4, 2, seed=-1), ValueError, "init_dense: seed | 0.. | -1"),
    (lambda: init_dense(4, 2, dtype="float16"), ValueError, "init_dense: dtype | float32 | float64 | 'float16'"),
    (lambda: last_output([1.0], 1), TypeError, "last_output: hy | numpy.ndarray | cupy.ndarray | list"),
    (lambda: last_output(np.zeros((2, 3, 4))), TypeError, "last_output() missing | num_directions"),
    (lambda: last_output(np.zeros((2, 3)), 2), ValueError, f"last_output: {HY} | (2, 3)"),
    (lambda: last_output(np.zeros((3, 3, 4)), 2), ValueError, f"last_output: {HY} | (3, 3, 4)"),
    (lambda: last_output(np.zeros((0, 3, 4)), 2), ValueError, f"last_output: {HY} | (0, 3, 4)"),
    (lambda: last_output(np.zeros((3, 3, 4)), 3), ValueError, "last_output: num_directions | 1 | 2 | 3"),
    (lambda: last_output(np.zeros((3, 3, 4)), 0), ValueError, "last_output: num_directions | 1 | 0"),
    (lambda: last_output_backward([1.0], 1, 1), TypeError, f"{LAST} doutput | numpy.ndarray | cupy.ndarray | list"),
    (lambda: last_output_backward(np.zeros(4), 1, 1), ValueError, f"{LAST} doutput | (batch_size, {WIDTH}) | (4,)"),
    (lambda: last_output_backward(ODD, 1, 2), ValueError, f"{LAST} doutput | {WIDTH} | num_directions=2 | (2, 5)"),
    (lambda: last_output_backward(np.zeros((2, 3)), 1), TypeError, "last_output_backward() missing | num_directions"),
    (lambda: last_output_backward(np.zeros((2, 4)), 0, 2), ValueError, f"{LAST} num_layers | 1 | 0"),
    (lambda: last_output_backward(np.zeros((2, 4)), 1, 3), ValueError, f"{LAST} num_directions | 1 | 2 | 3"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_wrong_argument_is_refused(call, error, message):
    with raises(error, message):
        call()
