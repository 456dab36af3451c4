"""The network that computes a layer of Keras, or the two of a Bidirectional: its descriptor, flat weights and input.

All is done by operations of Keras, which every backend differentiates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import keras
from keras import ops

from rnnkit.cells import ActivatedLSTM, Affine, Elu, HardSigmoid, LeakyRelu, Relu, Sigmoid, Softplus, Softsign, Tanh
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import weight_layout
from rnnkit.interop.keras import ORDERS
from rnnkit.keras import cells
from rnnkit.keras.cell import Cell

_FUNCTIONS = keras.activations
ACTIVATIONS = {
    _FUNCTIONS.sigmoid: Sigmoid(), _FUNCTIONS.tanh: Tanh(), _FUNCTIONS.relu: Relu(), _FUNCTIONS.linear: Affine(),
    _FUNCTIONS.hard_sigmoid: HardSigmoid(1 / 6, 0.5), _FUNCTIONS.elu: Elu(), _FUNCTIONS.leaky_relu: LeakyRelu(0.2),
    _FUNCTIONS.softplus: Softplus(), _FUNCTIONS.softsign: Softsign(),
}  # fmt: skip
"""The functions of Keras that the engine has."""


class _Kind(NamedTuple):
    """How the engine computes the layers of a class."""

    gates: str  # those of the engine, in its order
    modes: dict[tuple[Any, ...], str]  # activations -> mode
    activated: Any  # the cell of other activations
    dropped: Any  # the cell of any activations with recurrent dropout

    def cell(self, activations: tuple[Any, ...], rate: float | None) -> Any:
        """Return the mode or cell for these activations, and a rate of recurrent dropout."""
        if rate is not None:
            return self.dropped(*activations, rate)
        return self.modes.get(activations) or self.activated(*activations)


_KINDS = {
    "SimpleRNN": _Kind("a", {(Tanh(),): "rnn_tanh", (Relu(),): "rnn_relu"}, cells.ActivatedRNN, cells.DroppedRNN),
    "LSTM": _Kind("i f g o", {(Sigmoid(), Tanh(), Tanh()): "lstm"}, ActivatedLSTM, cells.DroppedLSTM),
    "GRU": _Kind("r z n", {(Sigmoid(), Tanh()): "gru"}, cells.ActivatedGRU, cells.DroppedGRU),
}
_RESETS_BEFORE = _KINDS["GRU"]._replace(activated=cells.ActivatedResetBeforeGRU, dropped=cells.DroppedResetBeforeGRU)


def functions_of(layer: Any) -> list[Any]:
    """Return the activations of a layer's cell, in the order of the engine's cell."""
    cell = layer.cell
    gate = [cell.recurrent_activation] if hasattr(cell, "recurrent_activation") else []
    return gate + [cell.activation] * (2 if layer.kind_of_keras == "LSTM" else 1)


def activation_of(function: Any) -> Any:
    """Return the engine's activation for a function of Keras; None if it has none."""
    return next((found for one, found in ACTIVATIONS.items() if one is function), None)


def drops(layer: Any, rate: str, training: bool) -> bool:
    """Return whether a layer applies its dropout with this rate, the name of an attribute of its cell."""
    return training and 0 < getattr(layer.cell, rate, 0) < 1


def descriptor_of(layer: Any, training: bool = False) -> RNNDescriptor:
    """Return the descriptor of a built layer; in training with recurrent dropout, if it has some."""
    cell = layer.cell
    if isinstance(cell, Cell):
        return cell.desc
    kind, given = _kind_of(layer), tuple(activation_of(one) for one in functions_of(layer))
    rate = cell.recurrent_dropout if drops(layer, "recurrent_dropout", training) else None
    bias = "none" if not cell.use_bias else "both" if kind is _KINDS["GRU"] else "input"
    inputs = cell.kernel.shape[0] * (len(_order(layer)) if _masks_each_gate(layer, training) else 1)
    before = not getattr(cell, "reset_after", True)
    return _descriptor(kind.cell(given, rate), inputs, cell.units, bias, str(cell.compute_dtype), before)


