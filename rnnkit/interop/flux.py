"""Flux: RNNCell, GRUCell and LSTMCell, and stacks of them.

Its matrices are (out, in) as ours, and so is the order of its gates, r z n and i f c o, whose c is our g. It has one
bias, which in the GRU stands outside of the product with r. Its GRUv3 is no GRU of ours: it has a matrix of its own for
the candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import check_names
from rnnkit.errors import message
from rnnkit.interop.networks import Network, blocks_of, check_shape, gate_rows, mode_of_rows, real_array
from rnnkit.interop.stacks import Cell, Form, cells_of, named_mappings, one_bias, stacked_network
from rnnkit.network.classes import class_of

_BIAS = {"RNN": "bias", "GRU": "b", "LSTM": "bias"}  # its name in Flux 0.16


def from_flux(cells: Any, *, activation: str | None = None) -> Network:
    """Return a network with the weights of Flux's cells.

    Parameters
    ----------
    cells : mapping or list of mappings
        The fields of an RNNCell, GRUCell or LSTMCell, or of those of a stack, the lowest first: Wi (G*H, I), Wh (G*H,
        H), and bias or b (G*H,), which is left out or False where the cell has none.  Julia's order of memory does not
        matter, but the shapes do: a file that shows Wi as (I, G*H), as HDF5's do, holds transposes.
    activation : {"tanh", "relu"}, optional
        Of an RNNCell, whose arrays do not tell it; None is Flux's default, "tanh".

    Returns
    -------
    RNN, GRU or LSTM
        With copies of the weights, in their dtype, and the bias as bW.  Its arrays are (T, N, I) where Flux's are
        (I, T, N): ``net.infer(x.transpose(1, 2, 0))``.

    Raises
    ------
    TypeError
        `cells` are no mappings, or an array is not float32 or float64 as the others are.
    ValueError
        Entries are missing, unknown or of other shapes than the first cell asks for, or are those of a GRUv3Cell.

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
    return stacked_network("from_flux", _form(mode, "bias" in first.entries), [[cell] for cell in layers])


def to_flux(net: Network) -> list[dict[str, np.ndarray]]:
    """Return the weights of a network as the fields of Flux's cells.

    Parameters
    ----------
    net : RNN, GRU or LSTM
        Of what Flux has: one direction, no projection, no cell_clip, input_mode="linear", reset_after=True, and a GRU
        whose bR is 0 in the rows of n.

    Returns
    -------
    list of dict of str to ndarray
        One for each layer: Wi (G*H, I), Wh (G*H, H), and bias, or b of a GRUCell, (G*H,) if the network has one.  Two
        biases are added, which rounds if neither is 0.

    Raises
    ------
    TypeError
        `net` is no network.
    ValueError
        Flux has no such network.

    Examples
    --------
    >>> from rnnkit import GRU
    >>> [{name: array.shape for name, array in cell.items()} for cell in to_flux(GRU(3, 2, bias="input"))]
    [{'Wi': (6, 3), 'Wh': (6, 2), 'b': (6,)}]
    """
    blocks = blocks_of(
        "to_flux", net, "Flux has nothing else", bidirectional=(False,), proj_size=(None,), input_mode=("linear",),
        cell_clip=(None,), reset_after=(True,),
    )
    desc = net.desc
    found = []
    for (cell,) in cells_of(desc, blocks):
        found.append({"Wi": cell["weight_ih"].copy(), "Wh": cell["weight_hh"].copy()})
        if desc.bias != "none":
            found[-1][_BIAS[class_of(desc.mode)]] = one_bias("to_flux", desc, cell, "Flux")
    return found


def _cell(name: str, fields: Mapping[str, Any]) -> Cell:
    """Return a cell with its bias, if it has one, under one name."""
    if any(str(field).startswith("Wh_") for field in fields):
        cure = (
            "rnnkit.GRU has reset_after=True, which is GRUCell, and reset_after=False, which is Keras's and ONNX's and"
            " multiplies r*h with the third part of Wh, not with a matrix of its own"
        )
        raise ValueError(message("from_flux", name, "be of an RNNCell, GRUCell or LSTMCell", "a GRUv3Cell", cure))
    if "b" in fields and "bias" in fields:
        raise ValueError(message("from_flux", name, "have one bias", "b and bias"))
    found = {"bias" if field == "b" else field: array for field, array in fields.items()}
    if isinstance(found.get("bias"), (bool, np.bool_)) and not found["bias"]:
        del found["bias"]
    return Cell(name, found)


def _form(mode: str, has_bias: bool) -> Form:
    """Return how Flux writes down such cells."""
    rows = gate_rows(RNNDescriptor(mode, 1, 1).num_gates)
    dims = {"Wi": (rows, "input_size"), "Wh": (rows, "hidden_size"), **({"bias": (rows,)} if has_bias else {})}
    names = {"Wi": "weight_ih", "Wh": "weight_hh", "bias": "bias_ih"}

    def blocks(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {names[field]: array for field, array in arrays.items()}

    return Form(mode, {"bias": "input" if has_bias else "none"}, dims, blocks)
