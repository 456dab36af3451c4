"""Keras: SimpleRNN, GRU and LSTM layers, Bidirectional ones and stacks of them.

Keras computes x @ kernel: its kernels (in, gates) are the transposes of ours. Its gates are z r h and i f c o; its h
and c are our n and g.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.errors import message, wrong_type
from rnnkit.interop.networks import (
    Network,
    blocks_of,
    check_left_out,
    check_shape,
    gate_order,
    gate_rows,
    mode_of_rows,
    real_array,
    reordered,
)
from rnnkit.interop.stacks import Cell, CellFormat, both_biases, cells_of, one_bias, stacked_network
from rnnkit.network.classes import class_of, mode_of
from rnnkit_kernels.cells.modes import MODES

ORDERS = {"RNN": "a", "GRU": "z r n", "LSTM": "i f g o"}
ENTRIES = "kernel", "recurrent_kernel", "bias"
# Supported arguments of a layer. Dropout must be 0: Keras uses one mask for all steps (variational dropout), we draw a
# new mask at each step.
_GATED = {"activation": ("tanh",), "recurrent_activation": ("sigmoid",), "dropout": (0,), "recurrent_dropout": (0,)}
_ARGUMENTS = {
    "SimpleRNN": {**_GATED, "activation": ("tanh", "relu"), "recurrent_activation": (None,)},
    "GRU": _GATED,
    "LSTM": _GATED,
}
_CURES = {
    "go_backwards": "reverse x along time, or wrap the layer in Bidirectional",
    "dropout": "for inference only, pass its get_weights()",
    "recurrent_dropout": "for inference only, pass its get_weights()",
    "merge_mode": "pass its get_weights(): y has the outputs of both directions side by side, to merge afterwards",
}


class _Kind(NamedTuple):
    """Settings shared by all layers; the fields are named after Keras's arguments."""

    mode: str
    use_bias: bool
    reset_after: bool


def from_keras(source: Any, *, activation: str | None = None, reset_after: bool | None = None) -> Network:
    """Return a network with the weights of Keras layers; keras is not imported.

    Parameters
    ----------
    source : layer, list of layers, list of ndarray or list of lists of ndarray
        A SimpleRNN, GRU or LSTM, a Bidirectional of one, or a stack of them, the lowest first.  Or their
        ``get_weights()``: kernel (I, G*H), recurrent_kernel (H, G*H), and bias (G*H,) or (2, 3*H), followed by the same
        of the backward layer for a Bidirectional.
    activation : {"tanh", "relu"}, optional
        Activation of a SimpleRNN; only if `source` is arrays, which do not store it. None is Keras's default, "tanh".
    reset_after : bool, optional
        For a GRU; only if `source` is arrays without bias, whose shape would show it. None is Keras's default, True.

    Returns
    -------
    RNN, GRU or LSTM
        Copies of the weights, in their dtype, with the bias as bW; a GRU with reset_after has both biases.  It is
        time-major, and returns the outputs of all steps and the last states, whatever return_sequences is.

    Raises
    ------
    TypeError
        `source` is none of these, or the arrays are not all float32 or all float64.
    ValueError
        An argument of a layer is unsupported, the layers differ or are not built, arrays are missing, or their shapes
        do not fit the first layer.

    Examples
    --------
    >>> from_keras([np.ones((3, 8), "f4"), np.ones((2, 8), "f4"), np.ones(8, "f4")])
    <LSTM: RNNDescriptor('lstm', 3, 2, bias='input'), 48 weights>
    """
    layers = _layers("from_keras", "source", source)
    if _is_layer(layers[0][1]):
        check_left_out("from_keras", "with layers, which determine it", activation=activation, reset_after=reset_after)
        kind, stack = _infer_from_layers("from_keras", layers)
    else:
        stack = [_halves(name, weights) for name, weights in layers]
        kind = _infer_from_arrays(stack[0][0], activation, reset_after)
    return stacked_network("from_keras", _format(kind), stack)


