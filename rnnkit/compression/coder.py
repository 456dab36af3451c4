"""Frequencies of symbols from a network's scores, and a range coder."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rnnkit.errors import message, wrong_type
from rnnkit_kernels.machine.imports import imported

MAX_SYMBOLS = 1 << 16
DTYPES = np.dtype("float32"), np.dtype("float64")


def frequencies(scores: np.ndarray) -> np.ndarray:
    """Turn a network's scores into integer frequencies of symbols, for encoding and decoding.

    Parameters
    ----------
    scores : ndarray (n, S), float32 or float64
        Before softmax, S is 1 to 65536. If a row has a NaN or infinity, its frequencies may all be equal.

    Returns
    -------
    ndarray (n, S), int32
        At least 1 each; a row sums to at most 2**18. Approximately softmax(scores) * 2**18. The same scores give the
        same frequencies on every CPU.

    Raises
    ------
    TypeError, ValueError
        `scores` is not such an array.

    Examples
    --------
    >>> import numpy as np
    >>> frequencies(np.log(np.array([[1.0, 2.0, 1.0]]))).tolist()
    [[65536, 131071, 65536]]
    """
    return _table("frequencies", scores, None)


def _check_scores(function: str, scores: Any) -> None:
    if type(scores) is not np.ndarray:
        raise wrong_type(function, "scores", "a numpy.ndarray", scores)
    if scores.dtype not in DTYPES:
        raise TypeError(message(function, "scores", "be float32 or float64", scores.dtype))
    if scores.ndim != 2 or not 1 <= scores.shape[1] <= MAX_SYMBOLS:
        raise ValueError(message(function, "scores", f"have shape (n, 1..{MAX_SYMBOLS})", scores.shape))


def _frequencies(scores: np.ndarray, class_of: np.ndarray, others: int) -> np.ndarray:
    """Return the frequencies of symbols (n, S) from the scores of their classes (n, C).

    `class_of` has the class of each symbol, int64; `others` symbols share the last class.
    """
    range_coder, lanes_of_row = _kernels(), imported("rnnkit_kernels.losses").ROW_LANES
    scores = scores if scores.flags.carray else np.array(scores, order="C")
    table = np.empty((len(scores), len(class_of)), np.int32)
    weights, lanes = np.empty(scores.shape[1], np.int32), np.empty(lanes_of_row, scores.dtype)
    range_coder.frequencies(table.reshape(-1), weights, lanes, scores.reshape(-1), class_of, others)
    return table


class _Classes(NamedTuple):
    """The class of each symbol (S,), int64; the largest class, and the number of its symbols."""

    of: np.ndarray
    last: int
    others: int


def _classes(function: str, class_of: Any) -> _Classes | None:
    """Check the argument class_of of a coder."""
    if class_of is None:
        return None
    found = np.array(class_of)
    if found.dtype.kind not in "iu" or found.ndim != 1 or not 1 <= found.size <= MAX_SYMBOLS:
        expected, got = f"hold 1..{MAX_SYMBOLS} integers", f"dtype {found.dtype} and shape {found.shape}"
        raise ValueError(message(function, "class_of", expected, got))
    low, high = int(found.min()), int(found.max())
    if low < 0 or high >= MAX_SYMBOLS:
        raise ValueError(message(function, "class_of", f"be in 0..{MAX_SYMBOLS - 1}", low if low < 0 else high))
    classes = found.astype(np.int64)
    counts = np.bincount(classes)
    if (counts[:high] > 1).any():
        expected = "have several symbols only in the last class"
        raise ValueError(message(function, "class_of", expected, f"{counts[:high].max()} in class {counts.argmax()}"))
    return _Classes(classes, high, int(counts[high]))


def _table(function: str, scores: Any, classes: _Classes | None) -> np.ndarray:
    """Return the frequencies of symbols (n, S) from the scores of their classes (n, C)."""
    _check_scores(function, scores)
    count = scores.shape[1]
    if classes is None:
        return _frequencies(scores, np.arange(count), 1)
    if count <= classes.last:
        expected = f"have shape (n, C) with C of at least {classes.last + 1} classes"
        raise ValueError(message(function, "scores", expected, scores.shape))
    return _frequencies(scores, classes.of, classes.others if count == classes.last + 1 else 1)


class RangeEncoder:
    """Encodes symbols into bytes, given their frequencies, or the scores of a network.

    Parameters
    ----------
    class_of : array_like (S,) of int, optional
        For `encode_scores`: the class of each symbol, from 0 on. Only the last class may have several symbols; they
        are equally likely. None: the classes are the symbols.

    Raises
    ------
    ValueError
        `class_of` is not such an array.

    Examples
    --------
    >>> import numpy as np
    >>> table = frequencies(np.zeros((3, 10)))
    >>> encoder = RangeEncoder()
    >>> encoder.encode([3, 1, 4], table)
    >>> payload = encoder.finish()
    >>> RangeDecoder(payload).decode(table).tolist()
    [3, 1, 4]
    """

    def __init__(self, class_of: Any = None) -> None:
        range_coder = _kernels()
        self._coder, self._classes = range_coder, _classes("RangeEncoder", class_of)
        self._state = np.array(range_coder.START_ENCODING)
        self._out = np.empty(1 << 12, np.uint8)
        self._bound, self._finished = 0, False  # an upper bound of the bytes in `_out` and pending ones

    def encode(self, symbols: Any, table: np.ndarray) -> None:
        """Encode symbols in order.

        Parameters
        ----------
        symbols : array_like (n,) of int
            Each 0..S-1.
        table : ndarray (n, S), int32
            A row of frequencies per symbol: at least 0, above 0 for the symbol itself, with a sum of at most 2**18.

        Raises
        ------
        TypeError, ValueError
            An argument is wrong, or `finish` was called before; then nothing is encoded.
        """
        function = "encode"
        self._check_unfinished(function)
        check_table(function, table)
        found = self._symbols(function, symbols, *table.shape, "table")
        if not table[np.arange(len(table)), found].all():
            raise ValueError(message(function, "table", "give each symbol a frequency above 0", "0"))
        self._encode(found, table)

    def encode_scores(self, symbols: Any, scores: np.ndarray) -> None:
        """Encode symbols in order, by the scores of their classes.

        Parameters
        ----------
        symbols : array_like (n,) of int
            Each 0..S-1.
        scores : ndarray (n, C), float32 or float64
            A row of scores per symbol, as for :func:`frequencies`.

        Raises
        ------
        TypeError, ValueError
            An argument is wrong, or `finish` was called before; then nothing is encoded.

        Examples
        --------
        Symbols 2 and 3 share the last class:

        >>> import numpy as np
        >>> class_of, scores = [0, 1, 2, 2], np.zeros((5, 3), np.float32)
        >>> encoder = RangeEncoder(class_of)
        >>> encoder.encode_scores([3, 1, 0, 2, 3], scores)
        >>> RangeDecoder(encoder.finish(), class_of).decode_scores(scores).tolist()
        [3, 1, 0, 2, 3]
        """
        function = "encode_scores"
        self._check_unfinished(function)
        table = _table(function, scores, self._classes)
        self._encode(self._symbols(function, symbols, *table.shape, "scores"), table)

    def _check_unfinished(self, function: str) -> None:
        if self._finished:
            raise ValueError(f"{function}: encoder is already finished; create a new one")

    @staticmethod
    def _symbols(function: str, symbols: Any, count: int, size: int, of: str) -> np.ndarray:
        """Return the symbols as int64, each of them below `size`."""
        found = np.asarray(symbols)
        if found.dtype.kind not in "iu" and found.size:
            raise TypeError(message(function, "symbols", "hold integers", f"dtype {found.dtype}"))
        if found.shape != (count,):
            raise ValueError(message(function, "symbols", f"have shape ({count},) like the {of}", found.shape))
        outside = (found < 0) | (found >= size)
        if outside.any():
            raise ValueError(message(function, "symbols", f"be in 0..{size - 1}", int(found[outside][0])))
        return found.astype(np.int64)

    def _encode(self, symbols: np.ndarray, table: np.ndarray) -> None:
        self._bound += self._coder.MAX_BYTES * symbols.size
        if self._bound + self._coder.END > self._out.size:
            grown = np.empty(2 * (self._bound + self._coder.END), np.uint8)
            grown[: self._out.size] = self._out
            self._out = grown
        self._coder.encode(self._state, self._out, symbols, table.reshape(-1))

    def finish(self) -> bytes:
        """Return the bytes of all symbols; nothing more can be encoded."""
        if not self._finished:
            self._size, self._finished = self._coder.finish(self._state, self._out), True
        return self._out[: self._size].tobytes()


class RangeDecoder:
    """Decodes the bytes of a `RangeEncoder`, given the same frequencies or scores.

    Parameters
    ----------
    payload : bytes
        From `RangeEncoder.finish`. Corrupt bytes decode to wrong symbols without an error, so store a checksum.
    class_of : array_like (S,) of int, optional
        That of the encoder.

    Raises
    ------
    TypeError, ValueError
        `payload` is not bytes, or `class_of` is not such an array.
    """

    def __init__(self, payload: bytes, class_of: Any = None) -> None:
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            raise wrong_type("RangeDecoder", "payload", "bytes", payload)
        range_coder = _kernels()
        self._coder, self._classes = range_coder, _classes("RangeDecoder", class_of)
        self._payload = np.frombuffer(bytearray(payload), np.uint8)
        self._state = np.array(range_coder.START_DECODING)
        range_coder.begin(self._state, self._payload)

    def decode(self, table: np.ndarray) -> np.ndarray:
        """Return the next symbols (n,), int64, one for each row of the frequencies (n, S) that `encode` received.

        Raises
        ------
        TypeError, ValueError
            The table is not such an array.
        """
        check_table("decode", table)
        return self._decode(table)

    def decode_scores(self, scores: np.ndarray) -> np.ndarray:
        """Return the next symbols (n,), int64, one for each row of the scores (n, C) that `encode_scores` received.

        Raises
        ------
        TypeError, ValueError
            `scores` is not such an array.
        """
        return self._decode(_table("decode_scores", scores, self._classes))

    def _decode(self, table: np.ndarray) -> np.ndarray:
        symbols = np.empty(len(table), np.int64)
        self._coder.decode(self._state, self._payload, symbols, table.reshape(-1))
        return symbols


def check_table(function: str, table: Any) -> None:
    """Raise unless every row is a valid table of frequencies."""
    if type(table) is not np.ndarray:
        raise wrong_type(function, "table", "a numpy.ndarray", table)
    if table.dtype != np.int32:
        raise TypeError(message(function, "table", "be int32", table.dtype))
    if table.ndim != 2 or not 1 <= table.shape[1] <= MAX_SYMBOLS or not table.flags.carray:
        expected = f"be a C-contiguous, writeable array of shape (n, 1..{MAX_SYMBOLS})"
        raise ValueError(message(function, "table", expected, table.shape))
    total = _kernels().TOTAL
    sums = table.sum(axis=1, dtype=np.int64)
    if table.size and (table.min() < 0 or sums.min() < 1 or sums.max() > total):
        expected = f"have rows of nonnegative numbers that add up to 1..{total}"
        raise ValueError(message(function, "table", expected, f"sums of {sums.min()} to {sums.max()}"))


def _kernels() -> Any:
    return imported("rnnkit_kernels.range_coder")
