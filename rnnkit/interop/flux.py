"""Flux: RNNCell, GRUCell and LSTMCell, and stacks of them.

Flux has our matrices (out, in) and our gate order, r z n and i f c o (its c is our g). It has one bias; the GRU adds it
outside of the product with r. GRUv3 is not supported: it has a separate matrix for the candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import check_names
from rnnkit.errors import message
from rnnkit.interop.networks import Network, blocks_of, check_shape, gate_rows, mode_of_rows, real_array
from rnnkit.interop.stacks import Cell, CellFormat, cells_of, named_mappings, one_bias, stacked_network
from rnnkit.network.classes import class_of

_BIAS = {"RNN": "bias", "GRU": "b", "LSTM": "bias"}  # the field's name in Flux 0.16


def from_flux(cells: Any, *, activation: str | None = None) -> Network:
    """Return a network with the weights of Flux's cells.

    Parameters
    ----------
    cells : mapping or list of mappings
        The fields of an RNNCell, GRUCell or LSTMCell, or of a stack of them, the lowest first: Wi (G*H, I), Wh (G*H,
        H), and bias or b (G*H,); without bias it is omitted or False.  The memory order does not matter, but the
        shapes do: HDF5 files show Wi as (I, G*H), so transpose it first.
    activation : {"tanh", "relu"}, optional
        Activation of an RNNCell, which the arrays do not determine; None is Flux's default, "tanh".

    Returns
    -------
    RNN, GRU or LSTM
        Copies of the weights, in their dtype, with the bias as bW.  It takes (T, N, I) where Flux takes (I, T, N):
        ``net.infer(x.transpose(1, 2, 0))``.

    Raises
    ------
    TypeError
        `cells` are not mappings, or the arrays are not all float32 or all float64.
    ValueError
        Entries are missing or unknown, or their shapes do not fit the first cell, or the cell is a GRUv3Cell.

    Examples
    --------
    >>> from_flux({"Wi": np.ones((6, 3)), "Wh": np.ones((6, 2)), "b": np.ones(6)})
    <GRU: RNNDescriptor('gru', 3, 2, bias='input', dtype='float64'), 36 weights>
    """
    layers = [_cell(name, fields) for name, fields in named_mappings("from_flux", "cells", cells)]
    first = layers[0]
    check_names("from_flux", first.name, "the fields of a cell", (*first.entries, "Wi", "Wh"), first.entries)
    name = first.entry("Wh")
    matrix = real_array("from_flux", name, first.entries["Wh"])
    check_shape("from_flux", name, matrix, (None, None), ("gates*hidden_size", "hidden_size"))
    mode = mode_of_rows("from_flux", name, *matrix.shape, activation=activation)
    return stacked_network("from_flux", _format(mode, "bias" in first.entries), [[cell] for cell in layers])


def to_flux(net: Network) -> list[dict[str, np.ndarray]]:
    """Return the weights of a network as the fields of Flux's cells.

    Parameters
    ----------
    net : RNN, GRU or LSTM
        A network that Flux supports: one direction, no projection, no cell_clip, input_mode="linear", reset_after=True,
        and in a GRU bR = 0 in the rows of n.

    Returns
    -------
    list of dict of str to ndarray
        One for each layer: Wi (G*H, I), Wh (G*H, H), and bias (b in a GRUCell) (G*H,) if the network has one.  Two
        biases are summed, which rounds if neither is 0.

    Raises
    ------
    TypeError
        `net` is not a network.
    ValueError
        Flux does not support this network.

    Examples
    --------
    >>> from rnnkit import GRU
    >>> [{name: array.shape for name, array in cell.items()} for cell in to_flux(GRU(3, 2, bias="input"))]
    [{'Wi': (6, 3), 'Wh': (6, 2), 'b': (6,)}]
    """
    blocks = blocks_of(
        "to_flux",
        net,
        "Flux supports nothing else",
        bidirectional=(False,),
        proj_size=(None,),
        input_mode=("linear",),
        cell_clip=(None,),
        reset_after=(True,),
    )
    desc = net.desc
    layers = []
    for (cell,) in cells_of(desc, blocks):
        layers.append({"Wi": cell["weight_ih"].copy(), "Wh": cell["weight_hh"].copy()})
        if desc.bias != "none":
            layers[-1][_BIAS[class_of(desc.mode)]] = one_bias("to_flux", desc, cell, "Flux")
    return layers


def _cell(name: str, fields: Mapping[str, Any]) -> Cell:
    """Return a cell whose bias, if any, is named "bias"."""
    if any(str(field).startswith("Wh_") for field in fields):
        cure = (
            "rnnkit.GRU has reset_after=True (GRUCell) and reset_after=False (as in Keras and ONNX), which multiplies"
            " r*h with the third part of Wh, not with a separate matrix"
        )
        raise ValueError(message("from_flux", name, "be of an RNNCell, GRUCell or LSTMCell", "a GRUv3Cell", cure))
    if "b" in fields and "bias" in fields:
        raise ValueError(message("from_flux", name, "have one bias", "b and bias"))
    found = {"bias" if field == "b" else field: array for field, array in fields.items()}
    if isinstance(found.get("bias"), (bool, np.bool_)) and not found["bias"]:
        del found["bias"]
    return Cell(name, found)


def _format(mode: str, has_bias: bool) -> CellFormat:
    """Return the cell format of Flux."""
    rows = gate_rows(RNNDescriptor(mode, 1, 1).num_gates)
    dims = {"Wi": (rows, "input_size"), "Wh": (rows, "hidden_size"), **({"bias": (rows,)} if has_bias else {})}
    names = {"Wi": "weight_ih", "Wh": "weight_hh", "bias": "bias_ih"}

    def blocks(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {names[field]: array for field, array in arrays.items()}

    return CellFormat(mode, {"bias": "input" if has_bias else "none"}, dims, blocks)
