"""The kernels by themselves: activations against higher precision, products against NumPy."""

import itertools

import numpy as np
import pytest
from compiled import for_python
from numba.np.numpy_support import from_dtype

from rnnkit_kernels.cells.functions import exp
from rnnkit_kernels.machine import gemm, packing, shapes, sync
from rnnkit_kernels.machine.activations import sigmoid, tanh
from rnnkit_kernels.machine.gemm import Packed
from rnnkit_kernels.machine.jit import kernel
from rnnkit_kernels.machine.matrix import Matrix, Range
from rnnkit_kernels.machine.small import SMALL
from rnnkit_kernels.machine.sync import Team
from rnnkit_kernels.weight_gradient import Term, add_vector_gradients

DTYPES = ("float32", "float64")
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1000.0, -1000.0)


@kernel
def _all_tanh(x, y):
    for i in range(x.size):
        y[i] = tanh(x[i])


@kernel
def _all_sigmoid(x, y):
    for i in range(x.size):
        y[i] = sigmoid(x[i])


@kernel
def _all_exp(x, y):
    for i in range(x.size):
        y[i] = exp(x[i])


def _logistic(x):
    return np.where(x < 0, np.exp(-np.abs(x)), 1) / (1 + np.exp(-np.abs(x)))


def _sweep(dtype):
    rng = np.random.default_rng(0)
    tiny = rng.normal(size=200_000) * 10.0 ** rng.uniform(-12, 2, 200_000)
    return np.concatenate([np.linspace(-20, 20, 400_001), np.linspace(-800, 800, 100_001), tiny, SPECIAL]).astype(dtype)


# In units in the last place, relative, over the whole range.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("compiled", "exact", "bound"), [(_all_tanh, np.tanh, 2.0), (_all_sigmoid, _logistic, 3.0)])
def test_activations_are_accurate(compiled, exact, bound, dtype):
    x = _sweep(dtype)
    y = np.empty_like(x)
    compiled(x, y)
    with np.errstate(under="ignore"):
        expected = exact(x.astype(np.longdouble))
    expected[abs(expected) < (SMALL[from_dtype(np.dtype(dtype))] if exact is _logistic else 0)] = 0
    assert np.array_equal(np.isnan(y), np.isnan(x))
    number = ~np.isnan(x)
    unit = np.spacing(np.abs(expected[number]).astype(dtype)).astype(np.longdouble)
    error = np.abs(y[number].astype(np.longdouble) - expected[number]) / unit
    assert error.max() <= bound, f"{error.max():.2f} units at {x[number][error.argmax()]!r}"
    assert y[number].min() >= (-1 if exact is np.tanh else 0) and y[number].max() <= 1
    if exact is np.tanh:
        assert np.array_equal(np.signbit(y[number]), np.signbit(x[number])), "the sign of 0 too"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("compiled", [_all_sigmoid, _all_exp])
def test_small_results_are_zero_from_the_limit_on(compiled, dtype):
    limit = np.array(SMALL[from_dtype(np.dtype(dtype))], dtype)
    x = (np.log(limit) + np.arange(-1000, 1001) * np.spacing(np.log(limit))).astype(dtype)  # in descending order
    y = np.empty_like(x)
    compiled(x, y)
    exact = np.exp(x.astype(np.longdouble))
    unit = 3 * np.finfo(dtype).eps
    assert (y[y > 0] >= limit).all() and (exact[y == 0] <= limit * (1 + unit)).all()
    assert 990 <= np.count_nonzero(y) <= 1010


def _exponentials(values, dtype):
    y = np.empty(len(values), dtype)
    _all_exp(np.array(values, dtype), y)
    return y


