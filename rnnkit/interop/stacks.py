"""Networks that are given cell by cell: what the converters of Keras, Flux and Flax share.

A stack is a list of layers, a layer the list of its directions, and a cell the arrays by the names that the framework
has for them: its entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import check_names, suffix_of
from rnnkit.errors import message, wrong_type
from rnnkit.interop.networks import Network, check_shape, common_dtype, network, real_array


class Form(NamedTuple):
    """How a framework writes down a cell.

    Attributes
    ----------
    mode : str
        Ours.
    options : dict
        The other options of the descriptor.
    entries : dict of str to tuple of str
        The shape of each entry, by the names of its sizes: "input_size", "4*hidden_size", or "biases", which is 2.
    blocks : callable
        Takes the arrays by entry and returns ours by their names without layer and direction, "weight_ih" for example.
    """

    mode: str
    options: dict[str, Any]
    entries: dict[str, tuple[str, ...]]
    blocks: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


class Cell(NamedTuple):
    """A cell's name, for messages, and its entries."""

    name: str
    entries: Mapping[str, Any]

    def entry(self, name: str) -> str:
        """Return the name of an entry, for messages."""
        return f'{self.name}["{name}"]'


def stacked_network(function: str, form: Form, layers: Sequence[Sequence[Cell]]) -> Network:
    """Return the network of a stack whose cells all have one form.

    Everything is checked in the framework's own names and shapes, before any of it is converted.
    """
    first = layers[0]
    for layer in layers:
        if len(layer) != len(first):
            expected = f"be of {len(first)} directions as {first[0].name} is"
            raise ValueError(message(function, layer[0].name, expected, len(layer)))
    cells = [cell for layer in layers for cell in layer]
    for cell in cells:
        expected = f"the entries of this {form.mode} network's cells"
        check_names(function, cell.name, expected, form.entries, cell.entries)
    arrays = [{n: real_array(function, cell.entry(n), cell.entries[n]) for n in form.entries} for cell in cells]
    every = {cell.entry(n): array for cell, those in zip(cells, arrays, strict=True) for n, array in those.items()}
    sizes = [_first_size(function, form, cells[0], arrays[0], dim) for dim in ("input_size", "hidden_size")]
    dtype = common_dtype(function, every)
    desc = RNNDescriptor(form.mode, *sizes, len(layers), len(first) == 2, dtype=dtype, **form.options)
    named = {}
    for number, (cell, own) in enumerate(zip(cells, arrays, strict=True)):
        layer, direction = divmod(number, desc.num_directions)
        _check_shapes(function, form, cell, own, desc, layer)
        named |= {block + suffix_of(layer, direction): array for block, array in form.blocks(own).items()}
    return network(desc, named)


def named_mappings(function: str, argument: str, value: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return a mapping, or those of a list, each with its name for messages."""
    if isinstance(value, Mapping):
        return [(argument, value)]
    if not (isinstance(value, (list, tuple)) and value and all(isinstance(one, Mapping) for one in value)):
        raise wrong_type(function, argument, "a mapping of names to arrays, or a list of at least one", value)
    return [(f"{argument}[{number}]", one) for number, one in enumerate(value)]


def cells_of(desc: RNNDescriptor, blocks: Mapping[str, np.ndarray]) -> list[list[dict[str, np.ndarray]]]:
    """Return the blocks of each layer's directions, by their names without layer and direction."""
    suffixes = [[suffix_of(layer, d) for d in range(desc.num_directions)] for layer in range(desc.num_layers)]
    return [
        [{name.removesuffix(own): block for name, block in blocks.items() if name.endswith(own)} for own in layer]
        for layer in suffixes
    ]


def both_biases(cell: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return bW and bR of a cell of ours; one that it lacks is zeros."""
    none = np.zeros_like(cell["weight_hh"][:, 0])
    return cell.get("bias_ih", none), cell.get("bias_hh", none)


def one_bias(function: str, desc: RNNDescriptor, cell: Mapping[str, np.ndarray], who: str) -> np.ndarray:
    """Return the sum of a cell's biases for a framework that has one only, which is added to W x.

    Where one is 0 the other keeps its bits. A gate that resets R h + bR has no such sum: its bR must be 0.
    """
    first, second = both_biases(cell)
    rows = np.split(second, desc.num_gates)
    for gate, own in zip(desc.cell.declaration.gates, rows, strict=True):
        if gate.apart and own.any():
            expected = f"be 0 in the rows of {gate.name} of every bias_hh"
            cure = f"{who} has one bias, outside of the product with r"
            raise ValueError(message(function, "net.views", expected, f"up to {abs(own).max()}", cure))
    return added(first, second)


def added(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return a sum, with the bits of one where the other is 0, a negative 0 included."""
    return np.where(second == 0, first, np.where(first == 0, second, first + second))


def _first_size(function: str, form: Form, cell: Cell, arrays: dict[str, np.ndarray], dim: str) -> int:
    """Return a size from the first entry along one of whose axes it stands."""
    name, dims = next((name, dims) for name, dims in form.entries.items() if dim in dims)
    check_shape(function, cell.entry(name), arrays[name], (None,) * len(dims), dims)
    return arrays[name].shape[dims.index(dim)]


def _check_shapes(
    function: str, form: Form, cell: Cell, arrays: dict[str, np.ndarray], desc: RNNDescriptor, layer: int
) -> None:
    sizes = {"input_size": desc.layer_input_size(layer), "hidden_size": desc.hidden_size, "biases": 2}
    for name, dims in form.entries.items():
        shape = tuple(prod(int(f) if f.isdigit() else sizes[f] for f in dim.split("*")) for dim in dims)
        check_shape(function, cell.entry(name), arrays[name], shape, dims)
