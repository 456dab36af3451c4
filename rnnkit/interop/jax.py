"""Flax, for JAX: the parameter trees of the cells of `flax.linen` and `flax.nnx`.

Kernels (in, out) are the transposes of ours. The gates have our names, and our order if one kernel holds them all.
The LSTM adds its one bias to R h, the other cells to W x; linen's GRU also adds a bias of n to R h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import check_names
from rnnkit.errors import message, wrong_type
from rnnkit.interop.networks import Network, blocks_of, check_shape, gate_order, gate_rows, mode_of_rows, real_array
from rnnkit.interop.stacks import (
    Cell,
    CellFormat,
    added,
    both_biases,
    cells_of,
    named_mappings,
    one_bias,
    stacked_network,
)


class _Layout(NamedTuple):
    """Layout of a cell class: its gates, and the entries that form each of our blocks.

    A block is one entry with all gates, or one entry per gate; None is zeros.
    """

    gates: str
    blocks: dict[str, tuple[str | None, ...]]


def _each(template: str, gates: str) -> tuple[str, ...]:
    return tuple(template.format(gate) for gate in gates.split())


def _lstm(gates: str) -> dict[str, tuple[str, ...]]:
    """Return the blocks of an LSTM with one entry per gate; `gates` are the names of the input kernels."""
    recurrent = {leaf: _each(f"h{{}}/{leaf}", "i f g o") for leaf in ("kernel", "bias")}
    return {"weight_ih": _each("i{}/kernel", gates), "weight_hh": recurrent["kernel"], "bias_hh": recurrent["bias"]}


_DENSE = {"weight_ih": ("dense_i/kernel",), "weight_hh": ("dense_h/kernel",)}
_GRU = {"weight_ih": _each("i{}/kernel", "r z n"), "weight_hh": _each("h{}/kernel", "r z n")}
CELLS = {
    "linen.LSTMCell": _Layout("i f g o", _lstm("i f g o")),
    "linen.OptimizedLSTMCell": _Layout("i f g o", _lstm("i f g o")),
    "linen.GRUCell": _Layout(
        "r z n", _GRU | {"bias_ih": _each("i{}/bias", "r z n"), "bias_hh": (None, None, "hn/bias")}
    ),
    "linen.SimpleCell": _Layout("a", {"weight_ih": ("i/kernel",), "weight_hh": ("h/kernel",), "bias_ih": ("i/bias",)}),
    "nnx.LSTMCell": _Layout("i f g o", _lstm("i f_ g o")),
    "nnx.OptimizedLSTMCell": _Layout("i f g o", _DENSE | {"bias_hh": ("dense_h/bias",)}),
    "nnx.GRUCell": _Layout("r z n", _DENSE | {"bias_ih": ("dense_i/bias",)}),
    "nnx.SimpleCell": _Layout("a", _DENSE | {"bias_ih": ("dense_i/bias",)}),
}
_WRAPPERS = "params", "cell"  # keys that wrap a tree: of variables, and of nn.RNN
_DIRECTIONS = "forward_rnn", "backward_rnn"  # of a Bidirectional


def from_jax(params: Any, *, activation: str | None = None) -> Network:
    """Return a network with the parameters of Flax's cells; neither jax nor flax is imported.

    Parameters
    ----------
    params : mapping or list of mappings
        The parameter tree, with arrays of JAX or NumPy, of an LSTMCell, OptimizedLSTMCell, GRUCell or SimpleCell of
        linen or nnx, of an RNN around one, or of a Bidirectional around two RNNs; or the trees of a stack, the lowest
        first.  For an nnx module pass ``nnx.state(module, nnx.Param)``.
    activation : {"tanh", "relu"}, optional
        The activation_fn of a SimpleCell, which the tree does not store; None is Flax's default, "tanh".

    Returns
    -------
    RNN, GRU or LSTM
        Copies of the weights, in their dtype, with biases where Flax has them.  It is time-major.

    Raises
    ------
    TypeError
        `params` are not mappings, or the arrays are not all float32 or all float64.
    ValueError
        Entries are missing or unknown, or their shapes do not fit the first cell.

    Notes
    -----
    A tree does not store a cell's gate_fn, activation_fn or residual: Flax's defaults are assumed.

    Examples
    --------
    >>> dense = {"kernel": np.ones((2, 2)), "bias": np.ones(2)}
    >>> from_jax({"i": dense, "h": {"kernel": np.ones((2, 2))}}, activation="relu")
    <RNN: RNNDescriptor('rnn_relu', 2, 2, bias='input', dtype='float64'), 10 weights>
    """
    layers = [_directions(name, tree) for name, tree in named_mappings("from_jax", "params", params)]
    return stacked_network("from_jax", _format(*_infer_layout(layers[0][0], activation)), layers)


def to_jax(net: Network, cell: str | None = None) -> list[dict[str, Any]]:
    """Return the weights of a network as parameter trees of Flax.

    Parameters
    ----------
    net : RNN, GRU or LSTM
        A network that Flax supports: no projection, no cell_clip, input_mode="linear", reset_after=True, and in a GRU
        for nnx bR = 0 in the rows of n.
    cell : str, optional
        The class that takes them, for example "linen.LSTMCell" or "nnx.GRUCell"; None is linen's class of the mode.

    Returns
    -------
    list of dict
        One tree of NumPy arrays for each layer: ``{"cell": {"ii": {"kernel": ...}, ...}}`` for an RNN around a cell,
        ``{"forward_rnn": {"cell": ...}, "backward_rnn": ...}`` for a Bidirectional.  A bias that Flax lacks is added
        to the one that it has, which rounds if neither is 0; a bias that the network lacks is zeros.

    Raises
    ------
    TypeError
        `net` is not a network.
    ValueError
        Flax does not support this network, or `cell` is unknown or of another mode.

    Examples
    --------
    >>> from rnnkit import RNN
    >>> (tree,) = to_jax(RNN(3, 2))
    >>> {name: array.shape for name, array in tree["cell"]["i"].items()}
    {'kernel': (3, 2), 'bias': (2,)}
    """
    blocks = blocks_of(
        "to_jax",
        net,
        "Flax supports nothing else",
        proj_size=(None,),
        input_mode=("linear",),
        cell_clip=(None,),
        reset_after=(True,),
    )
    desc = net.desc
    names = [name for name, layout in CELLS.items() if layout.gates == gate_order(desc)]
    if cell is not None and cell not in names:
        listed = " or ".join(map(repr, names))
        raise ValueError(message("to_jax", "cell", f'be {listed} with mode="{desc.mode}"', repr(cell)))
    layout = CELLS[cell or names[0]]
    layers = [[{"cell": _tree(desc, layout, cell)} for cell in layer] for layer in cells_of(desc, blocks)]
    return [dict(zip(_DIRECTIONS, layer, strict=True)) if desc.bidirectional else layer[0] for layer in layers]


def _directions(name: str, tree: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of a layer, without their wrappers."""
    if not isinstance(tree, Mapping):
        raise wrong_type("from_jax", name, "a mapping of names to arrays", tree)
    for wrapper in _WRAPPERS:
        if set(tree) == {wrapper}:
            return _directions(f'{name}["{wrapper}"]', tree[wrapper])
    if set(tree) == set(_DIRECTIONS):
        return [cell for key in _DIRECTIONS for cell in _directions(f'{name}["{key}"]', tree[key])]
    return [Cell(name, dict(_leaves("", tree)))]


