"""Arguments that are wrong, or that only look right; each with what a call may do with it.

RIGHT must give the plain call's result. WRONG must be refused. EITHER may be one or the other, and nothing else.
"""

import re
import tempfile
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
from guarded import guard_pages, snapshot

RIGHT, EITHER, WRONG = "right", "either", "wrong"
FORM = r"(?s)\w+: .+ must .+, got "  # of a message


def attempt(call, given, expected, what, refusals=(TypeError, ValueError), form=FORM):
    """The result, or None where the call was refused; nothing that it was given has changed."""
    before = snapshot(given)
    try:
        with guard_pages():
            result = call()
    except refusals as error:
        assert expected is not RIGHT, f"{what} was refused: {error!r}"
        assert re.match(form, str(error)), f"{what} was refused without saying what it must be: {error!r}"
        result = None
    else:
        assert expected is not WRONG, f"{what} was accepted"
    assert snapshot(given) == before, f"{what} changed what it was given"
    return result


def _labelled(right, either, wrong):
    labels = (RIGHT, right), (EITHER, either), (WRONG, wrong)
    return [(value, label) for label, values in labels for value in values]


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


def _no_array(value, rng):
    found = [
        value.tolist(), (), [], "text", b"bytes", 3, 1.5, 1j, True, object(), {}, {1}, range(3), np.float32(1),
        Ellipsis, memoryview(np.ascontiguousarray(value)), _Convertible(value), _Unwilling(), type(value), iter(()),
        np.ma.masked, SimpleNamespace(shape=value.shape, dtype=value.dtype, ndim=value.ndim), Decimal(1),
        NotImplemented,
    ]  # fmt: skip
    return found[rng.integers(len(found))], WRONG


def _another_dtype(value, rng):
    if rng.random() < 0.2:
        return value.astype(value.dtype.newbyteorder()), WRONG
    others = [np.dtype(one) for one in DTYPES if np.dtype(one) != value.dtype]
    return np.zeros(value.shape, others[rng.integers(len(others))]), WRONG


def _another_shape(value, rng, axes):
    """Other axes than expected, or other sizes along `axes`, the only ones that are prescribed."""
    axis = int(rng.choice(axes))
    longer = np.concatenate([value, value.take(range(1), axis, mode="wrap")], axis) if value.size else value[None]
    found = [
        np.expand_dims(value, int(rng.integers(value.ndim + 1))),
        value.reshape(-1) if value.ndim > 1 else value.reshape(-1, 1),
        np.zeros((), value.dtype),
        longer,
        value.take(range(value.shape[axis] - 1), axis),
        value.take([], axis),
        value.T,
    ][rng.integers(7)]
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
    kinds = _another_dtype, lambda *given: _another_shape(*given, axes), _subclass, _no_array
    return kinds[rng.integers(len(kinds))](value, rng)


def lengths(seq_len, batch_size, rng):
    """Lengths in every form that says what they are, and in many that do not."""
    values = rng.integers(0, seq_len + 1, batch_size)
    outside = values.copy()
    outside[rng.integers(batch_size)] = rng.choice([-1, seq_len + 1, -(2**62), 2**62])
    other = values.astype(rng.choice(["int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64"]))
    counted, true = range(batch_size), [True] * batch_size
    right = [
        None, values, values.tolist(), tuple(values.tolist()), other, np.repeat(values, 2)[::2],
        values[::-1].copy()[::-1], list(values), np.broadcast_to(np.int64(seq_len), batch_size),
    ]  # fmt: skip
    either = [values.astype(">i8"), *([counted] if batch_size <= seq_len + 1 else []), *([true] if seq_len else [])]
    wrong = [
        np.matrix(values), np.ma.array(values, mask=True), *([] if batch_size <= seq_len + 1 else [counted]), outside,
        outside.tolist(), [10**30] * batch_size, values.astype(float), [float(seq_len)] * batch_size,
        [str(seq_len)] * batch_size, [None] * batch_size, [[1]] * (batch_size - 1) + [[1, 2]], [1, [2]] * batch_size,
        [values.tolist()] * 2, values.tolist() + [0], values[1:], values[None], set(values.tolist()),
        dict.fromkeys(counted), iter(values), str(seq_len), b"\0" * batch_size, seq_len, np.int64(seq_len),
        np.array(seq_len), _Unwilling(), {}, *([] if seq_len else [true]), [Decimal(0)] * batch_size,
        [1j] * batch_size, np.array([np.nan] * batch_size), [_Unwilling()] * batch_size, object(),
    ]  # fmt: skip
    forms = _labelled(right, either, wrong)
    return forms[rng.integers(len(forms))]


SEEDS = _labelled(
    right=[0, 2**64 - 1, np.uint64(2**64 - 1), np.int8(3)],
    either=[None],
    wrong=[
        -1, 2**64, 10**400, 1.0, np.float64(1), "1", True, np.True_, [1], np.array(1), np.array([1]), float("nan"),
        b"1", Decimal(1), object(), 1j,
    ],
)  # fmt: skip

NUMBERS = (
    0, 1, 2, 3, 7, -1, 10**9, 10**30, 2**63, 0.0, 0.5, 1.0, 1.5, -0.5, -0.0, np.nan, np.inf, 10**400, -(10**400),
    5e-324, "3", "", b"3", None, True, False, np.True_, np.int8(3), np.uint64(2**63), np.float32(0.5), np.float64(0.25),
    np.longdouble(0.5), np.array(3), np.array([3]), [], [1], (1, 2), (-1, 1), [-0.5, 0.5], (-np.inf, np.inf),
    (np.nan, 1), (1, -1), (0, 10**400), (-(10**400), 0), ("a", "b"), (None, None), (1, 2, 3), {}, {1, 2}, object(), 1j,
    Decimal("0.5"), range(2), slice(1, 2),
)  # fmt: skip
