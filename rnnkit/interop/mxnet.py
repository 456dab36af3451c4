"""MXNet: the RNN operator; its parameter vector has cuDNN's order, as ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import num_weights, weight_layout, weight_views
from rnnkit.errors import message
from rnnkit.interop.networks import Network, blocks_of, check_shape, network, real_array


def from_mxnet(
    vector: Any,
    mode: str,
    input_size: int,
    state_size: int,
    num_layers: int = 1,
    bidirectional: bool = False,
    *,
    p: float = 0.0,
    projection_size: int | None = None,
    lstm_state_clip_min: float | None = None,
    lstm_state_clip_max: float | None = None,
) -> Network:
    """Return a network with the parameters of MXNet's RNN operator; mxnet is not imported.

    Parameters
    ----------
    vector : ndarray (num_weights,)
        The operator's argument `parameters`, an array or an NDArray: the matrices of all layers and directions, i2h,
        h2h and, with projection, h2r, then all biases, i2h and h2h.
    mode : {"rnn_relu", "rnn_tanh", "lstm", "gru"}
        As in the operator.
    input_size : int
        Number of features of its input.
    state_size, num_layers, bidirectional, p, projection_size, lstm_state_clip_min, lstm_state_clip_max
        As in the operator; give both bounds or neither.

    Returns
    -------
    RNN, GRU or LSTM
        A copy of the vector, in its dtype; `p` is the dropout.

    Raises
    ------
    TypeError
        The vector is not an array of float32 or float64, or an option has the wrong type.
    ValueError
        The size of the vector does not fit the options, or an option is out of range.

    Examples
    --------
    >>> from_mxnet(np.zeros(200, np.float32), "lstm", 3, 5)
    <LSTM: RNNDescriptor('lstm', 3, 5), 200 weights>
    """
    array = real_array("from_mxnet", "vector", vector)
    bounds = lstm_state_clip_min, lstm_state_clip_max
    given = [bound is not None for bound in bounds]
    if any(given) != all(given):
        expected = "be given together with lstm_state_clip_min"
        raise ValueError(message("from_mxnet", "lstm_state_clip_max", expected, f"{bounds[1]} with {bounds[0]}"))
    desc = RNNDescriptor(
        mode,
        input_size,
        state_size,
        num_layers,
        bidirectional,
        proj_size=projection_size,
        dropout=p,
        cell_clip=bounds if all(given) else None,
        dtype=array.dtype.name,
    )
    check_shape("from_mxnet", "vector", array, (num_weights(desc),), ("num_weights",))
    return network(desc, weight_views(desc, np.ascontiguousarray(array)))


def to_mxnet(net: Network) -> np.ndarray:
    """Return the weights of a network as MXNet's RNN operator takes them.

    Parameters
    ----------
    net : RNN, GRU or LSTM
        A network that the operator supports: input_mode="linear", reset_after=True.

    Returns
    -------
    ndarray (num_weights,), net.desc.dtype
        A copy, for the argument `parameters`.  The operator has two biases: one that the network lacks is zeros.

    Raises
    ------
    TypeError
        `net` is not a network.
    ValueError
        The operator does not support this network.

    Examples
    --------
    >>> from rnnkit import GRU
    >>> to_mxnet(GRU(3, 2, bias="none")).shape
    (42,)
    """
    blocks = blocks_of("to_mxnet", net, "MXNet supports nothing else", input_mode=("linear",), reset_after=(True,))
    desc = replace(net.desc, bias="both")
    none = np.zeros(desc.num_gates * desc.hidden_size, desc.np_dtype)
    return np.concatenate([blocks.get(name, none).ravel() for name, *_ in weight_layout(desc)])
