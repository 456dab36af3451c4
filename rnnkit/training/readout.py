"""A dense readout on a flat buffer, and the last outputs of a network for it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call import checks
from rnnkit.common.arrays import Array, library_of
from rnnkit.common.numbers import uniform
from rnnkit.errors import message
from rnnkit.training import arguments
from rnnkit_kernels.machine.imports import imported


class DenseBackward(NamedTuple):
    """Result of `dense_backward`: `dx` (..., I), the gradient by the input, and `dw`, the buffer to which the gradient
    by the weights was added."""

    dx: Array
    dw: Array


def init_dense(input_size: int, num_outputs: int, seed: int | None = None, dtype: str = "float32") -> np.ndarray:
    """Return initial weights of a dense readout, as of PyTorch's Linear: uniform within 1/sqrt(input_size).

    Parameters
    ----------
    input_size, num_outputs : int
        Sizes of x and y, at least 1.
    seed : int, optional
        The same seed gives bit-identical weights; by default it is drawn.
    dtype : {"float32", "float64"}

    Returns
    -------
    ndarray (num_outputs*input_size + num_outputs,)
        For :func:`dense`.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.

    Examples
    --------
    >>> init_dense(3, 2, seed=0).shape
    (8,)
    """
    function = "init_dense"
    arguments.integer(function, "input_size", input_size, 1)
    arguments.integer(function, "num_outputs", num_outputs, 1)
    checks.seed(function, seed)
    arguments.real_dtype(function, dtype)
    bound, rng = 1 / math.sqrt(input_size), np.random.default_rng(seed)
    return uniform(rng, -bound, bound, num_outputs * (input_size + 1)).astype(dtype)


def dense(w: Array, x: Array, num_outputs: int, *, out: Array | None = None) -> Array:
    """Return x times weights plus bias.

    Parameters
    ----------
    w : ndarray (num_outputs*I + num_outputs,), float32 or float64
        Flat buffer: weights (num_outputs, I) in row-major order, then bias (num_outputs,). C-contiguous.
    x : ndarray (..., I)
        With the dtype of w.
    num_outputs : int
        At least 1.
    out : ndarray (..., num_outputs), optional
        Array for y, C-contiguous.

    Returns
    -------
    ndarray (..., num_outputs)
        y: a new array, or `out`.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong. Nothing is written then.

    Examples
    --------
    >>> import numpy as np
    >>> w = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.5, 0.25])
    >>> dense(w, np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), num_outputs=2).tolist()
    [[1.5, 4.25], [3.5, 6.25]]
    """
    arguments.integer("dense", "num_outputs", num_outputs, 1)
    _check_input("dense", w, x, num_outputs)
    shape = (*x.shape[:-1], num_outputs)
    if out is not None:
        arguments.output("dense", "out", out, x, "x", shape, "to match x and num_outputs")
        arguments.separate("dense", "out", out, w=w, x=x)
    library = library_of(x)
    y = library.empty(shape, x.dtype) if out is None else out
    rows, x_rows = (y, x) if x.ndim == 2 else (y.reshape(-1, num_outputs), x.reshape(-1, x.shape[-1]))
    if library is np:
        _on_cpu().forward(w, x_rows, rows)
        return y
    weight, bias = views(w, num_outputs)
    library.matmul(x_rows, weight.T, out=rows)
    rows += bias
    return y


def dense_backward(w: Array, x: Array, dy: Array, *, dw: Array | None = None) -> DenseBackward:
    """Return the gradients of a dense readout.

    Parameters
    ----------
    w : ndarray (num_outputs*I + num_outputs,)
        The argument of :func:`dense`.
    x : ndarray (..., I)
        The argument of :func:`dense`.
    dy : ndarray (..., num_outputs)
        Gradient by y. Where it is 0, as the losses return it in padding, it adds nothing to dw.
    dw : ndarray of the shape of w, optional
        Buffer to which the gradient by the weights is added; by default a new one.

    Returns
    -------
    DenseBackward
        (dx, dw).

    Raises
    ------
    TypeError, ValueError
        An argument is wrong. Nothing is written then.

    Examples
    --------
    >>> import numpy as np
    >>> w, x = np.array([1.0, 2.0, 3.0, 0.5]), np.array([[1.0, 0.0, 2.0]])
    >>> dx, dw = dense_backward(w, x, np.array([[10.0]]))
    >>> dx.tolist(), dw.tolist()
    ([[10.0, 20.0, 30.0]], [10.0, 0.0, 20.0, 10.0])
    """
    function = "dense_backward"
    num_outputs = arguments.last_size(function, "dy", dy, "num_outputs")
    _check_input(function, w, x, num_outputs)
    arguments.check_like(function, "dy", dy, w, "w", (*x.shape[:-1], num_outputs), "to match x")
    if dw is None:
        dw = library_of(w).zeros(w.shape, w.dtype)
    else:
        arguments.output(function, "dw", dw, w, "w", w.shape, "to match w")
        arguments.separate(function, "dw", dw, w=w, x=x, dy=dy)
    rows, dy_rows = x.reshape(-1, x.shape[-1]), dy.reshape(-1, num_outputs)
    if library_of(x) is np:
        dx = np.empty(x.shape, x.dtype)
        _on_cpu().backward(w, rows, dy_rows, dx.reshape(rows.shape), dw)
        return DenseBackward(dx, dw)
    weight, _ = views(w, num_outputs)
    dweight, dbias = views(dw, num_outputs)
    dweight += dy_rows.T @ rows
    dbias += dy_rows.sum(axis=0)
    return DenseBackward((dy_rows @ weight).reshape(x.shape), dw)


def last_output(hy: Array, num_directions: int) -> Array:
    """Return the final hidden states of the top layer, with both directions concatenated: the input of a classifier.

    Parameters
    ----------
    hy : ndarray (L*D, N, P)
        As forward and infer return it.
    num_directions : int
        1, or 2 for a bidirectional network. The shape of hy does not tell: two layers of one direction have the same.

    Returns
    -------
    ndarray (N, D*P)
        A copy: the forward direction at the end of each sequence, then the reverse direction at its start. Both have
        read the whole sequence. In y[-1] the reverse direction has read only one step, and with lengths it is padding.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> hy = np.arange(8.0).reshape(4, 2, 1)  # two layers, two directions, two sequences
    >>> last_output(hy, 2).tolist()
    [[4.0, 6.0], [5.0, 7.0]]
    """
    function = "last_output"
    directions = _check_directions(function, num_directions)
    arguments.array(function, "hy", hy)
    if hy.ndim != 3 or hy.shape[0] < 1 or hy.shape[0] % directions:
        expected = f"have shape (num_layers*num_directions, batch_size, hidden_size) with num_directions={directions}"
        raise ValueError(message(function, "hy", expected, hy.shape))
    return hy[-directions:].swapaxes(0, 1).copy().reshape(hy.shape[1], directions * hy.shape[2])


def last_output_backward(doutput: Array, num_layers: int, num_directions: int) -> Array:
    """Return the gradient by hy, for backward, from the gradient by the result of :func:`last_output`.

    Parameters
    ----------
    doutput : ndarray (N, D*P)
    num_layers : int
        At least 1.
    num_directions : int
        1, or 2 for a bidirectional network.

    Returns
    -------
    ndarray (L*D, N, P)
        dhy: zeros for all layers except the top one.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> last_output_backward(np.array([[4.0, 6.0], [5.0, 7.0]]), 2, 2).tolist()
    [[[0.0], [0.0]], [[0.0], [0.0]], [[4.0], [5.0]], [[6.0], [7.0]]]
    """
    function = "last_output_backward"
    arguments.integer(function, "num_layers", num_layers, 1)
    directions = _check_directions(function, num_directions)
    arguments.array(function, "doutput", doutput)
    if doutput.ndim != 2 or doutput.shape[1] % directions:
        expected = f"have shape (batch_size, num_directions*hidden_size) with num_directions={directions}"
        raise ValueError(message(function, "doutput", expected, doutput.shape))
    batch_size, size = len(doutput), doutput.shape[1] // directions
    dhy = library_of(doutput).zeros((num_layers * directions, batch_size, size), doutput.dtype)
    dhy[-directions:] = doutput.reshape(batch_size, directions, size).swapaxes(0, 1)
    return dhy


def _on_cpu() -> Any:
    return imported("rnnkit.cpu.dense")


def _check_directions(function: str, value: Any) -> int:
    arguments.integer(function, "num_directions", value, 1)
    if value > 2:
        raise ValueError(message(function, "num_directions", "be 1 or 2", value))
    return int(value)


def _check_input(function: str, w: Any, x: Any, num_outputs: int) -> None:
    is_usual = type(w) is np.ndarray is type(x) and w.dtype is x.dtype and x.ndim == 2 and w.dtype in arguments.DTYPES
    if is_usual and w.shape == (num_outputs * (x.shape[1] + 1),) and x.shape[1] and w.flags.c_contiguous:
        return
    input_size = arguments.last_size(function, "x", x, "input_size")
    reason = f"for input_size={input_size} and num_outputs={num_outputs}"
    arguments.check_like(function, "w", w, x, "x", (num_outputs * (input_size + 1),), reason)
    arguments.contiguous(function, "w", w)


def views(w: Array, num_outputs: int) -> tuple[Array, Array]:
    """Return views of the weights (num_outputs, I) and the bias (num_outputs,)."""
    return w[:-num_outputs].reshape(num_outputs, -1), w[-num_outputs:]
