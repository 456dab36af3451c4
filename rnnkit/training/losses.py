"""Losses and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call import checks
from rnnkit.common.arrays import Array, library_of, overlap
from rnnkit.errors import message
from rnnkit.training import arguments
from rnnkit.training.sums import total
from rnnkit_kernels.machine.imports import imported

SILENT = {"under": "ignore", "over": "ignore", "invalid": "ignore"}  # infinity and NaN propagate silently


class Loss(NamedTuple):
    """Result of a loss: `loss`, the mean over the valid entries, a float; `gradient`, its gradient by the scores; and
    `losses`, the loss of every entry, in the shape of the targets. `gradient` and `losses` are 0 in padding."""

    loss: float
    gradient: Array
    losses: Array


def softmax_cross_entropy(
    scores: Array,
    targets: Array,
    lengths: Array | Sequence[int] | None = None,
    *,
    count: float | None = None,
    out: Array | None = None,
) -> Loss:
    """Return the cross-entropy -ln p(target) under the softmax of scores: its mean, gradient, and value per entry.

    Parameters
    ----------
    scores : ndarray (..., C), float32 or float64
        Before softmax. (T, N, C) with lengths.
    targets : ndarray (...), any integer dtype
        A class of 0..C-1 for every entry.
    lengths : array_like (N,), optional
        Valid steps of each sequence. Padding in scores and targets is ignored, whatever it holds.
    count : float, optional
        Divisor of the sum of the losses; by default the number of valid entries. For a batch in parts, give the number
        of entries of the whole batch: then losses and gradients of the parts add up. At least 5.9e-39 in float32.
    out : ndarray (..., C), optional
        Array for the gradient, C-contiguous; `scores` itself is fine, and saves memory.

    Returns
    -------
    Loss
        (loss, gradient, losses) in nats. Without a valid entry the loss is 0, and so is the gradient.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong. Nothing is written then.

    Notes
    -----
    The gradient is (softmax(scores) - onehot(targets)) / count. The largest score is subtracted before exp.

    Examples
    --------
    >>> import numpy as np
    >>> scores = np.zeros((2, 1, 4))
    >>> loss, gradient, losses = softmax_cross_entropy(scores, np.array([[1], [3]]), lengths=[1])
    >>> round(loss, 6), losses.round(6).tolist()
    (1.386294, [[1.386294], [0.0]])
    >>> gradient.tolist()
    [[[0.25, -0.75, 0.25, 0.25]], [[0.0, 0.0, 0.0, 0.0]]]
    """
    function = "softmax_cross_entropy"
    num_classes = arguments.last_size(function, "scores", scores, "num_classes")
    entries = _Entries(function, scores, targets, scores.shape[:-1], lengths, count, out)
    if targets.dtype.kind not in "iu":
        raise TypeError(message(function, "targets", "hold integers", f"dtype {targets.dtype}"))
    wanted = entries.targets.reshape(-1).astype(np.int64)  # an index into the scores can exceed uint8
    outside = (wanted < 0) | (wanted >= num_classes)
    if outside.any():
        expected = f"be in 0..num_classes-1={num_classes - 1}"
        raise ValueError(message(function, "targets", expected, int(wanted[outside][0])))
    rows, gradient = (array.reshape(-1, num_classes) for array in (entries.scores, entries.gradient))
    return entries.loss(_softmax(rows, wanted, entries.count, gradient))


def sigmoid_cross_entropy(
    scores: Array,
    targets: Array,
    lengths: Array | Sequence[int] | None = None,
    *,
    count: float | None = None,
    out: Array | None = None,
) -> Loss:
    """Return the binary cross-entropy of targets and logistic(scores): its mean, gradient, and value per entry.

    Parameters
    ----------
    scores : ndarray (...), float32 or float64
        Before the logistic function. (T, N, ...) with lengths.
    targets : ndarray (...), bool, integer or float
        Of the shape of the scores: 1 is yes, 0 is no, a value between is the probability of yes.
    lengths : array_like (N,), optional
        Valid steps of each sequence. Padding in scores and targets is ignored, whatever it holds.
    count : float, optional
        Divisor of the sum of the losses; by default the number of valid scores. For a batch in parts, give the number
        of entries of the whole batch. At least 5.9e-39 in float32.
    out : ndarray (...), optional
        Array for the gradient, C-contiguous; `scores` itself is fine, and saves memory.

    Returns
    -------
    Loss
        (loss, gradient, losses) in nats. Without a valid entry the loss is 0, and so is the gradient.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong. Nothing is written then.

    Notes
    -----
    With p = 1/(1 + exp(-score)) the loss is -target*ln(p) - (1 - target)*ln(1 - p), computed without overflow as
    max(score, 0) - score*target + ln(1 + exp(-abs(score))), and the gradient (p - target) / count.

    Examples
    --------
    >>> import numpy as np
    >>> loss, gradient, _ = sigmoid_cross_entropy(np.array([0.0, 1000.0]), np.array([True, True]))
    >>> round(loss, 6), gradient.tolist()
    (0.346574, [-0.25, 0.0])
    """
    function = "sigmoid_cross_entropy"
    arguments.real_array(function, "scores", scores)
    entries = _Entries(function, scores, targets, scores.shape, lengths, count, out)
    if targets.dtype.kind not in "biuf":
        raise TypeError(message(function, "targets", "hold bools, integers or floats", f"dtype {targets.dtype}"))
    found = entries.targets.astype(scores.dtype)
    outside = ~((found >= 0) & (found <= 1))
    if outside.any():
        raise ValueError(message(function, "targets", "be in 0..1", float(found[outside][0])))
    return entries.loss(_sigmoid(entries.scores, found, entries.count, entries.gradient))


def squared_error(
    y: Array,
    targets: Array,
    lengths: Array | Sequence[int] | None = None,
    *,
    count: float | None = None,
    out: Array | None = None,
) -> Loss:
    """Return the squared difference between outputs and targets: its mean, gradient, and value per entry.

    Parameters
    ----------
    y : ndarray (...), float32 or float64
        (T, N, ...) with lengths.
    targets : ndarray (...)
        Of the shape and dtype of y.
    lengths : array_like (N,), optional
        Valid steps of each sequence. Padding in y and targets is ignored, whatever it holds.
    count : float, optional
        Divisor of the sum of the squares; by default the number of valid elements of y. For a batch in parts, give the
        number of entries of the whole batch. At least 5.9e-39 in float32.
    out : ndarray (...), optional
        Array for the gradient, C-contiguous; `y` itself is fine, and saves memory.

    Returns
    -------
    Loss
        (loss, gradient, losses); the gradient is 2*(y - targets) / count. Without a valid entry the loss is 0, and so
        is the gradient.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong. Nothing is written then.

    Examples
    --------
    >>> import numpy as np
    >>> loss, gradient, _ = squared_error(np.array([1.0, 5.0]), np.array([1.0, 2.0]))
    >>> loss, gradient.tolist()
    (4.5, [0.0, 3.0])
    """
    function = "squared_error"
    arguments.real_array(function, "y", y)
    entries = _Entries(function, y, targets, y.shape, lengths, count, out, name="y")
    arguments.same_dtype(function, "targets", targets, y, "y")
    gradient = entries.gradient
    with np.errstate(**SILENT):
        library_of(y).subtract(entries.scores, entries.targets, out=gradient)
        losses = gradient * gradient
        gradient *= 2 / entries.count
    return entries.loss(losses)


def _softmax(scores: Array, targets: Array, count: float, gradient: Array) -> Array:
    """Write the gradient (rows, C), possibly over the scores, and return the losses (rows,)."""
    library = library_of(scores)
    if library is np:
        return _on_cpu().softmax_cross_entropy(scores, targets, count, gradient)
    library.subtract(scores, scores.max(axis=1, keepdims=True), out=gradient)
    flat = gradient.reshape(-1)
    places = library.arange(0, flat.size, scores.shape[1]) + targets
    losses = -flat[places]
    library.exp(gradient, out=gradient)
    total = gradient.sum(axis=1, keepdims=True)
    losses += library.log(total[:, 0])
    gradient *= 1 / (total * count)
    flat[places] -= 1 / count
    return losses


def _sigmoid(scores: Array, targets: Array, count: float, gradient: Array) -> Array:
    """Write the gradient, possibly over the scores, and return the losses."""
    library = library_of(scores)
    if library is np:
        return _on_cpu().sigmoid_cross_entropy(scores, targets, count, gradient)
    small = library.exp(-abs(scores))  # 0..1, so that neither form of the logistic function overflows
    losses = library.maximum(scores, 0) - scores * targets + library.log1p(small)
    positive = scores >= 0
    library.divide(library.where(positive, 1, small), 1 + small, out=gradient)
    gradient -= targets
    gradient *= 1 / count
    return losses


def _on_cpu() -> Any:
    return imported("rnnkit.cpu.losses")


class _Entries:
    """Valid entries of a loss call, and its output arrays.

    `scores` and `targets` belong to the valid steps: without lengths the arguments themselves, otherwise copies with
    one axis in place of T and N. `gradient` is the array for the gradient by these scores.
    """

    def __init__(
        self,
        function: str,
        scores: Array,
        targets: Any,
        shape: tuple[int, ...],
        lengths: Any,
        count: Any,
        out: Any,
        name: str = "scores",
    ) -> None:
        arguments.array(function, "targets", targets)
        checks.same_place(function, "targets", targets, scores)
        arguments.same_shape(function, "targets", targets, shape, f"to match {name}")
        self._shape, self._valid = shape, _valid_steps(function, scores, shape, lengths)
        self.scores, self.targets = self._valid_part(scores), self._valid_part(targets)
        if count is None:
            self.count = float(max(self.targets.size, 1))
        else:
            expected = "be a finite number above 0"
            self.count = arguments.number(function, "count", count, expected, lambda value: 0 < value < math.inf)
            least = 2 / arguments.dtype_max(scores)  # then the factor of the gradient is finite, and 0 times it is 0
            if self.count < least:
                raise ValueError(message(function, "count", f"be at least {least} in {scores.dtype}", count))
        if out is not None:
            _check_out(function, out, name, scores, targets)
        self._full_gradient = library_of(scores).empty(scores.shape, scores.dtype) if out is None else out
        self.gradient = self._full_gradient if self._valid is None else self.scores

    def _valid_part(self, array: Array) -> Array:
        return array if self._valid is None else _by_step(array)[self._valid]

    def loss(self, losses: Array) -> Loss:
        """Return the result for the losses and the gradient of the valid entries, with zeros in padding."""
        loss = total(losses) / self.count
        if self._valid is None:
            return Loss(loss, self._full_gradient, losses.reshape(self._shape))
        self._full_gradient[...] = 0
        _by_step(self._full_gradient)[self._valid] = self.gradient
        everywhere = library_of(losses).zeros(self._shape, losses.dtype)
        _by_step(everywhere)[self._valid] = losses.reshape(-1, *self._shape[2:])
        return Loss(loss, self._full_gradient, everywhere)


def _by_step(array: Array) -> Array:
    """Return (T, N, ...) as (T*N, ...), a view if contiguous."""
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])


def _valid_steps(function: str, scores: Array, shape: tuple[int, ...], lengths: Any) -> Array | None:
    """Return the indices t*N + n of the valid steps; None means all."""
    if lengths is None:
        return None
    if len(shape) < 2:
        expected = "have shape (seq_len, batch_size, ...) with lengths"
        raise ValueError(message(function, "targets", expected, shape))
    seq_len, batch_size = shape[:2]
    checked = checks.lengths(function, lengths, seq_len, batch_size)
    if (checked == seq_len).all():
        return None
    return library_of(scores).asarray(np.flatnonzero(np.arange(seq_len)[:, None] < checked))


def _check_out(function: str, out: Any, name: str, scores: Array, targets: Array) -> None:
    arguments.output(function, "out", out, scores, name, scores.shape, f"to match {name}")
    for other_name, other in (name, scores), ("targets", targets):
        if out is not scores and overlap(out, other):
            expected = f"be {name} itself, or share no memory with it"
            raise ValueError(message(function, "out", expected, f"memory of {other_name}"))