def _leaves(path: str, tree: Mapping[str, Any]) -> Any:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(f"{path}{key}/", value)
        else:
            yield f"{path}{key}", value


def _entries(layout: _Layout) -> list[str]:
    return [entry for entries in layout.blocks.values() for entry in entries if entry is not None]


def _infer_layout(cell: Cell, activation: str | None) -> tuple[str, _Layout]:
    """Return the mode and the layout of a cell; errors refer to the layout that fits best."""
    best = max(CELLS, key=lambda name: len(cell.entries.keys() & set(_entries(CELLS[name]))))
    check_names("from_jax", cell.name, f"the entries of a {best}", _entries(CELLS[best]), cell.entries)
    alike = {name: layout for name, layout in CELLS.items() if layout.blocks == CELLS[best].blocks}
    entries = CELLS[best].blocks["weight_hh"]
    name = cell.entry(entries[0])
    kernel = real_array("from_jax", name, cell.entries[entries[0]])
    check_shape("from_jax", name, kernel, (None, None), ("hidden_size", "gates*hidden_size"))
    hidden_size, columns = kernel.shape
    for layout in alike.values():
        rows = len(layout.gates.split()) * hidden_size
        if rows == columns * len(entries):
            return mode_of_rows("from_jax", name, rows, hidden_size, activation=activation), layout
    raise ValueError(message("from_jax", name, f"have the shape of a {' or '.join(alike)}", kernel.shape))


def _format(mode: str, layout: _Layout) -> CellFormat:
    """Return the cell format of Flax."""
    num_gates, dims = len(layout.gates.split()), {}
    for block, entries in layout.blocks.items():
        columns = gate_rows(num_gates // len(entries))
        rows = {"weight_ih": ("input_size",), "weight_hh": ("hidden_size",)}.get(block, ())
        dims |= {entry: (*rows, columns) for entry in entries if entry is not None}

    def blocks(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = {}
        for block, entries in layout.blocks.items():
            zeros = np.zeros_like(arrays[entries[-1]])  # the last entry is never None
            parts = [zeros if entry is None else arrays[entry] for entry in entries]
            found[block] = np.concatenate(parts, axis=-1).T
        return found

    bias = {("bias_ih",): "input", ("bias_hh",): "recurrent"}.get(tuple(_biases(layout)), "both")
    return CellFormat(mode, {"bias": bias}, dims, blocks)


def _biases(layout: _Layout) -> list[str]:
    return [block for block in layout.blocks if block.startswith("bias")]


def _tree(desc: RNNDescriptor, layout: _Layout, cell: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the tree of one cell."""
    ours, tree = _with_biases(desc, layout, cell), {}
    for block, entries in layout.blocks.items():
        for entry, part in zip(entries, np.split(ours[block].T, len(entries), axis=-1), strict=True):
            if entry is not None:
                dense, leaf = entry.split("/")
                tree.setdefault(dense, {})[leaf] = part.copy(order="C")
    return tree


def _with_biases(desc: RNNDescriptor, layout: _Layout, cell: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the blocks of a cell, with its biases moved to those that the layout has."""
    if len(_biases(layout)) == 1:
        return {**cell, _biases(layout)[0]: one_bias("to_jax", desc, cell, "this cell of Flax")}
    first, second = both_biases(cell)
    has_entry = np.repeat([entry is not None for entry in layout.blocks["bias_hh"]], desc.hidden_size)
    return {**cell, "bias_ih": added(first, np.where(has_entry, 0, second)), "bias_hh": np.where(has_entry, second, 0)}
