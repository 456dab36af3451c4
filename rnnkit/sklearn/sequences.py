"""Convert X to sequences of any lengths, with all steps in one array."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rnnkit.common.arrays import not_an_array
from rnnkit.errors import message

CURE_1D = "pass a sequence with one feature as a column: sequence[:, numpy.newaxis]"


class Sequences(NamedTuple):
    """Sequence n is steps[starts[n] : starts[n] + lengths[n]]; `steps` may contain unused rows."""

    steps: np.ndarray  # (steps, I)
    starts: np.ndarray  # (N,)
    lengths: np.ndarray  # (N,), at least 1

    def part(self, numbers: np.ndarray) -> Sequences:
        """Return some of the sequences, without copying steps."""
        return Sequences(self.steps, self.starts[numbers], self.lengths[numbers])

    def batch(self) -> np.ndarray:
        """Return all sequences as a batch (T, N, I). Padding holds arbitrary steps; the engine ignores it."""
        seq_len = int(self.lengths.max())
        rows = self.starts + np.arange(seq_len)[:, np.newaxis]
        return np.take(self.steps, rows, axis=0, mode="clip")

    def valid(self) -> np.ndarray:
        """Return the steps (sum of lengths, I) of these sequences."""
        ends = self.lengths.cumsum()
        if ends[-1] == len(self.steps):
            return self.steps
        return self.steps[np.repeat(self.starts - ends + self.lengths, self.lengths) + np.arange(ends[-1])]


def is_list(X: Any) -> bool:
    """Return whether X is a list of sequences, not a table: a list or 1-D object array whose elements are not numbers.

    A list of rows of one length is a table, as in scikit-learn.
    """
    if isinstance(X, np.ndarray):
        return X.dtype == object and X.ndim == 1
    if not isinstance(X, (list, tuple)):
        return False
    shapes = {_shape(element) for element in X if hasattr(element, "__array__") or isinstance(element, (list, tuple))}
    return not X or len(shapes) > 1 or any(len(shape) > 1 for shape in shapes)


def _shape(element: Any) -> tuple[int, ...]:
    try:
        return np.shape(element)
    except ValueError:  # rows of different lengths are not an array: `from_list` raises
        return len(element), 0


def from_table(X: np.ndarray) -> Sequences:
    """Return the rows of a table as sequences: one step per column, with one feature."""
    return _from_equal(X[:, :, np.newaxis])


def from_list(function: str, X: Any) -> Sequences:
    """Return the sequences of a list of (T_i, I) arrays."""
    if not len(X):
        raise ValueError(message(function, "X", "hold at least one sequence", "none"))
    arrays = []
    for i, sequence in enumerate(X):
        array = _array(function, f"X[{i}]", sequence)
        rest = f"num_features={arrays[0].shape[1]}" if i else "num_features"
        if array.ndim != 2 or array.shape[1] != (arrays[0].shape[1] if i else array.shape[-1]):
            cure = CURE_1D if array.ndim == 1 else ""
            like = " as X[0] does" if i else ""
            raise ValueError(message(function, f"X[{i}]", f"have shape (seq_len, {rest}){like}", array.shape, cure))
        if not array.size:
            raise ValueError(message(function, f"X[{i}]", "have at least one step and one feature", array.shape))
        arrays.append(array)
    lengths = np.array([len(array) for array in arrays], np.int64)
    return Sequences(np.concatenate(arrays), lengths.cumsum() - lengths, lengths)


def from_array(function: str, X: Any) -> Sequences:
    """Return the sequences of an array (N, T, I)."""
    array = _array(function, "X", X)
    if not array.size:
        expected = "have at least one sequence, one step and one feature in (num_samples, seq_len, num_features)"
        raise ValueError(message(function, "X", expected, array.shape))
    return _from_equal(array)


def _from_equal(array: np.ndarray) -> Sequences:
    num_samples, seq_len, _ = array.shape
    lengths = np.full(num_samples, seq_len, np.int64)
    return Sequences(array.reshape(num_samples * seq_len, -1), lengths.cumsum() - lengths, lengths)


def _array(function: str, name: str, value: Any) -> np.ndarray:
    """Return a value as an array of finite real numbers."""
    if isinstance(value, np.ma.MaskedArray):
        raise not_an_array(function, name, "a plain array", value)
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise ValueError(message(function, name, "be an array of numbers", f"a ragged list ({error})")) from None
    if array.dtype.kind not in "biuf":
        raise TypeError(message(function, name, "hold real numbers", f"dtype {array.dtype}"))
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        step = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(message(function, name, "be finite", f"{array[tuple(step)]} at {step}"))
    return array