@lru_cache(256)
def _descriptor(mode: Any, inputs: int, units: int, bias: Any, dtype: Any, resets_before: bool) -> RNNDescriptor:
    options: dict[str, Any] = {"reset_after": not resets_before} if mode == "gru" else {}
    return RNNDescriptor(mode, inputs, units, bias=bias, dtype=dtype, **options)


def weights_of(layer: Any, training: bool = False) -> Any:
    """Return the flat weights of a built layer: kernels transposed, gates in the engine's order."""
    cell = layer.cell
    if isinstance(cell, Cell):
        return ops.convert_to_tensor(cell.flat)
    size, order = cell.units, _order(layer)
    count = len(order)

    def rows(kernel: Any) -> Any:
        """Return what is (..., G*H) as (G, H, ...)."""
        found = ops.reshape(ops.convert_to_tensor(kernel), (-1, count, size))
        return ops.transpose(found, (1, 2, 0))

    w, pieces = rows(cell.kernel), []
    if _masks_each_gate(layer, training):  # each gate reads its own columns
        own = ops.reshape(ops.eye(count, dtype=cell.compute_dtype), (count, 1, count, 1))
        w = ops.reshape(ops.expand_dims(w, 2) * own, (count, size, -1))
    blocks = [w, rows(cell.recurrent_kernel)]
    if cell.use_bias:
        biases = ops.reshape(ops.convert_to_tensor(cell.bias), (-1, count, size))
        blocks += [biases[number] for number in range(biases.shape[0])]
    for block in blocks:
        pieces += [block] if order == sorted(order) else [block[number] for number in order]
    return ops.concatenate([ops.reshape(one, (-1,)) for one in pieces])


def both_of(layers: Sequence[Any], training: bool = False) -> tuple[RNNDescriptor, Any]:
    """Return the descriptor and the flat weights of a forward and a backward layer as one bidirectional network."""
    desc, pieces = _both(descriptor_of(layers[0], training))
    flats = [weights_of(one, training) for one in layers]
    return desc, ops.concatenate([flats[at.direction][at.start : at.stop] for at in pieces])


class _Piece(NamedTuple):
    """A block of the bidirectional network: of which direction, and where in that direction's flat weights."""

    direction: int
    start: int
    stop: int


@lru_cache(256)
def _both(desc: RNNDescriptor) -> tuple[RNNDescriptor, list[_Piece]]:
    places = {one.name: (one.start, one.start + prod(one.shape)) for one in weight_layout(desc)}
    both = replace(desc, bidirectional=True)
    names = [one.name for one in weight_layout(both)]
    return both, [_Piece(name.endswith("_reverse"), *places[name.removesuffix("_reverse")]) for name in names]


def input_of(layer: Any, x: Any, training: bool) -> Any:
    """Return the input (N, T, ...) of the network: x, behind a dropout mask for all gates, or side by side for each."""
    if not drops(layer, "dropout", training):
        return x
    masks = layer.cell.get_dropout_mask(x[:, 0, :])
    if not isinstance(masks, (list, tuple)):
        return x * ops.expand_dims(masks, 1)
    return ops.concatenate([x * ops.expand_dims(one, 1) for one in masks], -1)


def seed_of(layer: Any, training: bool) -> Any:
    """Draw the seed of a call from the layer's generator; None if it needs none."""
    if not drops(layer, "recurrent_dropout", training):
        return None
    return keras.random.randint((), 0, 2**31 - 1, seed=layer.cell.seed_generator)


def _masks_each_gate(layer: Any, training: bool) -> bool:
    """Return whether dropout has a mask of its own for each gate; then x stands there once for each."""
    return drops(layer, "dropout", training) and getattr(layer.cell, "dropout_mask_count", None) is not None


def _kind_of(layer: Any) -> _Kind:
    before = layer.kind_of_keras == "GRU" and not layer.cell.reset_after
    return _RESETS_BEFORE if before else _KINDS[layer.kind_of_keras]


def _order(layer: Any) -> list[int]:
    """Return Keras's numbers of the gates, in the engine's order."""
    have = ORDERS["RNN" if layer.kind_of_keras == "SimpleRNN" else layer.kind_of_keras].split()
    return [have.index(gate) for gate in _kind_of(layer).gates.split()]
