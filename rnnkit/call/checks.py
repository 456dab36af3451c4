"""Checks of the arguments of a call: each raises on a bad argument.

Most return None. `lengths`, `marks`, `integers` and `first_row` return the converted value, `initial` a bool. The
first parameter is the name of the calling function, for the message. A valid argument costs a few attribute
comparisons; only an invalid one takes the slow path that finds out why.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy import ndarray

from rnnkit.common.arrays import device_of, library_of, not_an_array, overlap
from rnnkit.descriptor.descriptor import RNNDescriptor, only_with
from rnnkit.descriptor.modes import text_of_mode
from rnnkit.descriptor.states import arrays_of
from rnnkit.descriptor.weights import check_weights, size_of
from rnnkit.errors import message, wrong_dtype, wrong_shape, wrong_type

MAX_SEED = 2**64 - 1
MAX_BATCH_ROWS = 1 << 32  # of a batch whose rows each have their own random stream
SEQUENCE_DIMS = ("seq_len", "batch_size", "input_size")
STEP_DIMS = ("batch_size", "input_size")
CELL_DIMS = ("num_layers*num_directions", "batch_size", "hidden_size")
PROJECTED_DIMS = ("num_layers*num_directions", "batch_size", "proj_size")


def array(
    function: str,
    name: str,
    value: Any,
    shape: tuple[int | None, ...],
    dims: tuple[str, ...],
    desc: RNNDescriptor,
    like: Any,
) -> None:
    """Check an array's dtype and shape, and that it is on the device of `like`.

    None in `shape` means any size; `dims` are the names for the message. The fast path compares types and dtypes by
    identity: NumPy has one object for each built-in dtype.
    """
    if type(value) is ndarray is type(like) and value.dtype is desc.np_dtype and value.shape == shape:
        return
    same_place(function, name, value, like)
    if value.dtype != desc.np_dtype:
        raise wrong_dtype(function, name, desc.dtype, value.dtype)
    if value.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, value.shape, strict=True)):
        raise wrong_shape(function, name, shape, dims, value.shape)


def same_place(function: str, name: str, value: Any, like: Any) -> None:
    """Check that a value is an array of the same library, and on the same device, as `like`."""
    library = library_of(like)
    if library_of(value) is None:
        raise not_an_array(function, name, f"a {library.__name__}.ndarray", value)
    if library_of(value) is not library:
        cure = f"move it with cupy.{'asnumpy' if library is np else 'asarray'}"
        raise wrong_type(function, name, f"a {library.__name__}.ndarray like the other arguments", value, cure)
    if library is not np and value.device != like.device:
        raise ValueError(message(function, name, f"be on {device_of(like)} like the other arguments", device_of(value)))


def weights(function: str, w: Any, desc: RNNDescriptor, like: Any, name: str = "w") -> None:
    usual = type(w) is ndarray is type(like) and w.dtype is desc.np_dtype
    if usual and w.shape == (size_of(desc),) and w.flags.c_contiguous:
        return
    same_place(function, name, w, like)
    check_weights(function, name, w, desc)


def weight_gradient(function: str, dw: Any, desc: RNNDescriptor, like: Any) -> None:
    """Check the array that the weight gradient is added to; None means a new one."""
    if dw is None:
        return
    weights(function, dw, desc, like, "dw")
    if isinstance(dw, ndarray) and not dw.flags.writeable:
        raise ValueError(message(function, "dw", "be writeable", "a read-only array"))


def separate(function: str, dw: Any, **inputs: Any) -> None:
    """Check that dw shares no memory with the inputs; None means not given."""
    for name, given in inputs.items() if dw is not None else ():
        for array in arrays_of(given):
            if overlap(dw, array):
                raise ValueError(message(function, "dw", "have memory of its own", f"the memory of {name}"))


def inputs(function: str, x: Any, dims: tuple[str, ...], desc: RNNDescriptor, like: Any = None) -> None:
    """Check x of any seq_len and batch_size, on the device of `like` if given; `dims` is SEQUENCE_DIMS or STEP_DIMS."""
    usual = type(x) is ndarray and (like is None or type(like) is ndarray) and x.dtype is desc.np_dtype
    if usual and x.ndim == len(dims) and x.shape[-1] == desc.input_size:
        return
    if like is None and library_of(x) is None:
        raise not_an_array(function, "x", "a numpy.ndarray or a cupy.ndarray", x)
    array(function, "x", x, (None,) * (len(dims) - 1) + (desc.input_size,), dims, desc, x if like is None else like)


def hidden(function: str, name: str, value: Any, batch_size: int, desc: RNNDescriptor, like: Any) -> None:
    """Check hx or dhy; None means zeros."""
    if value is not None:
        dims = PROJECTED_DIMS if desc.projected else CELL_DIMS
        array(function, name, value, (desc.num_pseudo_layers, batch_size, desc.output_size), dims, desc, like)


def cell_state(function: str, name: str, value: Any, batch_size: int, desc: RNNDescriptor, like: Any) -> None:
    """Check cx or dcy. None means zeros; a mode without a cell state takes None only. Several states are a tuple."""
    if value is None:
        return
    if not desc.has_cell_state:
        expected = f"be None with {text_of_mode(desc.mode)}"
        cure = only_with("cell_clip") if isinstance(desc.mode, str) else ""
        raise ValueError(message(function, name, expected, _describe(value), cure))
    if len(desc.states) > 1:
        expected = f"be a tuple of {len(desc.states)} arrays, {', '.join(desc.states)}"
        if not isinstance(value, tuple):
            raise TypeError(message(function, name, expected, _describe(value)))
        if len(value) != len(desc.states):
            raise ValueError(message(function, name, expected, len(value)))
        shape = desc.num_pseudo_layers, batch_size, desc.hidden_size
        for number, state in enumerate(value):
            array(function, f"{name}[{number}]", state, shape, CELL_DIMS, desc, like)
        return
    array(function, name, value, (desc.num_pseudo_layers, batch_size, desc.hidden_size), CELL_DIMS, desc, like)


def step(function: str, x: Any, hx: Any, cx: Any, desc: RNNDescriptor, like: Any) -> None:
    """Check the arrays of one time step. The fast path comes first: a small step takes only 2.5 us in total."""
    dtype = desc.np_dtype
    if type(x) is type(hx) is type(like) is ndarray and x.dtype is hx.dtype is dtype and x.ndim == 2:
        rows, layers = len(x), desc.num_pseudo_layers
        if x.shape[1] == desc.input_size and hx.shape == (layers, rows, desc.output_size):
            if cx is None:
                return
            cells = type(cx) is ndarray and cx.dtype is dtype and cx.shape == (layers, rows, desc.hidden_size)
            if cells and len(desc.states) == 1:
                return
    inputs(function, x, STEP_DIMS, desc, like)
    hidden(function, "hx", hx, x.shape[0], desc, like)
    cell_state(function, "cx", cx, x.shape[0], desc, like)


def dy(function: str, value: Any, seq_len: int, batch_size: int, desc: RNNDescriptor, like: Any) -> None:
    """Check the gradient of y; None means zeros."""
    if value is not None:
        shape = (seq_len, batch_size, desc.num_directions * desc.output_size)
        size = "proj_size" if desc.projected else "hidden_size"
        array(function, "dy", value, shape, ("seq_len", "batch_size", f"num_directions*{size}"), desc, like)


def lengths(function: str, value: Any, seq_len: int, batch_size: int) -> ndarray | None:
    """Check the lengths of a batch: an integer array or sequence on the host, each 0..seq_len; None means all
    seq_len.

    Returns a copy (N,) int64, so that the caller cannot change it after the check.
    """
    if value is None:
        return None
    found = integers(function, "lengths", value)
    if found.shape != (batch_size,):
        raise wrong_shape(function, "lengths", (batch_size,), ("batch_size",), found.shape)
    within(function, "lengths", found, seq_len, f"seq_len={seq_len}")
    return found.astype(np.int64, copy=False)


def marks(function: str, name: str, value: Any, *shape: int) -> ndarray | None:
    """Check `resets` or `mask`: an array or sequence on the host, (T, N), or (N,) for one step, of bool, or of integers
    or floats that are 0 or 1; None means not given. Returns bool."""
    if value is None:
        return None
    found = integers(function, name, value, "biuf", "hold bool, integers or floats")
    if found.shape != shape:
        raise wrong_shape(function, name, shape, ("seq_len", "batch_size")[-len(shape) :], found.shape)
    is_one = found != 0
    if found.dtype.kind != "b" and (wrong := found[is_one] != 1).any():
        raise ValueError(message(function, name, "contain only 0 and 1", found[is_one][wrong][0]))
    return is_one


def no_reset_is_skipped(function: str, resets: ndarray | None, listed: ndarray, lengths: ndarray | None) -> None:
    """Check that no reset, (T, N) or (N,) of one step, stands at a step that a mask skips, within the lengths."""
    if resets is None or not (skipped := resets & ~listed).any():
        return
    if lengths is not None:
        skipped &= np.arange(len(skipped))[:, None] < lengths
    for place in np.argwhere(skipped)[:1].tolist():
        expected = "be 0 where mask is 0: mark the next step that is not skipped"
        raise ValueError(message(function, f"resets{place}", expected, 1))


def initial(function: str, value: Any, resets: Any) -> bool:
    """Check what states are reset to; returns whether that is hx."""
    if not isinstance(value, str) or value not in ("zeros", "hx"):
        raise ValueError(message(function, "initial", 'be "zeros" or "hx"', repr(value)))
    if value == "hx" and resets is None:
        raise ValueError(message(function, "initial", 'be "zeros" without resets', repr(value)))
    return value == "hx"


def integers(function: str, name: str, value: Any, kinds: str = "iu", expected: str = "hold integers") -> ndarray:
    """Check an array or a sequence on the host. Its dtype is one of `kinds`, unless it is empty. Returns a copy."""
    if library_of(value) is not np and (isinstance(value, (ndarray, str, bytes)) or not isinstance(value, Sequence)):
        raise not_an_array(function, name, "None or an integer array on the host", value)
    try:
        found = np.array(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged rows, or not numbers
        raise TypeError(message(function, name, expected, f"something that is not an array ({error})")) from None
    if found.dtype.kind not in kinds and found.size:
        raise TypeError(message(function, name, expected, f"dtype {found.dtype}"))
    return found


def within(function: str, name: str, numbers: ndarray, last: int, text: str) -> None:
    """Check that integers are in 0..last; `text` is `last` as the message writes it."""
    # The methods argmin and argmax take a quarter of the time of min and max.
    if numbers.size and not 0 <= numbers[numbers.argmin()] <= numbers[numbers.argmax()] <= last:
        first = int(np.flatnonzero((numbers < 0) | (numbers > last))[0])
        raise ValueError(message(function, f"{name}[{first}]", f"be in 0..{text}", numbers[first]))


def seed(function: str, value: Any) -> int | None:
    """Check the random seed, an unsigned int of 64 bits; None lets the engine draw one. Returns an int, or None."""
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        raise wrong_type(function, "seed", "None or an int", value)
    if not 0 <= value <= MAX_SEED:
        raise ValueError(message(function, "seed", f"be in 0..{MAX_SEED}", value))
    return int(value)


def first_row(function: str, value: Any, batch_size: int) -> int:
    """Check first_row: the index, in the whole batch, of the first of `batch_size` rows. Returns an int."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        raise wrong_type(function, "first_row", "an int", value)
    if not 0 <= value <= MAX_BATCH_ROWS - batch_size:
        expected = f"be in 0..2**32-{batch_size}, so that the index of each row fits into 32 bits"
        raise ValueError(message(function, "first_row", expected, value))
    return int(value)


def _describe(value: Any) -> str:
    return f"an array of shape {value.shape}" if hasattr(value, "shape") else type(value).__name__
