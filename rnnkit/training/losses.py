"""Losses and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rnnkit import checks
from rnnkit.arrays import Array, library_of, no_array, overlap
from rnnkit.errors import message
from rnnkit.training import arguments


class Loss(NamedTuple):
    """What a loss gives: `loss`, the mean over the valid entries as a float; its `gradient` by the scores, zeros in
    padding; and `losses`, that of every entry, of the shape of the targets, zeros in padding."""

    loss: float
    gradient: Array
    losses: Array


def softmax_cross_entropy(
    scores: Array, targets: Array, lengths: Array | Sequence[int] | None = None, *, count: float | None = None,
    out: Array | None = None,
) -> Loss:
    """Return -ln p(target) under the softmax of scores, its mean, and the gradient of that.

    Parameters
    ----------
    scores : ndarray (..., C), float32 or float64
        Before softmax. (T, N, C) with lengths.
    targets : ndarray (...), any integer dtype
        A class of 0..C-1 for every entry.
    lengths : array_like (N,), optional
        Valid steps of each sequence. What stands behind them in scores and targets is never read.
    count : float, optional
        What the sum of the losses is divided by; by default the number of valid entries. Give the number of entries of
        a whole batch where you call once for each part of it, and the sums over the calls are right.
    out : ndarray (..., C), optional
        Where the gradient is written, C-contiguous; `scores` itself is fine, and saves memory.

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
    arguments.real_array(function, "scores", scores)
    if scores.ndim < 1 or scores.shape[-1] < 1:
        raise ValueError(message(function, "scores", "have shape (..., num_classes)", scores.shape))
    num_classes = scores.shape[-1]
    entries = _Entries(function, scores, targets, scores.shape[:-1], lengths, count, out)
    if targets.dtype.kind not in "iu":
        raise TypeError(message(function, "targets", "hold integers", f"dtype {targets.dtype}"))
    wanted = entries.targets.reshape(-1)
    outside = (wanted < 0) | (wanted >= num_classes)
    if outside.any():
        expected = f"be in 0..num_classes-1={num_classes - 1}"
        raise ValueError(message(function, "targets", expected, int(wanted[outside][0])))
    gradient, into = entries.gradient()
    losses = _softmax(entries.scores.reshape(-1, num_classes), wanted, entries.count, into.reshape(-1, num_classes))
    return entries.loss(gradient, into, losses)


def _softmax(scores: Array, targets: Array, count: float, gradient: Array) -> Array:
    """Write the gradient (rows, C), which may be where the scores are, and return the losses (rows,)."""
    library = library_of(scores)
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        library.subtract(scores, scores.max(axis=1, keepdims=True), out=gradient)
        flat = gradient.reshape(-1)
        places = library.arange(0, flat.size, scores.shape[1]) + targets
        losses = -flat[places]
        library.exp(gradient, out=gradient)
        total = gradient.sum(axis=1, keepdims=True)
        losses += library.log(total[:, 0])
        total *= count
        gradient *= 1 / total  # a division for each row and not for each score
        flat[places] -= 1 / count
    return losses


class _Entries:
    """The valid entries of a call, and where what is found about them goes.

    `scores` and `targets` are those of the valid steps: themselves without lengths, else copies with one axis in place
    of T and N.
    """

    def __init__(
        self, function: str, scores: Array, targets: Any, shape: tuple[int, ...], lengths: Any, count: Any, out: Any
    ) -> None:
        if library_of(targets) is None:
            raise no_array(function, "targets", arguments.AN_ARRAY, targets)
        checks.same_place(function, "targets", targets, scores)
        arguments.same_shape(function, "targets", targets, shape, "as the scores say")
        self._like, self._shape, self._out = scores, shape, out
        self._valid = _valid_steps(function, scores, shape, lengths)
        self.scores, self.targets = self._chosen(scores), self._chosen(targets)
        if count is None:
            self.count = float(max(self.targets.size, 1))
        else:
            expected = "be a finite number above 0"
            self.count = arguments.number(function, "count", count, expected, lambda value: 0 < value < math.inf)
        if out is not None:
            _check_out(function, out, scores, targets)

    def _chosen(self, array: Array) -> Array:
        return array if self._valid is None else _by_step(array)[self._valid]

    def gradient(self) -> tuple[Array, Array]:
        """Return the gradient, and where that of the valid entries is to be written."""
        gradient = library_of(self._like).empty(self._like.shape, self._like.dtype) if self._out is None else self._out
        return gradient, gradient if self._valid is None else self.scores

    def loss(self, gradient: Array, valid: Array, losses: Array) -> Loss:
        """Return the result, padding filled with zeros."""
        loss = float(losses.sum(dtype=np.float64)) / self.count
        if self._valid is None:
            return Loss(loss, gradient, losses.reshape(self._shape))
        gradient[...] = 0
        _by_step(gradient)[self._valid] = valid
        everywhere = library_of(losses).zeros(self._shape, losses.dtype)
        _by_step(everywhere)[self._valid] = losses.reshape(-1, *self._shape[2:])
        return Loss(loss, gradient, everywhere)


def _by_step(array: Array) -> Array:
    """(T, N, ...) as (T*N, ...): a view of what is contiguous."""
    return array.reshape(-1, *array.shape[2:])


def _valid_steps(function: str, scores: Array, shape: tuple[int, ...], lengths: Any) -> Array | None:
    """Return the numbers t*N + n of the valid steps; None is all."""
    if lengths is None:
        return None
    if len(shape) < 2:
        expected = "have shape (seq_len, batch_size, ...) where lengths are given"
        raise ValueError(message(function, "targets", expected, shape))
    seq_len, batch_size = shape[:2]
    checked = checks.lengths(function, lengths, seq_len, batch_size)
    if (checked == seq_len).all():
        return None
    return library_of(scores).asarray(np.flatnonzero(np.arange(seq_len)[:, None] < checked))


def _check_out(function: str, out: Any, scores: Array, targets: Array) -> None:
    checks.same_place(function, "out", out, scores)
    arguments.same_dtype(function, "out", out, scores, "the array of scores")
    arguments.same_shape(function, "out", out, scores.shape, "as the scores do")
    arguments.contiguous(function, "out", out)
    arguments.writeable(function, "out", out)
    for name, other in ("scores", scores), ("targets", targets):
        if out is not scores and overlap(out, other):
            raise ValueError(message(function, "out", "be scores itself, or have memory of its own", f"that of {name}"))
