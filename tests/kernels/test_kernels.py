"""The kernels by themselves: activations against higher precision, products against NumPy."""

import itertools

import numpy as np
import pytest
from compiled import for_python
from numba.np.numpy_support import from_dtype

from rnnkit_kernels import weight_gradient
from rnnkit_kernels.machine import gemm, packing, shapes, sync
from rnnkit_kernels.machine.activations import sigmoid, tanh
from rnnkit_kernels.machine.gemm import Packed
from rnnkit_kernels.machine.jit import kernel
from rnnkit_kernels.machine.matrix import Matrix, Range
from rnnkit_kernels.machine.small import SMALL
from rnnkit_kernels.machine.sync import Team
from rnnkit_kernels.weight_gradient import Term, scratch_size

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


_INNER = packing.pack_rows, packing.pack_columns, gemm.product, packing.vectors_of
_pack_rows, _pack_columns, _product, _vectors_of = map(for_python, _INNER)
_INNER = weight_gradient.pack_sources, weight_gradient.add_weight_gradients, weight_gradient.add_vector_gradients
_pack_sources, _add_weight_gradients, _add_vector_gradients = map(for_python, _INNER)


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


def _multiply(c, a, b, overwrite, from_last=False):
    """The whole of c = (0 if overwrite else c) + a @ b."""
    vectors, zeros = _vectors_of(c.reshape(-1), c.shape[1]), np.zeros(c.shape[1], c.dtype)
    _product(_rows(c), _rows(a), Range(0, len(a)), _packed(b), Range(0, vectors), zeros, overwrite, from_last)


def _chains(start, a, b):
    """start + a @ b as chains of fused multiply-adds, k ascending, in a precision that hides no other order."""
    total = start.astype(np.longdouble)
    for k in range(a.shape[1]):
        term = a[:, k, None].astype(np.longdouble) * b[k].astype(np.longdouble)
        total = (total + term).astype(a.dtype).astype(np.longdouble)
    return total.astype(a.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 5, 6, 7, 8, 9, 21])
@pytest.mark.parametrize("units", [1, 7, 8, 16, 17, 33, 64, 65])
def test_product_is_chains_of_fused_multiply_adds(dtype, count, units):
    """Bit for bit, for every number of rows and columns: float32 products are exact in the wider type."""
    a, b, c = _draw(dtype, count * 100 + units, (count, 19), (19, units), (count, units))
    expected = _chains(c, a, b)
    _multiply(c, a, b, overwrite=False)
    if dtype == "float32":
        assert np.array_equal(c, expected)
    else:  # a longdouble has too few bits to hold a float64 product exactly
        np.testing.assert_allclose(c, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 3, 20])
@pytest.mark.parametrize(("depth", "units"), [(3, 1000), (700, 33), (700, 350), (1030, 64), (2100, 257)])
def test_panels_are_read_from_either_end(dtype, count, depth, units):
    """More of them than a tile covers, or a share that is less than a run."""
    a, b, c = _draw(dtype, units, (count, depth), (depth, units), (count, units))
    found = c.copy()
    _multiply(c, a, b, overwrite=False)
    _multiply(found, a, b, overwrite=False, from_last=True)
    assert np.array_equal(found, c)


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [0, 1, 3, 4, 5, 1023, 1024, 1030])
def test_product_of_any_depth(dtype, depth):
    a, b = _draw(dtype, depth, (9, depth), (depth, 35))
    c = np.full((9, 35), np.nan, dtype)
    _multiply(c, a, b, overwrite=True)
    np.testing.assert_allclose(c, a.astype("f8") @ b.astype("f8"), atol=2e-4 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(("count", "columns", "units"), [(1, 1, 1), (17, 5, 3), (500, 230, 17), (40, 97, 64)])
def test_weight_gradients_add_up_chosen_rows(dtype, size, count, columns, units):
    """Only listed rows and the term's columns count: the others hold NaN. The columns belong to rows in any order."""
    rng = np.random.default_rng(count)
    chosen, order = rng.permutation(2 * count)[:count], rng.permutation(columns)
    dgates, source = np.full((2 * count, columns + 3), np.nan, dtype), np.full((2 * count, units), np.nan, dtype)
    dgates[chosen, 2 : columns + 2] = rng.normal(size=(count, columns))
    source[chosen] = rng.normal(size=(count, units))
    dw, nothing = np.ones((columns * (units + 1),), dtype), np.empty(0, dtype)
    block = np.empty(packing.panel_size(gemm.depth_block(dw.itemsize), units, 1, dw.itemsize), dtype)
    start, unpacked = columns, Packed(nothing, 0, 0, (0,))  # the bias stands in front of the matrix
    term = Term(2, Matrix(dw, order, start, units), 0, _rows(source, chosen), unpacked, block, 1, 1)
    absent = Term(0, Matrix(dw, np.arange(0), 0, 0), -1, _rows(source), unpacked, nothing, 1, 1)
    terms = absent, term, absent
    scratch = np.full(scratch_size(columns + 3, size, count), np.nan, dtype)
    elements, rows = np.zeros(sync.sync_size(size), np.int64), Range(0, count)
    for thread_id in range(size):
        _pack_sources(terms, rows, scratch, columns + 3, Team(thread_id, size, elements))
    matrix, zeros = _rows(dgates, chosen), np.zeros(units, dtype)
    for thread_id in range(size):
        team = Team(thread_id, size, elements)
        _add_weight_gradients(terms, dw, False, matrix, rows, scratch, zeros, np.arange(columns + 3), team)
    valid = dgates[chosen, 2 : columns + 2].astype("f8")
    tolerance = 2e-4 if dtype == "float32" else 1e-11
    np.testing.assert_allclose(dw[start:].reshape(columns, units)[order], 1 + valid.T @ source[chosen], atol=tolerance)
    np.testing.assert_allclose(dw[:start][order], 1 + valid.sum(axis=0), atol=tolerance)


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
