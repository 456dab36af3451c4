"""Frequencies of symbols from a network's scores, and a range coder."""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnkit.errors import message, wrong_type

MAX_SYMBOLS = 1 << 16


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
    function = "frequencies"
    if type(scores) is not np.ndarray:
        raise wrong_type(function, "scores", "a numpy.ndarray", scores)
    if scores.dtype not in ("float32", "float64"):
        raise TypeError(message(function, "scores", "be float32 or float64", scores.dtype))
    if scores.ndim != 2 or not 1 <= scores.shape[1] <= MAX_SYMBOLS:
        raise ValueError(message(function, "scores", f"have shape (n, 1..{MAX_SYMBOLS})", scores.shape))
    count, size = scores.shape
    table = np.empty((count, size), np.int32)
    write_frequencies(table, np.array(scores, order="C"), np.arange(size), 1)
    return table


def write_frequencies(table: np.ndarray, scores: np.ndarray, class_of: np.ndarray, others: int) -> None:
    """Write the frequencies of symbols (n, S) from the scores of their classes (n, C), both C-contiguous.

    Parameters
    ----------
    class_of : ndarray (S,), int64
        The class of each symbol.
    others : int
        Number of symbols that share the last class; they are equally likely.
    """
    from rnnkit_kernels import range_coder  # on the first call: it imports Numba
    from rnnkit_kernels.losses import ROW_LANES

    weights, lanes = np.empty(scores.shape[1], np.int32), np.empty(ROW_LANES, scores.dtype)
    range_coder.frequencies(table.reshape(-1), weights, lanes, scores.reshape(-1), class_of, others)


class RangeEncoder:
    """Encodes symbols into bytes, given their frequencies.

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

    def __init__(self) -> None:
        from rnnkit_kernels import range_coder  # which imports Numba

        self._coder = range_coder
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
        if self._finished:
            raise ValueError(f"{function}: encoder is already finished; create a new one")
        found = np.asarray(symbols)
        if found.dtype.kind not in "iu" and found.size:
            raise TypeError(message(function, "symbols", "hold integers", f"dtype {found.dtype}"))
        check_table(function, table)
        count, size = table.shape
        if found.shape != (count,):
            raise ValueError(message(function, "symbols", f"have shape ({count},) like the table", found.shape))
        outside = (found < 0) | (found >= size)
        if outside.any():
            raise ValueError(message(function, "symbols", f"be in 0..{size - 1}", int(found[outside][0])))
        found = found.astype(np.int64)
        if not table[np.arange(count), found].all():
            raise ValueError(message(function, "table", "give each symbol a frequency above 0", "0"))
        self.encode_checked(found, table)

    def encode_checked(self, symbols: np.ndarray, table: np.ndarray) -> None:
        """Encode without checks: int64 symbols and a C-contiguous table."""
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
    """Decodes the bytes of a `RangeEncoder`, given the same frequencies.

    Parameters
    ----------
    payload : bytes
        From `RangeEncoder.finish`. Corrupt bytes decode to wrong symbols without an error, so store a checksum.

    Raises
    ------
    TypeError
        `payload` is not bytes.
    """

    def __init__(self, payload: bytes) -> None:
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            raise wrong_type("RangeDecoder", "payload", "bytes", payload)
        from rnnkit_kernels import range_coder  # which imports Numba

        self._coder = range_coder
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
        return self.decode_checked(table)

    def decode_checked(self, table: np.ndarray) -> np.ndarray:
        """Decode without checks, given a C-contiguous table."""
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
    from rnnkit_kernels.range_coder import TOTAL  # on the first call: it imports Numba

    sums = table.sum(axis=1, dtype=np.int64)
    if table.size and (table.min() < 0 or sums.min() < 1 or sums.max() > TOTAL):
        expected = f"have rows of nonnegative numbers that add up to 1..{TOTAL}"
        raise ValueError(message(function, "table", expected, f"sums of {sums.min()} to {sums.max()}"))
