"""Frequencies of symbols, made from scores, and the range coder that uses them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnkit.errors import message, wrong_type

MOST_SYMBOLS = 1 << 16


def frequencies(scores: np.ndarray) -> np.ndarray:
    """Return integer frequencies of symbols, by which they are encoded and decoded, from a network's scores.

    Parameters
    ----------
    scores : ndarray (n, S), float32 or float64
        Before softmax, of 1 to 65536 symbols. Where a row has a NaN or infinity its symbols may all be equally likely.

    Returns
    -------
    ndarray (n, S), int32
        At least 1 each, and 2**18 or a little less in a row: softmax(scores)*2**18, nearly. The same scores give the
        same frequencies on every CPU.

    Raises
    ------
    TypeError, ValueError
        `scores` is no such array.

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
    if scores.ndim != 2 or not 1 <= scores.shape[1] <= MOST_SYMBOLS:
        raise ValueError(message(function, "scores", f"have shape (n, 1..{MOST_SYMBOLS})", scores.shape))
    count, size = scores.shape
    table = np.empty((count, size), np.int32)
    write_frequencies(table, np.array(scores, order="C"), np.arange(size), 1)
    return table


def write_frequencies(table: np.ndarray, scores: np.ndarray, class_of: np.ndarray, others: int) -> None:
    """Write the frequencies of symbols (n, S) by the scores of their classes (n, C), both C-contiguous.

    Parameters
    ----------
    class_of : ndarray (S,), int64
        The class of each symbol.
    others : int
        How many symbols have the last class: they are equally likely.
    """
    from rnnkit.kernels import range_coder  # on the first call: it brings Numba
    from rnnkit.kernels.losses import ROW_LANES

    weights, lanes = np.empty(scores.shape[1], np.int32), np.empty(ROW_LANES, scores.dtype)
    range_coder.frequencies(table.reshape(-1), weights, lanes, scores.reshape(-1), class_of, others)


class RangeEncoder:
    """Encodes symbols by their frequencies into bytes.

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
        from rnnkit.kernels import range_coder  # which brings Numba

        self._coder = range_coder
        self._state = np.array(range_coder.START_ENCODING)
        self._out = np.empty(1 << 12, np.uint8)
        self._bound, self._finished = 0, False  # a bound of the bytes that are in `out` and held back

    def encode(self, symbols: Any, table: np.ndarray) -> None:
        """Encode symbols, the first one first.

        Parameters
        ----------
        symbols : array_like (n,) of int
            Each 0..S-1.
        table : ndarray (n, S), int32
            A row of frequencies for each: at least 0, of the symbol itself above 0, and 2**18 in all at most.

        Raises
        ------
        TypeError, ValueError
            An argument is wrong, or `finish` was called before. Nothing is encoded then.
        """
        function = "encode"
        if self._finished:
            raise ValueError(message(function, "encoder", "not be finished", "one that is", "begin a new one"))
        found = np.asarray(symbols)
        if found.dtype.kind not in "iu" and found.size:
            raise TypeError(message(function, "symbols", "hold integers", f"dtype {found.dtype}"))
        check_table(function, table)
        count, size = table.shape
        if found.shape != (count,):
            raise ValueError(message(function, "symbols", f"have shape ({count},) as the table has", found.shape))
        outside = (found < 0) | (found >= size)
        if outside.any():
            raise ValueError(message(function, "symbols", f"be in 0..{size - 1}", int(found[outside][0])))
        found = found.astype(np.int64)
        if not table[np.arange(count), found].all():
            raise ValueError(message(function, "table", "give each symbol a frequency above 0", "0"))
        self.encode_checked(found, table)

    def encode_checked(self, symbols: np.ndarray, table: np.ndarray) -> None:
        """Encode without checks: int64 symbols and a C-contiguous table."""
        self._bound += self._coder.MOST_BYTES * symbols.size
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
    """Decodes what a `RangeEncoder` has encoded, by the same frequencies.

    Parameters
    ----------
    payload : bytes
        As `RangeEncoder.finish` gave it. Others give other symbols: what is stored needs a checksum.

    Raises
    ------
    TypeError
        It is no bytes.
    """

    def __init__(self, payload: bytes) -> None:
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            raise wrong_type("RangeDecoder", "payload", "bytes", payload)
        from rnnkit.kernels import range_coder  # which brings Numba

        self._coder = range_coder
        self._payload = np.frombuffer(bytearray(payload), np.uint8)
        self._state = np.array(range_coder.START_DECODING)
        range_coder.begin(self._state, self._payload)

    def decode(self, table: np.ndarray) -> np.ndarray:
        """Return the next symbols (n,), int64, one for each row of frequencies (n, S), as `encode` was given them.

        Raises
        ------
        TypeError, ValueError
            The table is no such array.
        """
        check_table("decode", table)
        return self.decode_checked(table)

    def decode_checked(self, table: np.ndarray) -> np.ndarray:
        """Decode without checks, by a C-contiguous table."""
        symbols = np.empty(len(table), np.int64)
        self._coder.decode(self._state, self._payload, symbols, table.reshape(-1))
        return symbols


def check_table(function: str, table: Any) -> None:
    """Raise unless every row of frequencies can be encoded by."""
    if type(table) is not np.ndarray:
        raise wrong_type(function, "table", "a numpy.ndarray", table)
    if table.dtype != np.int32:
        raise TypeError(message(function, "table", "be int32", table.dtype))
    if table.ndim != 2 or not 1 <= table.shape[1] <= MOST_SYMBOLS or not table.flags.carray:
        expected = f"be a C-contiguous, writeable array of shape (n, 1..{MOST_SYMBOLS})"
        raise ValueError(message(function, "table", expected, table.shape))
    from rnnkit.kernels.range_coder import TOTAL  # on the first call: it brings Numba

    sums = table.sum(axis=1, dtype=np.int64)
    if table.size and (table.min() < 0 or sums.min() < 1 or sums.max() > TOTAL):
        expected = f"have rows of numbers of at least 0 that add up to 1..{TOTAL}"
        raise ValueError(message(function, "table", expected, f"sums of {sums.min()} to {sums.max()}"))
