"""The dense readout and what it reads: against PyTorch, central differences and naive twins; what is refused."""

import numpy as np
import pytest
from gradcheck import assert_gradients
from messages import says
from problems import Problem
from tolerances import assert_close, assert_gradient_close, assert_same_bits

from rnnkit.training import dense, dense_backward, init_dense, last_output, last_output_backward
from rnnkit_kernels.machine.thread_pool import thread_override

DTYPES = ("float32", "float64")
SHAPES = [(4,), (1, 4), (5, 4), (6, 3, 4), (0, 4), (2, 0, 3, 4)]
OUTPUTS = 3


def problem(shape=(6, 3, 4), dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    w, x, dy = (rng.normal(size=n).astype(dtype) for n in (OUTPUTS * 5, shape, (*shape[:-1], OUTPUTS)))
    return w, x, dy


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_dense_is_each_output_by_itself(shape, dtype):
    w, x, _ = problem(shape, dtype)
    y = dense(w, x, OUTPUTS)
    assert y.dtype == dtype and y.shape == (*shape[:-1], OUTPUTS)
    for i in range(OUTPUTS):
        weight, bias = w[4 * i : 4 * i + 4], w[4 * OUTPUTS + i]
        assert_close(f"output {i}", y[..., i], (x * weight).sum(axis=-1) + bias, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pytorchs_linear(dtype):
    torch = pytest.importorskip("torch")
    w, x, dy = problem(dtype=dtype)
    linear = torch.nn.Linear(4, OUTPUTS, dtype=getattr(torch, dtype))
    torch.nn.utils.vector_to_parameters(torch.from_numpy(w.copy()), linear.parameters())
    tensor = torch.from_numpy(x.copy()).requires_grad_()
    y = linear(tensor)
    y.backward(torch.from_numpy(dy))
    assert_close("y", dense(w, x, OUTPUTS), y.detach().numpy(), dtype)
    dx, dw = dense_backward(w, x, dy)
    assert_gradient_close("dx", dx, tensor.grad.numpy(), dtype)
    expected = torch.nn.utils.parameters_to_vector(p.grad for p in linear.parameters())
    assert_gradient_close("dw", dw, expected.numpy(), dtype)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradients_are_those_of_dense(shape):
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("input_size", [1, 5, 16, 17, 65])
@pytest.mark.parametrize(("rows", "num_outputs"), [(1, 17), (7, 1), (8, 33), (9, 16), (17, 15), (100, 257), (1100, 7)])
def test_rows_alone_and_any_number_of_threads_have_the_same_bits(rows, input_size, num_outputs, dtype):
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


def test_the_gradient_is_added():
    w, x, dy = problem()
    fresh = dense_backward(w, x, dy)
    room = np.arange(w.size, dtype=float)
    before = room.copy()
    found = dense_backward(w, x, dy, dw=room)
    assert found.dw is room
    assert_close("dw", room, before + fresh.dw, "float64")
    assert_same_bits("dx", found.dx, fresh.dx)


def test_dense_writes_into_out():
    w, x, _ = problem()
    out = np.full((6, 3, OUTPUTS), np.nan)
    assert dense(w, x, OUTPUTS, out=out) is out
    assert_same_bits("y", out, dense(w, x, OUTPUTS))


def test_inputs_with_gaps():
    w, x, dy = problem()
    wide_x, wide_dy = (np.repeat(array, 2, axis=1)[:, ::2] for array in (x, dy))
    assert_close("y", dense(w, wide_x, OUTPUTS), dense(w, x, OUTPUTS), "float64")
    found, expected = dense_backward(w, wide_x, wide_dy), dense_backward(w, x, dy)
    assert_close("dx", found.dx, expected.dx, "float64")
    assert_close("dw", found.dw, expected.dw, "float64")


def test_inputs_are_not_changed():
    arrays = problem()
    before = [array.copy() for array in arrays]
    dense(*arrays[:2], OUTPUTS)
    dense_backward(*arrays)
    for array, expected in zip(arrays, before, strict=True):
        assert_same_bits("input", array, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_drawn_within_their_bound_and_by_the_seed(dtype):
    w = init_dense(16, 100, seed=3, dtype=dtype)
    assert w.shape == (1700,) and w.dtype == dtype
    assert 0.24 < np.abs(w).max() <= 0.25 and abs(w.mean()) < 0.01
    assert_same_bits("w", init_dense(16, 100, seed=3, dtype=dtype), w)
    assert (init_dense(16, 100, seed=4, dtype=dtype) != w).any()
    assert (init_dense(16, 100) != init_dense(16, 100)).any()


def naive_last(hy, num_directions):
    return np.stack([np.concatenate(list(hy[len(hy) - num_directions :, n])) for n in range(hy.shape[1])])


@pytest.mark.parametrize("num_directions", [1, 2])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_last_output_and_its_gradient(num_layers, num_directions):
    rng = np.random.default_rng(0)
    hy = rng.normal(size=(num_layers * num_directions, 3, 5))
    found = last_output(hy, num_directions)
    assert_same_bits("output", found, naive_last(hy, num_directions))
    assert not np.may_share_memory(found, hy)
    cotangent = rng.normal(size=found.shape)

    def loss(blocks):
        return float((last_output(blocks["hy"], num_directions) * cotangent).sum())

    def gradients(blocks):
        return {"hy": last_output_backward(cotangent, num_layers, num_directions)}

    assert_gradients(loss, gradients, {"hy": hy}, 0)


@pytest.mark.parametrize("num_directions", [1, 2])
def test_an_empty_batch_has_outputs(num_directions):
    hy = np.zeros((2 * num_directions, 0, 5), np.float32)
    found = last_output(hy, num_directions)
    assert found.shape == (0, 5 * num_directions) and found.dtype == np.float32
    assert_same_bits("dhy", last_output_backward(found, 2, num_directions), hy)


def test_the_number_of_directions_is_given():
    """Without it two directions of one layer would be two layers: the reverse one alone would be returned."""
    for function, arguments in ((last_output, (np.zeros((2, 3, 4)),)), (last_output_backward, (np.zeros((3, 8)), 1))):
        with pytest.raises(TypeError, match="num_directions"):
            function(*arguments)


def test_the_last_outputs_are_where_each_direction_ends():
    problem = Problem(mode="gru", hidden_size=5, num_layers=2, bidirectional=True, dtype="float64", lengths=(4, 1, 3))
    y, hy, *_ = problem.forward()
    expected = np.stack([np.concatenate([y[length - 1, n, :5], y[0, n, 5:]]) for n, length in enumerate((4, 1, 3))])
    assert_same_bits("output", last_output(hy, 2), expected)


W, X, DY = problem()
READ_ONLY = W.copy()
READ_ONLY.flags.writeable = False
DENSE = [
    (dict(num_outputs=0), ValueError, "num_outputs", [1, 0]),
    (dict(num_outputs=2.0), TypeError, "num_outputs", ["int", "float"]),
    (dict(num_outputs=True), TypeError, "num_outputs", ["int", "bool"]),
    (dict(x=[1.0]), TypeError, "x", ["numpy.ndarray", "cupy.ndarray", "list"]),
    (dict(x=X.astype(int)), TypeError, "x", ["float32", "float64", "int64"]),
    (dict(x=np.array(1.0)), ValueError, "x", ["(..., input_size)", ()]),
    (dict(x=X[..., :0]), ValueError, "x", ["(..., input_size)", (6, 3, 0)]),
    (dict(w=[1.0]), TypeError, "w", ["numpy.ndarray", "list"]),
    (dict(w=W.astype("f4")), TypeError, "w", ["float64", "x", "float32"]),
    (dict(w=W[1:]), ValueError, "w", [(15,), "input_size=4", "num_outputs=3", (14,)]),
    (dict(w=np.repeat(W, 2)[::2]), ValueError, "w", ["C-contiguous", (16,)]),
    (dict(out=[1.0]), TypeError, "out", ["numpy.ndarray", "list"]),
    (dict(out=DY.astype("f4")), TypeError, "out", ["float64", "x", "float32"]),
    (dict(out=DY[1:]), ValueError, "out", [(6, 3, 3), "num_outputs", (5, 3, 3)]),
    (dict(out=np.repeat(DY, 2, 1)[:, ::2]), ValueError, "out", ["C-contiguous", (144, 48, 8)]),
]


@pytest.mark.parametrize(("wrong", "error", "argument", "facts"), DENSE)
def test_what_dense_refuses(wrong, error, argument, facts):
    values = {"w": W, "x": X, "num_outputs": OUTPUTS, **wrong}
    with pytest.raises(error, match=says(f"dense: {argument}", *facts)):
        dense(**values)


def test_an_out_in_the_input():
    x = np.zeros((6, OUTPUTS))
    with pytest.raises(ValueError, match=says("dense: out", "memory", "x")):
        dense(np.zeros(12), x, OUTPUTS, out=x)
    y = np.zeros((6, OUTPUTS))
    y.flags.writeable = False
    with pytest.raises(ValueError, match=says("dense: out", "writeable")):
        dense(np.zeros(12), x, OUTPUTS, out=y)


BACKWARD = [
    (dict(dy=[1.0]), TypeError, "dy", ["numpy.ndarray", "cupy.ndarray", "list"]),
    (dict(dy=np.array(1.0)), ValueError, "dy", ["(..., num_outputs)", ()]),
    (dict(dy=DY[..., :0]), ValueError, "dy", ["(..., num_outputs)", (6, 3, 0)]),
    (dict(dy=DY.astype("f4")), TypeError, "dy", ["float64", "w", "float32"]),
    (dict(dy=DY[1:]), ValueError, "dy", [(6, 3, 3), "x", (5, 3, 3)]),
    (dict(w=W[1:]), ValueError, "w", [(15,), "input_size=4", "num_outputs=3", (14,)]),
    (dict(x=X[..., 1:]), ValueError, "w", [(12,), "input_size=3", "num_outputs=3", (15,)]),
    (dict(dw=[1.0]), TypeError, "dw", ["numpy.ndarray", "list"]),
    (dict(dw=W.astype("f4")), TypeError, "dw", ["float64", "w", "float32"]),
    (dict(dw=W[1:].copy()), ValueError, "dw", [(15,), "w", (14,)]),
    (dict(dw=np.repeat(W, 2)[::2]), ValueError, "dw", ["C-contiguous", (16,)]),
    (dict(dw=READ_ONLY), ValueError, "dw", ["writeable"]),
    (dict(dw=W), ValueError, "dw", ["memory", "w"]),
]


@pytest.mark.parametrize(("wrong", "error", "argument", "facts"), BACKWARD)
def test_what_dense_backward_refuses(wrong, error, argument, facts):
    values = {"w": W, "x": X, "dy": DY, **wrong}
    with pytest.raises(error, match=says(f"dense_backward: {argument}", *facts)):
        dense_backward(**values)


@pytest.mark.parametrize(
    ("wrong", "error", "argument", "facts"),
    [
        (dict(input_size=0), ValueError, "input_size", [1, 0]),
        (dict(input_size=2**64), ValueError, "input_size", [2147483647, 18446744073709551616]),
        (dict(num_outputs="2"), TypeError, "num_outputs", ["int", "str"]),
        (dict(seed=-1), ValueError, "seed", ["0..", -1]),
        (dict(seed=1.0), TypeError, "seed", ["None", "int", "float"]),
        (dict(dtype="float16"), ValueError, "dtype", ["float32", "float64", "'float16'"]),
    ],
)
def test_what_init_dense_refuses(wrong, error, argument, facts):
    values = {"input_size": 4, "num_outputs": 2, **wrong}
    with pytest.raises(error, match=says(f"init_dense: {argument}", *facts)):
        init_dense(**values)


HY = "(num_layers*num_directions, batch_size, hidden_size)", "num_directions=2"


@pytest.mark.parametrize(
    ("hy", "num_directions", "error", "argument", "facts"),
    [
        ([1.0], 1, TypeError, "hy", ["numpy.ndarray", "cupy.ndarray", "list"]),
        (np.zeros((2, 3)), 2, ValueError, "hy", [*HY, (2, 3)]),
        (np.zeros((3, 3, 4)), 2, ValueError, "hy", [*HY, (3, 3, 4)]),
        (np.zeros((0, 3, 4)), 2, ValueError, "hy", [*HY, (0, 3, 4)]),
        (np.zeros((3, 3, 4)), 3, ValueError, "num_directions", [1, 2, 3]),
        (np.zeros((3, 3, 4)), 0, ValueError, "num_directions", [1, 0]),
        (np.zeros((2, 3, 4)), True, TypeError, "num_directions", ["int", "bool"]),
    ],
)
def test_what_last_output_refuses(hy, num_directions, error, argument, facts):
    with pytest.raises(error, match=says(f"last_output: {argument}", *facts)):
        last_output(hy, num_directions)


@pytest.mark.parametrize(
    ("arguments", "error", "argument", "facts"),
    [
        (([1.0], 1, 1), TypeError, "doutput", ["numpy.ndarray", "cupy.ndarray", "list"]),
        ((np.zeros(4), 1, 1), ValueError, "doutput", ["(batch_size, num_directions*hidden_size)", (4,)]),
        ((np.zeros((2, 5)), 1, 2), ValueError, "doutput", ["num_directions*hidden_size", "num_directions=2", (2, 5)]),
        ((np.zeros((2, 4)), 0, 2), ValueError, "num_layers", [1, 0]),
        ((np.zeros((2, 4)), 1, 3), ValueError, "num_directions", [1, 2, 3]),
    ],
)
def test_what_last_output_backward_refuses(arguments, error, argument, facts):
    with pytest.raises(error, match=says(f"last_output_backward: {argument}", *facts)):
        last_output_backward(*arguments)
