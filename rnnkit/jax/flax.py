"""Flax's recurrent layers on the engine: `RNN` in place of `flax.nnx.RNN`."""

from __future__ import annotations

from math import prod
from typing import Any

import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.recurrent import flip_sequences

from rnnkit.descriptor.descriptor import HOST_DTYPES, RNNDescriptor
from rnnkit.descriptor.weights import weight_layout
from rnnkit.errors import message, wrong_type
from rnnkit.interop.jax import CELLS
from rnnkit.jax.network import rnn

__all__ = ["RNN"]

_MODES = {"LSTMCell": "lstm", "OptimizedLSTMCell": "lstm", "GRUCell": "gru", "SimpleCell": "rnn"}


class RNN(nnx.RNN):
    """`flax.nnx.RNN` on the engine: its arguments, and the parameters of its cell.

    Parameters
    ----------
    cell : nnx.LSTMCell, nnx.OptimizedLSTMCell, nnx.GRUCell or nnx.SimpleCell
        The cell, whose parameters each call reads: with Flax's activations, a SimpleCell also with relu.
    time_major, return_carry, reverse, keep_order, unroll, state_axes, broadcast_rngs, rngs
        As there; `unroll`, `state_axes` and `broadcast_rngs` are about a loop that is not there.

    Raises
    ------
    TypeError, ValueError
        The cell is of another class, or has an activation or a dtype that the engine lacks.

    Examples
    --------
    >>> from flax import nnx
    >>> layer = RNN(nnx.LSTMCell(3, 5, rngs=nnx.Rngs(0)), return_carry=True)
    >>> (c, h), y = layer(jnp.ones((4, 7, 3)), seq_lengths=jnp.array([7, 2, 0, 5]))
    >>> y.shape, h.shape
    ((4, 7, 5), (4, 5))
    """

    def __init__(self, cell: Any, **options: Any) -> None:
        _descriptor(cell)  # raises
        super().__init__(cell, **options)

    def __call__(
        self,
        inputs: Any,
        *,
        initial_carry: Any = None,
        seq_lengths: Any = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: Any = None,
    ) -> Any:
        """Run the cell over sequences.

        Parameters
        ----------
        inputs : array (*batch, T, I), or (T, *batch, I) with time_major
            The sequences.
        initial_carry : array (*batch, H), for an LSTM a tuple (c, h), optional
            The states before the first step; None is the cell's own, as a rule zeros.
        seq_lengths : integer array (*batch,), optional
            Length of each sequence, 0..T.
        return_carry, time_major, reverse, keep_order, rngs
            In place of those of the constructor.

        Returns
        -------
        outputs : array like inputs, with H
            0 beyond a sequence's length, where Flax goes on; or with return_carry (carry, outputs), the carry after
            each sequence's last step.
        """
        is_first = self.time_major if time_major is None else time_major
        returns = self.return_carry if return_carry is None else return_carry
        turns = self.reverse if reverse is None else reverse
        keeps = self.keep_order if keep_order is None else keep_order
        batch = inputs.shape[1:-1] if is_first else inputs.shape[:-2]

        def turned(array: Any) -> Any:
            return flip_sequences(array, seq_lengths, num_batch_dims=len(batch), time_major=is_first)

        inputs = turned(inputs) if turns else inputs
        x = inputs if is_first else jnp.moveaxis(inputs, -2, 0)
        if initial_carry is None and getattr(self.cell, "carry_init", None) is not None:
            initial_carry = self.cell.initialize_carry((*batch, inputs.shape[-1]), self.rngs if rngs is None else rngs)
        size = prod(batch)
        states = [None if one is None else one.reshape(1, size, -1) for one in _states(initial_carry)]
        lengths = None if seq_lengths is None else jnp.reshape(seq_lengths, size)
        desc, w = _descriptor(self.cell), _weights(self.cell)
        y, *after = rnn(desc, w, x.reshape(x.shape[0], size, x.shape[-1]), *states, lengths=lengths)
        y = y.reshape(x.shape[0], *batch, y.shape[-1])
        y = y if is_first else jnp.moveaxis(y, 0, -2)
        y = turned(y) if turns and keeps else y
        if not returns:
            return y
        h, *others = (one.reshape(*batch, -1) for one in after if one is not None)
        return ((*others, h) if others else h), y


def _states(carry: Any) -> tuple[Any, ...]:
    """Return h and c of a carry."""
    return tuple(carry)[::-1] if isinstance(carry, (tuple, list)) else (carry,)


def _descriptor(cell: Any) -> RNNDescriptor:
    """Return the descriptor of a layer of this cell."""
    kind = type(cell).__name__
    if kind not in _MODES or not isinstance(cell, getattr(nnx, kind)):
        raise wrong_type("RNN", "cell", " or ".join(f"an nnx.{one}" for one in _MODES), cell)
    mode = _MODES[kind]
    activations = {"activation_fn": (nnx.tanh, jnp.tanh), "gate_fn": (nnx.sigmoid,)}
    if mode == "rnn":
        activations = {"activation_fn": (nnx.tanh, jnp.tanh, nnx.relu)}
    for name, known in activations.items():
        if getattr(cell, name) not in known:
            raise ValueError(message("RNN", f"cell.{name}", "be Flax's own", getattr(cell, name)))
    if getattr(cell, "residual", False):
        raise ValueError(message("RNN", "cell.residual", "be False", True))
    blocks, dtype = CELLS[f"nnx.{kind}"].blocks, str(jnp.dtype(cell.param_dtype))
    computes = dtype if cell.dtype is None else str(jnp.dtype(cell.dtype))
    if dtype not in HOST_DTYPES or computes != dtype:
        expected = f"be {' or '.join(HOST_DTYPES)}, in which it computes, too"
        raise ValueError(message("RNN", "cell.param_dtype", expected, f"{dtype}, computing in {computes}"))
    bias = "recurrent" if "bias_hh" in blocks else "input"
    if mode == "rnn":
        mode = "rnn_relu" if cell.activation_fn is nnx.relu else "rnn_tanh"
    return RNNDescriptor(mode, cell.in_features, cell.hidden_features, bias=bias, dtype=dtype)


def _weights(cell: Any) -> Any:
    """Return the flat weights of a cell."""
    blocks = CELLS[f"nnx.{type(cell).__name__}"].blocks
    rows = []
    for block in weight_layout(_descriptor(cell)):
        for path in blocks[block.name.removesuffix("_l0")]:
            layer, leaf = path.split("/")
            value = getattr(getattr(cell, layer), leaf)[...]
            rows.append((value.T if leaf == "kernel" else value).reshape(-1))
    return jnp.concatenate(rows)
