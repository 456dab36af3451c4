"""The functions that programs call: any network, and `lstm` with the signature of JAX's own for GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnkit.call import checks
from rnnkit.descriptor.descriptor import HOST_DTYPES, RNNDescriptor
from rnnkit.descriptor.weights import check_names, num_weights
from rnnkit.errors import message, wrong_dtype, wrong_shape, wrong_type
from rnnkit.jax import primitives
from rnnkit.jax.problem import OPERANDS, Problem, Static
from rnnkit.jax.xla import is_from_outside, is_known_on_cpu
from rnnkit.network.base import BaseNetwork
from rnnkit.network.engine import Infer


def rnn(
    network: Any,
    w: Any,
    x: Any,
    hx: Any = None,
    cx: Any = None,
    *,
    lengths: Any = None,
    mask: Any = None,
    resets: Any = None,
    initial: str | None = None,
    inputs: Any = None,
    seed: Any = None,
    first_row: int = 0,
) -> Infer[Any]:
    """Run a network of any mode or cell: a JAX function, on the engine on a CPU.

    It can be compiled (`jit`), differentiated (`grad`, also again and in forward mode), mapped (`vmap`) and used in
    loops (`scan`). On other devices, in forward mode and in second derivatives it runs on the equations of the cell.

    Parameters
    ----------
    network : RNNDescriptor or network
        The network; static. Of a network only the descriptor counts.
    w : array (num_weights,)
        The flat weights.
    x : array (T, N, I)
        Input, time first.
    hx, cx : array (L*D, N, P) and (L*D, N, H), optional
        Initial states, as for :func:`rnnkit.forward`; `cx` is a tuple for a cell with several states.
    lengths : integer array (N,), optional
        Length of each sequence, 0..T.
    mask, resets : array (T, N) of bool, integers or floats that are 0 or 1, optional
        Steps that are not skipped, and steps before which the state is reset.
    initial : {"zeros", "hx"}, optional
        The state after a reset; None is "zeros".
    inputs : mapping of str to array, optional
        Side inputs of a cell that declares some: (T, N, H) or (T, N, 1), or (N, H) for all steps.
    seed : int, integer array () or key of :func:`jax.random.key`, optional
        The seed of dropout and of a cell's noises. None: neither is applied, as in inference.
    first_row : int
        Index of the first sequence of x in a larger batch, for the random numbers.

    Returns
    -------
    Infer
        y (T, N, D*P), hy (L*D, N, P) and cy, as of :func:`rnnkit.infer`.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type, dtype or shape. What only the values tell, as a length above T, is an error of
        XLA, with the same message, when the program runs.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import rnnkit
    >>> net = rnnkit.GRU(3, 5, seed=0)
    >>> x, w = jnp.ones((7, 4, 3)), jnp.asarray(net.weights)
    >>> loss = jax.jit(lambda w: rnn(net, w, x, lengths=jnp.array([7, 2, 0, 5])).y.sum())
    >>> jax.grad(loss)(w).shape == w.shape
    True
    """
    desc = network.desc if isinstance(network, BaseNetwork) else network
    if not isinstance(desc, RNNDescriptor):
        raise wrong_type("rnn", "network", "an RNNDescriptor or a network", network)
    if desc.dtype not in HOST_DTYPES:
        raise ValueError(message("rnn", "network.dtype", f"be {' or '.join(HOST_DTYPES)}", desc.dtype))
    given_w = w
    w, x = (_array("rnn", name, one, desc) for name, one in (("w", w), ("x", x)))
    _check_shape("w", w, (num_weights(desc),), ("num_weights",))
    if x.ndim != 3 or x.shape[2] != desc.input_size:
        _check_shape("x", x, (None, None, desc.input_size), ("seq_len", "batch_size", "input_size"))
    steps, rows, _ = x.shape
    if not isinstance(steps, int) or not isinstance(rows, int):
        expected = "have sizes that are known when the program is traced"
        raise TypeError(message("rnn", "x", expected, f"({steps}, {rows}, {desc.input_size})"))
    given = {"w": w, "x": _with_inputs(desc, x, inputs)}
    layers = desc.num_pseudo_layers
    if hx is not None:
        given["hx"] = _array("rnn", "hx", hx, desc)
        _check_shape(
            "hx", given["hx"], (layers, rows, desc.output_size), ("num_layers*num_directions", "batch_size", "P")
        )
    if cx is not None:
        given["cx"] = _cells(desc, cx, rows)
    for name, value in (("mask", mask), ("resets", resets)):
        if value is not None:
            given[name] = _marks(name, value, steps, rows)
    if lengths is not None:
        given["lengths"] = _lengths(lengths, steps, rows)
    if seed is not None:
        words = _seed(seed)
        if desc.draws:
            given["seed"] = words
    initial = "zeros" if initial is None else initial
    checks.initial("rnn", initial, resets)
    first_row = checks.first_row("rnn", first_row, rows)
    names = tuple(name for name in OPERANDS if name in given)
    static = Static(desc, names, initial, first_row, _ENGINE)
    packing = Problem("infer", static, steps, rows).packing if _ENGINE and is_from_outside(given_w, x) else None
    if packing is not None:
        # Of weights that are known it runs now; else XLA moves it out of a loop.
        with jax.ensure_compile_time_eval() if is_known_on_cpu(given_w) else nullcontext():
            [given["packed"]] = primitives.pack.bind(jnp.asarray(given_w), static=packing)
        names, static = (*names, "packed"), static._replace(names=(*names, "packed"), vector_bytes=packing.vector_bytes)
    y, hy, cy = primitives.infer.bind(*map(given.get, names), static=static)
    if not desc.has_cell_state:
        return Infer(y, hy, None)
    return Infer(y, hy, tuple(jnp.split(cy, len(desc.states), -1)) if len(desc.states) > 1 else cy)


_ENGINE = True  # whether calls on a CPU run on the engine; tests of the equations set it


def lstm(
    x: Any,
    h_0: Any,
    c_0: Any,
    weights: Any,
    seq_lengths: Any,
    input_size: int,
    hidden_size: int,
    num_layers: int,
    dropout: float,
    bidirectional: bool,
    precision: Any = None,
) -> tuple[Any, Any, Any]:
    """Run an LSTM, with the arguments and results of :func:`jax.experimental.rnn.lstm`, which runs on GPUs only.

    Parameters
    ----------
    x : array (N, T, I)
        Input, batch first.
    h_0, c_0 : array (L*D, N, H)
        Initial states.
    weights : array (num_weights,)
        The flat weights in cuDNN's order, which is rnnkit's.
    seq_lengths : integer array (N,)
        Length of each sequence, 0..T.
    input_size, hidden_size, num_layers : int
        I, H and L.
    dropout : float
        0: with dropout call :func:`rnn`, which takes a seed.
    bidirectional : bool
        Whether each layer also runs over the sequence in reverse (D = 2).
    precision : optional
        As there: how accurate products must be at least. The engine's are in the dtype of x, the highest precision.

    Returns
    -------
    y : array (N, T, D*H)
        The output, 0 beyond a sequence's length.
    h_n, c_n : array (L*D, N, H)
        The states after each sequence's last step.

    Raises
    ------
    TypeError, ValueError
        As for :func:`rnn`, or `dropout` is not 0.
    """
    if dropout:
        raise ValueError(message("lstm", "dropout", "be 0", dropout, "call rnnkit.jax.rnn, which takes a seed"))
    if precision is not None and not isinstance(precision, (str, tuple, jax.lax.Precision, jax.lax.DotAlgorithmPreset)):
        raise wrong_type("lstm", "precision", "None, or a precision of JAX", precision)
    sizes = input_size, hidden_size, num_layers, bool(bidirectional)
    desc = RNNDescriptor("lstm", *sizes, dtype=str(jnp.asarray(x).dtype))
    y, h, c = rnn(desc, weights, jnp.swapaxes(x, 0, 1), h_0, c_0, lengths=seq_lengths)
    return jnp.swapaxes(y, 0, 1), h, c


def _array(function: str, name: str, value: Any, desc: RNNDescriptor) -> Any:
    if not isinstance(value, (jax.Array, np.ndarray)):
        raise wrong_type(function, name, "an array of JAX or NumPy", value)
    if value.dtype != desc.np_dtype:
        raise wrong_dtype(function, name, desc.dtype, value.dtype)
    found = jnp.asarray(value)
    if found.dtype != desc.np_dtype:  # JAX narrows float64
        expected, cure = f"stay {desc.dtype} in JAX", 'call jax.config.update("jax_enable_x64", True) first'
        raise TypeError(message(function, name, expected, found.dtype, cure))
    return found


def _check_shape(name: str, array: Any, shape: tuple[int | None, ...], dims: tuple[str, ...]) -> None:
    fits = len(array.shape) == len(shape) and all(
        want in (None, got) for want, got in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise wrong_shape("rnn", name, shape, dims, tuple(array.shape))


def _cells(desc: RNNDescriptor, cx: Any, rows: int) -> Any:
    """Return the states other than h as one array."""
    several, states = len(desc.states) > 1, cx if isinstance(cx, (tuple, list)) else (cx,)
    if isinstance(cx, (tuple, list)) != several or len(states) != max(len(desc.states), 1) or not desc.states:
        expected = (
            "be None" if not desc.states else f"be a tuple of {len(desc.states)} arrays" if several else "be an array"
        )
        raise TypeError(message("rnn", "cx", expected, f"{type(cx).__name__} of {len(states)}"))
    found = []
    for number, state in enumerate(states):
        name = f"cx[{number}]" if several else "cx"
        found.append(_array("rnn", name, state, desc))
        shape = desc.num_pseudo_layers, rows, desc.hidden_size
        _check_shape(name, found[-1], shape, ("num_layers*num_directions", "batch_size", "hidden_size"))
    return found[0] if len(found) == 1 else jnp.concatenate(found, -1)


def _is_known(value: Any) -> bool:
    return not isinstance(value, jax.core.Tracer)


def _marks(name: str, value: Any, steps: int, rows: int) -> Any:
    if _is_known(value):
        return jnp.asarray(checks.marks("rnn", name, np.asarray(value), steps, rows))
    _check_shape(name, value, (steps, rows), ("seq_len", "batch_size"))
    return value != 0


def _lengths(value: Any, steps: int, rows: int) -> Any:
    if _is_known(value):
        return jnp.asarray(checks.lengths("rnn", np.asarray(value), steps, rows), jnp.int32)
    _check_shape("lengths", value, (rows,), ("batch_size",))
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(message("rnn", "lengths", "hold integers", f"dtype {value.dtype}"))
    return value.astype(jnp.int32)


def _seed(seed: Any) -> Any:
    """Return the two words of a seed."""
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return jax.random.bits(seed, (2,), jnp.uint32)
    if isinstance(seed, (jax.Array, np.ndarray)) and jnp.issubdtype(seed.dtype, jnp.integer):
        _check_shape("seed", seed, (), ())
        if seed.dtype.itemsize == 8:
            return jnp.stack([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]).astype(jnp.uint32)
        return jnp.stack([jnp.asarray(seed).astype(jnp.uint32), jnp.uint32(0)])
    seed = checks.seed("rnn", seed)
    return jnp.asarray(np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32))


def _with_inputs(desc: RNNDescriptor, x: Any, inputs: Any) -> Any:
    """Append the side inputs to the columns of x."""
    names = [one.name for one in desc.cell.declaration.inputs]
    if not names:
        if inputs is not None:
            raise TypeError(message("rnn", "inputs", "be None, as the cell has no side inputs", type(inputs).__name__))
        return x
    if not isinstance(inputs, Mapping):
        raise wrong_type("rnn", "inputs", f"a mapping of {', '.join(names)} to arrays", inputs)
    check_names("rnn", "inputs", f"the side inputs {', '.join(names)}", names, inputs)
    (steps, rows, _), size = x.shape, desc.hidden_size
    columns = [x]
    for name in names:
        one = _array("rnn", f'inputs["{name}"]', inputs[name], desc)
        shapes = [(steps, rows, size), (steps, rows, 1), (rows, size)]
        if one.shape not in shapes:
            expected = f"have shape {' or '.join(map(str, shapes))}"
            raise ValueError(message("rnn", f'inputs["{name}"]', expected, tuple(one.shape)))
        columns.append(jnp.broadcast_to(one, (steps, rows, size)))
    return jnp.concatenate(columns, -1)