def to_keras(net: Network, layers: Any = None) -> list[list[np.ndarray]]:
    """Return the weights of a network as Keras layers take them, and optionally set them on `layers`.

    Parameters
    ----------
    net : RNN, GRU or LSTM
        A network that Keras supports: no projection, no cell_clip, input_mode="linear".
    layers : layer or list of layers, optional
        One built layer, or one for each layer of the network, the lowest first; their ``set_weights`` is called.

    Returns
    -------
    list of list of ndarray
        One list for each layer, for its ``set_weights``; for a Bidirectional the weights of the backward layer follow
        the others.  If Keras has one bias, two are summed, which rounds if neither is 0.

    Raises
    ------
    TypeError
        `net` is not a network, `layers` are not Keras layers, or they have another dtype.
    ValueError
        Keras does not support this network, or `layers` differ in kind, number or size.

    Examples
    --------
    >>> from rnnkit import GRU
    >>> [[array.shape for array in layer] for layer in to_keras(GRU(3, 2, num_layers=2))]
    [[(3, 6), (2, 6), (2, 6)], [(2, 6), (2, 6), (2, 6)]]
    """
    why = "Keras supports nothing else"
    blocks = blocks_of("to_keras", net, why, proj_size=(None,), input_mode=("linear",), cell_clip=(None,))
    desc = net.desc
    stack = [[a for cell in layer for a in _weights(desc, cell)] for layer in cells_of(desc, blocks)]
    if layers is not None:
        _set(desc, stack, _layers("to_keras", "layers", layers))
    return stack


def _is_layer(value: Any) -> bool:
    return hasattr(value, "get_weights") and hasattr(value, "get_config")


def _layers(function: str, argument: str, source: Any) -> list[tuple[str, Any]]:
    """Return layers or lists of arrays, each with its name for errors."""
    if _is_layer(source):
        return [(argument, source)]
    expected = "a Keras layer, its arrays, or a list of these"
    if not isinstance(source, (list, tuple)):
        raise wrong_type(function, argument, expected, source)
    if not source:
        raise ValueError(message(function, argument, f"be {expected}", "an empty list"))
    if all(hasattr(array, "shape") for array in source):
        return [(argument, source)]
    named = [(f"{argument}[{number}]", layer) for number, layer in enumerate(source)]
    for name, layer in named:
        if _is_layer(layer) != _is_layer(source[0]) or not (_is_layer(layer) or isinstance(layer, (list, tuple))):
            raise wrong_type(function, name, "a Keras layer, or its arrays, as the others are", layer)
    return named


def _halves(name: str, weights: Sequence[Any]) -> list[Cell]:
    """Return the cells of the forward and, if there is one, the backward layer."""
    if len(weights) not in (2, 3, 4, 6):
        expected = "hold 2 or 3 arrays (kernel, recurrent_kernel, bias), or twice as many for a Bidirectional"
        raise ValueError(message("from_keras", name, expected, len(weights)))
    if len(weights) < 4:
        return [_cell(name, weights)]
    half = len(weights) // 2
    return [_cell(f"{name}.forward_layer", weights[:half]), _cell(f"{name}.backward_layer", weights[half:])]


def _cell(name: str, weights: Sequence[Any]) -> Cell:
    return Cell(name, {ENTRIES[n] if n < len(ENTRIES) else f"array {n}": array for n, array in enumerate(weights)})


def _infer_from_arrays(cell: Cell, activation: str | None, reset_after: bool | None) -> _Kind:
    """Infer the settings from the first cell's shapes, completed by the arguments."""
    name, use_bias = cell.entry("recurrent_kernel"), "bias" in cell.entries
    recurrent = real_array("from_keras", name, cell.entries["recurrent_kernel"])
    check_shape("from_keras", name, recurrent, (None, None), ("hidden_size", "gates*hidden_size"))
    mode = mode_of_rows("from_keras", name, recurrent.shape[1], recurrent.shape[0], activation=activation)
    if "reset_after" not in MODES[mode].options:
        check_left_out("from_keras", f'with mode="{mode}"', reset_after=reset_after)
    elif use_bias:
        check_left_out("from_keras", "with a bias, whose shape determines it", reset_after=reset_after)
        reset_after = real_array("from_keras", cell.entry("bias"), cell.entries["bias"]).ndim == 2
    return _Kind(mode, use_bias, reset_after is not False)


def _infer_from_layers(function: str, layers: Iterable[tuple[str, Any]]) -> tuple[_Kind, list[list[Cell]]]:
    """Return the settings that the layers share, and their cells."""
    stack, first = [], None
    for name, layer in layers:
        directions = [(name, layer, False)]
        if type(layer).__name__ == "Bidirectional":
            _check_argument(function, name, "merge_mode", layer.get_config()["merge_mode"], ("concat",))
            halves = ("forward_layer", False), ("backward_layer", True)
            directions = [(f"{name}.{half}", getattr(layer, half), backwards) for half, backwards in halves]
        for full_name, half, backwards in directions:
            kind = _kind(function, full_name, half, backwards)
            first = first or (full_name, kind)
            for argument, found, wanted in zip(kind._fields, kind, first[1], strict=True):
                _check_argument(function, full_name, argument, found, (wanted,), f" as in {first[0]}")
        stack.append([_cell(full_name, half.get_weights()) for full_name, half, _ in directions])
    return first[1], stack


