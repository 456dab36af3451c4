"""Arguments that are wrong, or that only look right; each with what a call may do with it.

RIGHT must give the plain call's result. WRONG must be refused. EITHER may be one or the other, and nothing else.
"""

import tempfile
from decimal import Decimal
from types import SimpleNamespace

import numpy as np

RIGHT, EITHER, WRONG = "right", "either", "wrong"

DTYPES = (
    "float16", "float32", "float64", "longdouble", "int32", "int64", "uint8", "bool", "complex64", "complex128", "O",
    "U3", "S4", "datetime64[s]", [("a", "float32")], ("float32", (2,)), "V4",
)  # fmt: skip


class _Own(np.ndarray):
    """A subclass that changes nothing."""


class _Convertible:
    """No array, but NumPy would make one of it."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class _Unwilling:
    """A tensor that requires its gradient: NumPy's question raises."""

    shape, dtype, ndim = (3,), np.dtype("float32"), 1

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")


def things(value):
    """What is no array at all."""
    return [
        value.tolist(), (), [], "text", b"bytes", 3, 1.5, 1j, True, object(), {}, {1}, range(3), np.float32(1),
        Ellipsis,
        memoryview(np.ascontiguousarray(value)), _Convertible(value), _Unwilling(), type(value), iter(()), np.ma.masked,
        SimpleNamespace(shape=value.shape, dtype=value.dtype, ndim=value.ndim), Decimal(1),
        NotImplemented,
    ]  # fmt: skip


def _another_dtype(value, rng):
    if rng.random() < 0.2:
        return value.astype(value.dtype.newbyteorder()), WRONG
    others = [np.dtype(one) for one in DTYPES if np.dtype(one) != value.dtype]
    return np.zeros(value.shape, others[rng.integers(len(others))]), WRONG


def _another_shape(value, rng, axes):
    """Other axes than expected, or other sizes along `axes`, the only ones that are prescribed."""
    axis = int(rng.choice(axes))
    kind = rng.integers(7)
    if kind == 0:
        found = np.expand_dims(value, int(rng.integers(value.ndim + 1)))
    elif kind == 1:
        found = value.reshape(-1) if value.ndim > 1 else value.reshape(-1, 1)
    elif kind == 2:
        found = np.zeros((), value.dtype)
    elif kind == 3:
        found = np.concatenate([value, value.take(range(1), axis, mode="wrap")], axis) if value.size else value[None]
    elif kind == 4:
        found = value.take(range(value.shape[axis] - 1), axis)
    elif kind == 5:
        found = value.take([], axis)
    else:
        found = value.T
    fits = found.ndim == value.ndim and all(found.shape[one] == value.shape[one] for one in axes)
    return found, EITHER if fits else WRONG


def _subclass(value, rng):
    kind = rng.integers(6)
    if kind == 0:
        mask = rng.random(value.shape) < 0.5
        return np.ma.array(value, mask=mask), WRONG if mask.any() else EITHER
    if kind == 1:
        return np.ma.array(value), EITHER
    if kind == 2 and value.size:
        with tempfile.TemporaryFile() as file:
            mapped = np.memmap(file, value.dtype, "w+", shape=value.shape)
        mapped[...] = value
        return mapped, EITHER
    if kind == 3:
        return value.view(np.recarray), EITHER
    if kind == 4 and value.ndim <= 2:
        return value.view(np.matrix), EITHER if value.ndim == 2 else WRONG
    return value.view(_Own), EITHER


def array(value, rng, axes):
    """A wrong or doubtful array in place of a right one."""
    kind = rng.integers(4)
    if kind == 0:
        return _another_dtype(value, rng)
    if kind == 1:
        return _another_shape(value, rng, axes)
    if kind == 2:
        return _subclass(value, rng)
    found = things(value)
    return found[rng.integers(len(found))], WRONG


def lengths(seq_len, batch_size, rng):
    """Lengths in every form that says what they are, and in many that do not."""
    values = rng.integers(0, seq_len + 1, batch_size)
    several = [values.tolist()] * 2
    outside = values.copy()
    outside[rng.integers(batch_size)] = rng.choice([-1, seq_len + 1, -(2**62), 2**62])
    forms = [
        (None, RIGHT), (values, RIGHT), (values.tolist(), RIGHT), (tuple(values.tolist()), RIGHT),
        (values.astype(rng.choice(["int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64"])), RIGHT),
        (np.repeat(values, 2)[::2], RIGHT), (values[::-1].copy()[::-1], RIGHT), (list(values), RIGHT),
        (np.broadcast_to(np.int64(seq_len), batch_size), RIGHT), (values.astype(">i8"), EITHER), (np.matrix(values),
        WRONG),
        (np.ma.array(values, mask=True), WRONG), (range(batch_size), EITHER if batch_size <= seq_len + 1 else WRONG),
        (outside, WRONG), (outside.tolist(), WRONG), ([10**30] * batch_size, WRONG), (values.astype(float), WRONG),
        ([float(seq_len)] * batch_size, WRONG), ([str(seq_len)] * batch_size, WRONG), ([None] * batch_size, WRONG),
        ([[1]] * (batch_size - 1) + [[1, 2]], WRONG), ([1, [2]] * batch_size, WRONG), (several, WRONG),
        (values.tolist() + [0], WRONG), (values[1:], WRONG), (values[None], WRONG), (set(values.tolist()), WRONG),
        (dict.fromkeys(range(batch_size)), WRONG), (iter(values), WRONG), (str(seq_len), WRONG),
        (b"\0" * batch_size, WRONG),
        (seq_len, WRONG), (np.int64(seq_len), WRONG), (np.array(seq_len), WRONG), (_Unwilling(), WRONG), ({}, WRONG),
        ([True] * batch_size, EITHER if seq_len else WRONG), ([Decimal(0)] * batch_size, WRONG),
        ([1j] * batch_size, WRONG),
        (np.array([np.nan] * batch_size), WRONG), ([_Unwilling()] * batch_size, WRONG), (object(), WRONG),
    ]  # fmt: skip
    return forms[rng.integers(len(forms))]


SEEDS = (
    (None, EITHER), (0, RIGHT), (2**64 - 1, RIGHT), (np.uint64(2**64 - 1), RIGHT), (np.int8(3), RIGHT), (-1, WRONG),
    (2**64, WRONG), (10**400, WRONG), (1.0, WRONG), (np.float64(1), WRONG), ("1", WRONG), (True, WRONG),
    (np.True_, WRONG),
    ([1], WRONG), (np.array(1), WRONG), (np.array([1]), WRONG), (float("nan"), WRONG), (b"1", WRONG), (Decimal(1),
    WRONG),
    (object(), WRONG), (1j, WRONG),
)  # fmt: skip

NUMBERS = (
    0, 1, 2, 3, 7, -1, 10**9, 10**30, 2**63, 0.0, 0.5, 1.0, 1.5, -0.5, -0.0, np.nan, np.inf, 10**400, -(10**400),
    5e-324, "3",
    "", b"3", None, True, False, np.True_, np.int8(3), np.uint64(2**63), np.float32(0.5), np.float64(0.25),
    np.longdouble(0.5),
    np.array(3), np.array([3]), [], [1], (1, 2), (-1, 1), [-0.5, 0.5], (-np.inf, np.inf), (np.nan, 1), (1, -1),
    (0, 10**400),
    (-(10**400), 0), ("a", "b"), (None, None), (1, 2, 3), {}, {1, 2}, object(), 1j, Decimal("0.5"), range(2),
    slice(1, 2),
)  # fmt: skip