@pytest.mark.parametrize(("dtype", "most"), [("float32", 69.3), ("float64", 665.4)])
def test_exp_is_within_one_unit_in_the_last_place(dtype, most):
    rng, largest = np.random.default_rng(0), np.log(np.finfo(dtype).max) - 1e-3
    x = np.concatenate([rng.uniform(-most, largest, 20000), rng.normal(size=20000), [0, 1, -1]]).astype(dtype)
    exact = np.exp(x.astype(np.longdouble))
    units = np.abs(_exponentials(x, dtype) - exact) / np.spacing(np.exp(x))
    assert units.max() < 1
    assert _exponentials([0.0, -0.0], dtype).tolist() == [1, 1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_of_infinity_large_numbers_and_nan(dtype):
    below = -70 if dtype == "float32" else -666
    assert _exponentials([np.inf, 1e4, -np.inf, -1e4, below], dtype).tolist() == [np.inf, np.inf, 0, 0, 0]
    assert np.isnan(_exponentials([np.nan], dtype)[0])
    assert [exp(x) for x in (np.inf, 1e4, -np.inf, -1e4, 0)] == [np.inf, np.inf, 0, 0, 1] and np.isnan(exp(np.nan))


_INNER = packing.pack_rows, packing.pack_columns, gemm.product, packing.vectors_of
_pack_rows, _pack_columns, _product, _vectors_of = map(for_python, _INNER)
_add_vector_gradients = for_python(add_vector_gradients)


def _rows(array, rows=None):
    return Matrix(array.reshape(-1), np.arange(len(array)) if rows is None else rows, 0, array.shape[1])


def _alone():
    return Team(0, 1, np.zeros(sync.sync_size(1), np.int64))


def _packed(b):
    panels = np.full(packing.panel_size(*b.shape, 1, b.itemsize), np.nan, b.dtype)
    _pack_rows(panels, _rows(b), Range(0, len(b)), b.shape[1], _alone())
    return Packed(panels, *b.shape, (0,))


def _column_panels(weights, gates):
    """All gates of weights with the units in rows."""
    units, depth = len(weights) // gates, weights.shape[1]
    panels = np.empty(packing.panel_size(depth, units, gates, weights.itemsize), weights.dtype)
    _pack_columns(panels, _rows(weights), units, gates, _alone())
    return panels


def _draw(dtype, seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def _chains(start, a, b):
    """start + a @ b as chains of fused multiply-adds, k ascending, in a precision that hides no other order."""
    total = start.astype(np.longdouble)
    for k in range(a.shape[1]):
        term = a[:, k, None].astype(np.longdouble) * b[k].astype(np.longdouble)
        total = (total + term).astype(a.dtype).astype(np.longdouble)
    return total.astype(a.dtype)


# Rows around those of a tile, columns around those of a panel; more than a tile covers, or a share that is less than a
# run; and terms around those of a block.
SHAPES = [(count, 19, units) for count in (0, 1, 5, 6, 7, 8, 9, 21) for units in (1, 7, 8, 16, 17, 33, 64, 65)]
SHAPES += [(count, *deep) for count in (0, 1, 3, 20) for deep in ((3, 1000), (700, 33), (700, 350), (1030, 64))]
SHAPES += [(9, depth, 35) for depth in (0, 1, 3, 4, 5, 1023, 1024)] + [(3, 2100, 257)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("count", "depth", "units"), SHAPES)
def test_product_is_chains_of_fused_multiply_adds(dtype, count, depth, units):
    """Bit for bit, read from either end, added to what is there or not. The wider type holds a float32 product."""
    a, b, c = _draw(dtype, count * 100 + units, (count, depth), (depth, units), (count, units))
    packed, zeros = _packed(b), np.zeros(units, dtype)
    for start, is_new in ((c, False), (np.zeros_like(c), True)):
        found = [np.full_like(c, np.nan) if is_new else c.copy() for _ in range(2)]
        for one, from_last in zip(found, (False, True), strict=True):
            vectors = Range(0, _vectors_of(one.reshape(-1), units))
            _product(_rows(one), _rows(a), Range(0, count), packed, vectors, zeros, is_new, from_last)
        expected = _chains(start, a, b)
        assert np.array_equal(*found)
        if dtype == "float32":
            assert np.array_equal(found[0], expected)
        else:  # a longdouble has too few bits to hold a float64 product exactly
            np.testing.assert_allclose(found[0], expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gates", [2, 3, 4])
@pytest.mark.parametrize("units", [1, 2, 3, 4, 5, 17, 18, 20, 21, 34])
def test_units_behind_the_last_whole_panel(gates, units, dtype):
    """All gates at once, in any number of rows: bit-identical to each gate alone."""
    depth = 21
    weights, bias = _draw(dtype, units, (gates * units, depth), gates * units)
    packed = [_column_panels(weights, gates), *(_column_panels(part, 1) for part in np.split(weights, gates))]
    columns, vectors = tuple(range(units, (gates + 1) * units, units)), Range(0, _vectors_of(packed[0], units))
    bias = np.concatenate([np.zeros(units, dtype), bias])
    for count, overwrite in itertools.product([*range(1, 14), 25], (False, True)):
        a, c = _draw(dtype, count, (count, depth), (count, (gates + 2) * units))
        expected, rows = c.copy(), Range(0, count)
        _product(_rows(c), _rows(a), rows, Packed(packed[0], depth, units, columns), vectors, bias, overwrite, False)
        for panels, column in zip(packed[1:], columns, strict=True):
            own = Packed(panels, depth, units, (column,))
            _product(_rows(expected), _rows(a), rows, own, vectors, bias, overwrite, False)
        assert np.array_equal(c, expected)


@pytest.mark.parametrize(("gates", "dtype"), [*((gates, "float32") for gates in range(1, 5)), (4, "float64")])
def test_product_of_far_weights(gates, dtype):
    """Bit-identical to few rows at a time; tiles of many rows prefetch the next panels."""
    depth, units, rows = 1030, 805 // gates, [19, 27, 38, 55]
    (weights,) = _draw(dtype, gates, (gates * units, depth))
    panels = _column_panels(weights, gates)
    if shapes.far_bytes(gates) < shapes.NEVER_FAR:
        assert panels.nbytes >= shapes.far_bytes(gates) and rows[1] >= shapes.far_rows(gates)
    packed, bias = Packed(panels, depth, units, tuple(range(0, gates * units, units))), np.zeros(gates * units, dtype)
    vectors = Range(0, _vectors_of(panels, units))
    for count, from_last, overwrite in itertools.product(rows, (False, True), (False, True)):
        a, found = _draw(dtype, count, (count, depth), (count, gates * units))
        expected = found.copy()
        _product(_rows(found), _rows(a), Range(0, count), packed, vectors, bias, overwrite, from_last)
        for first in range(0, count, 5):
            own = Range(first, min(first + 5, count))
            _product(_rows(expected), _rows(a), own, packed, vectors, bias, overwrite, False)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("scalars", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_vector_gradients_add_up_sequences(count, scalars):
    """The sums are 0 afterwards; without sequences nothing is read or written."""
    memory = np.random.default_rng(0).normal(size=(count + 2, 9))
    before, dw, nothing = memory.copy(), np.ones(9), np.empty(0)
    dvectors = Matrix(memory[1 : count + 1].reshape(-1), np.arange(count), 0, 9)
    matrix = Matrix(dw, np.arange(9), 0, 0)
    term = Term(0, matrix, 0, matrix, Packed(nothing, 0, 0, (0,)), nothing, 1, 1)
    _add_vector_gradients(term, dw, False, dvectors, 3, scalars, _alone())
    total, size = before[1 : count + 1].sum(axis=0), 9 - 3 * scalars
    np.testing.assert_allclose(dw[:size], 1 + total[:size], rtol=1e-14)
    if scalars:
        assert dw[size] == pytest.approx(1 + total[size:].sum(), rel=1e-14)
    np.testing.assert_array_equal(dw[size + scalars :], 1)
    np.testing.assert_array_equal(memory[[0, -1]], before[[0, -1]])
    np.testing.assert_array_equal(memory[1:-1], 0)
