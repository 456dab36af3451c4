"""Sequences of different lengths: padding them to a batch and back, and batches with little padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rnnkit.call import checks
from rnnkit.common.arrays import Array, library_of, on_host
from rnnkit.errors import message, wrong_type
from rnnkit.training import arguments

WINDOW = 50  # batches: the example of `bucket_batches` shows how much padding different windows leave


def pad(sequences: Sequence[Array]) -> tuple[Array, np.ndarray]:
    """Stack sequences into one time-major batch, padded with zeros at the end.

    Parameters
    ----------
    sequences : sequence of ndarray (T_i, ...)
        At least one, alike in dtype and in all dimensions but the first: inputs (T_i, I), or targets (T_i,) of any
        dtype.

    Returns
    -------
    x : ndarray (T, N, ...)
        T is the greatest of the T_i.
    lengths : ndarray (N,), int64
        The T_i, on the host.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> x, lengths = pad([np.array([1, 2, 3]), np.array([4])])
    >>> x.tolist(), lengths.tolist()
    ([[1, 4], [2, 0], [3, 0]], [3, 1])
    """
    if library_of(sequences) is not None or isinstance(sequences, str) or not isinstance(sequences, Sequence):
        raise wrong_type("pad", "sequences", "a list of arrays", sequences)
    if not sequences:
        raise ValueError(message("pad", "sequences", "hold at least one array", "none"))
    first = sequences[0]
    for i, sequence in enumerate(sequences):
        name = f"sequences[{i}]"
        arguments.array("pad", name, sequence)
        checks.same_place("pad", name, sequence, first)
        arguments.same_dtype("pad", name, sequence, first, "sequences[0]")
        if sequence.ndim < 1 or sequence.shape[1:] != first.shape[1:]:
            rest = ", ".join(map(str, first.shape[1:])) if first.ndim else "..."
            expected = f"have shape (seq_len,{f' {rest}' if rest else ''})" + (" as sequences[0] does" if i else "")
            raise ValueError(message("pad", name, expected, sequence.shape))
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    x = library_of(first).zeros((int(lengths.max()), len(sequences), *first.shape[1:]), first.dtype)
    for n, sequence in enumerate(sequences):
        x[: len(sequence), n] = sequence
    return x, lengths


def unpad(y: Array, lengths: Array | Sequence[int]) -> list[Array]:
    """Split a padded batch into its sequences.

    Parameters
    ----------
    y : ndarray (T, N, ...)
    lengths : array_like (N,)
        Valid steps of each sequence.

    Returns
    -------
    list of ndarray (T_i, ...)
        Copies.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> [sequence.tolist() for sequence in unpad(np.array([[1, 4], [2, 0], [3, 0]]), [3, 1])]
    [[1, 2, 3], [4]]
    """
    arguments.array("unpad", "y", y)
    if y.ndim < 2:
        raise ValueError(message("unpad", "y", "have shape (seq_len, batch_size, ...)", y.shape))
    checked = _checked_lengths("unpad", lengths, *y.shape[:2])
    return [y[:length, n].copy() for n, length in enumerate(checked.tolist())]


def lengths_of(mask: Array) -> np.ndarray:
    """Return the lengths of sequences from a mask of valid steps.

    Parameters
    ----------
    mask : ndarray (T, N), bool
        True where a step is valid. Time-major like everything in rnnkit: give mask.T if it is batch-major. Padding is
        at the end of each sequence.

    Returns
    -------
    ndarray (N,), int64
        On the host.

    Raises
    ------
    TypeError
        The mask is not an array of bools.
    ValueError
        A step after padding is valid.

    Examples
    --------
    >>> import numpy as np
    >>> lengths_of(np.array([[True, True, False], [True, False, False]])).tolist()
    [2, 1, 0]
    """
    function = "lengths_of"
    arguments.array(function, "mask", mask)
    if mask.dtype != np.bool_:
        raise TypeError(message(function, "mask", "be bool", mask.dtype, "convert it with mask.astype(bool)"))
    if mask.ndim != 2:
        raise ValueError(message(function, "mask", "have shape (seq_len, batch_size)", mask.shape))
    mask = on_host(mask)
    rises = np.argwhere((mask[1:] & ~mask[:-1]).T)
    if rises.size:
        row, step = map(int, rises[0])
        got = f"sequence {row} with a valid step {step + 1} after padding in step {step}"
        cure = "move the padding, or give mask.T if it is batch-major"
        raise ValueError(message(function, "mask", "have all padding at the end", got, cure))
    return mask.sum(axis=0, dtype=np.int64)


def bucket_batches(
    lengths: Array | Sequence[int], batch_size: int, *, seed: int | None = None, window: int = WINDOW
) -> Iterator[np.ndarray]:
    """Yield batches of indices of sequences of similar length.

    Sequences are shuffled; windows of `window` batches are sorted by length and cut into batches; the batches are
    shuffled. Every sequence occurs once.

    Parameters
    ----------
    lengths : array_like (number of sequences,)
        Steps of each sequence, at least 0.
    batch_size : int
        Sequences in a batch; one batch may be smaller.
    seed : int, optional
        The same seed gives the same batches: give a new one each epoch. By default it is drawn.
    window : int
        Number of batches that are sorted together. With 1, batches are random and have the most padding. A larger
        window gives less padding, but much the same sequences share a batch in every epoch.

    Yields
    ------
    ndarray (batch_size,), int64
        Indices of sequences, for `pad([sequences[i] for i in batch])`.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong. Raised by the call, not by the first batch.

    Examples
    --------
    >>> import numpy as np
    >>> lengths = np.random.default_rng(0).integers(1, 101, 10_000)
    >>> def padding(window):
    ...     batches = list(bucket_batches(lengths, 32, seed=0, window=window))
    ...     return 1 - lengths.sum() / sum(lengths[batch].max() * len(batch) for batch in batches)
    >>> [f"{padding(window):.1%}" for window in (1, 10, 50, 1000)]
    ['48.2%', '8.8%', '2.1%', '0.3%']
    """
    function = "bucket_batches"
    checked = _checked_lengths(function, lengths)
    arguments.integer(function, "batch_size", batch_size, 1)
    arguments.integer(function, "window", window, 1)
    checks.seed(function, seed)
    return _batches(checked, batch_size, np.random.default_rng(seed), window)


def _batches(lengths: np.ndarray, batch_size: int, rng: np.random.Generator, window: int) -> Iterator[np.ndarray]:
    order = rng.permutation(len(lengths))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), window * batch_size):
        together = order[start : start + window * batch_size]
        together = together[np.argsort(lengths[together], kind="stable")]
        batches += [together[i : i + batch_size] for i in range(0, len(together), batch_size)]
    for number in rng.permutation(len(batches)):
        yield batches[number]


def _checked_lengths(
    function: str, lengths: Any, seq_len: int | None = None, batch_size: int | None = None
) -> np.ndarray:
    """Check lengths, which may not be None. Without seq_len or batch_size, any length or number of them is right."""
    if lengths is None:
        raise wrong_type(function, "lengths", "an integer array on the host", lengths)
    if batch_size is None:
        batch_size = len(lengths) if isinstance(lengths, Sequence) else getattr(lengths, "size", 0)
    found = checks.lengths(function, lengths, np.iinfo(np.int64).max if seq_len is None else seq_len, batch_size)
    assert found is not None
    return found