def _kind(function: str, name: str, layer: Any, backwards: bool) -> _Kind:
    """Return a layer's settings; raise if they are unsupported."""
    cls = type(layer).__name__
    if cls not in _ARGUMENTS:  # nor a subclass: it may compute anything
        expected = f"a Keras {', '.join(_ARGUMENTS)} or Bidirectional of one"
        raise wrong_type(function, name, expected, layer)
    config = layer.get_config()
    for argument, allowed in {**_ARGUMENTS[cls], "go_backwards": (backwards,)}.items():
        _check_argument(function, name, argument, config.get(argument), allowed)
    if not layer.get_weights():
        raise ValueError(message(function, name, "have weights", "none", "call the layer or its build() once"))
    mode = mode_of("RNN", nonlinearity=config["activation"]) if cls == "SimpleRNN" else mode_of(cls)
    return _Kind(mode, config["use_bias"], config.get("reset_after", True))


def _check_argument(function: str, name: str, argument: str, found: Any, allowed: Iterable[Any], why: str = "") -> None:
    if found not in allowed:
        listed, cure = " or ".join(map(repr, allowed)), _CURES.get(argument, "")
        if function == "to_keras" and argument != "go_backwards":
            cure = cure and "pass no layers, and give each list that is returned to the set_weights of its layer"
        raise ValueError(message(function, f"{name}.{argument}", f"be {listed}{why}", repr(found), cure))


def _format(kind: _Kind) -> CellFormat:
    """Return the cell format of Keras."""
    mode, use_bias, reset_after = kind
    desc = RNNDescriptor(mode, 1, 1, reset_after=reset_after)
    rows, two = gate_rows(desc.num_gates), use_bias and "reset_after" in MODES[mode].options and reset_after
    dims = {"kernel": ("input_size", rows), "recurrent_kernel": ("hidden_size", rows)}
    if use_bias:
        dims["bias"] = ("biases", rows) if two else (rows,)
    have, want = ORDERS[class_of(mode)], gate_order(desc)

    def blocks(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        ours = {name: reordered(array, have, want, axis=-1) for name, array in arrays.items()}
        found = {"weight_ih": ours["kernel"].T, "weight_hh": ours["recurrent_kernel"].T}
        if use_bias:
            found |= zip(("bias_ih", "bias_hh"), ours["bias"] if two else [ours["bias"]], strict=False)
        return found

    bias = "both" if two else "input" if use_bias else "none"
    return CellFormat(mode, {"bias": bias, "reset_after": reset_after}, dims, blocks)


def _weights(desc: RNNDescriptor, cell: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the arrays of one direction of a layer, in Keras's order."""
    arrays = [cell["weight_ih"].T, cell["weight_hh"].T]
    if desc.bias != "none" and "reset_after" in MODES[desc.mode].options and desc.reset_after:
        arrays.append(np.stack(both_biases(cell)))
    elif desc.bias != "none":
        arrays.append(one_bias("to_keras", desc, cell, "Keras"))
    have, want = gate_order(desc), ORDERS[class_of(desc.mode)]
    return [np.ascontiguousarray(reordered(array, have, want, axis=-1)) for array in arrays]


def _set(desc: RNNDescriptor, stack: Sequence[list[np.ndarray]], layers: Sequence[tuple[str, Any]]) -> None:
    """Check all layers first, then set their weights: all or none."""
    if len(layers) != len(stack):
        raise ValueError(message("to_keras", "layers", f"be {len(stack)} as the network has", len(layers)))
    for name, layer in layers:
        if not _is_layer(layer):
            raise wrong_type("to_keras", name, "a Keras layer", layer)
    kind, cells = _infer_from_layers("to_keras", layers)
    wanted = _Kind(desc.mode, desc.bias != "none", desc.reset_after)
    for argument, found, value in zip(kind._fields, kind, wanted, strict=True):
        _check_argument("to_keras", layers[0][0], argument, found, (value,), " as the network has")
    for (name, layer), arrays, directions in zip(layers, stack, cells, strict=True):
        actual = [(array.shape, array.dtype) for array in layer.get_weights()]
        expected = [(array.shape, array.dtype) for array in arrays]
        if actual != expected or len(directions) != desc.num_directions:
            raise ValueError(message("to_keras", name, f"have weights {_listed(expected)}", _listed(actual)))
    for (_, layer), arrays in zip(layers, stack, strict=True):
        layer.set_weights(arrays)


def _listed(arrays: Iterable[tuple[tuple[int, ...], np.dtype]]) -> str:
    return ", ".join(f"{dtype} {shape}" for shape, dtype in arrays)
