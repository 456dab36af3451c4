"""Stacks of per-layer cells, shared by the converters of Keras, Flux and Flax.

A stack is a list of layers, a layer a list of cells, one per direction. The entries of a cell are its arrays by the
framework's names.
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


class CellFormat(NamedTuple):
    """How a framework stores a cell.

    Attributes
    ----------
    mode : str
        Mode of rnnkit.
    options : dict
        Other options of the descriptor.
    entries : dict of str to tuple of str
        Shape of each entry, as names of dimensions: "input_size", "4*hidden_size", or "biases", which is 2.
    blocks : callable
        Converts the arrays by entry to our blocks by name, without layer and direction, for example "weight_ih".
    """

    mode: str
    options: dict[str, Any]
    entries: dict[str, tuple[str, ...]]
    blocks: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


class Cell(NamedTuple):
    """A cell's name, for errors, and its entries."""

    name: str
    entries: Mapping[str, Any]

    def entry(self, name: str) -> str:
        """Return the name of an entry, for errors."""
        return f'{self.name}["{name}"]'


def stacked_network(function: str, form: CellFormat, layers: Sequence[Sequence[Cell]]) -> Network:
    """Return the network of a stack whose cells share one format.

    Checks use the framework's names and shapes, and precede the conversion.
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
    named = {cell.entry(n): array for cell, entries in zip(cells, arrays, strict=True) for n, array in entries.items()}
    sizes = [_first_size(function, form, cells[0], arrays[0], dim) for dim in ("input_size", "hidden_size")]
    dtype = common_dtype(function, named)
    desc = RNNDescriptor(form.mode, *sizes, len(layers), len(first) == 2, dtype=dtype, **form.options)
    blocks = {}
    for number, (cell, entries) in enumerate(zip(cells, arrays, strict=True)):
        layer, direction = divmod(number, desc.num_directions)
        _check_shapes(function, form, cell, entries, desc, layer)
        blocks |= {block + suffix_of(layer, direction): array for block, array in form.blocks(entries).items()}
    return network(desc, blocks)


def named_mappings(function: str, argument: str, value: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return one mapping, or those of a list, each with its name for errors."""
    if isinstance(value, Mapping):
        return [(argument, value)]
    if not (isinstance(value, (list, tuple)) and value and all(isinstance(one, Mapping) for one in value)):
        raise wrong_type(function, argument, "a mapping of names to arrays, or a list of at least one", value)
    return [(f"{argument}[{number}]", one) for number, one in enumerate(value)]


def cells_of(desc: RNNDescriptor, blocks: Mapping[str, np.ndarray]) -> list[list[dict[str, np.ndarray]]]:
    """Return the blocks of each layer and direction, by name without layer and direction."""
    suffixes = [[suffix_of(layer, d) for d in range(desc.num_directions)] for layer in range(desc.num_layers)]
    return [
        [{name.removesuffix(own): block for name, block in blocks.items() if name.endswith(own)} for own in layer]
        for layer in suffixes
    ]


def both_biases(cell: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return bW and bR of one of our cells; a missing one is zeros."""
    none = np.zeros_like(cell["weight_hh"][:, 0])
    return cell.get("bias_ih", none), cell.get("bias_hh", none)


def one_bias(function: str, desc: RNNDescriptor, cell: Mapping[str, np.ndarray], who: str) -> np.ndarray:
    """Return the sum of a cell's biases, for a framework with one bias, which it adds to W x.

    If one bias is 0, the other is returned bit-identically. A gate that multiplies R h + bR by r has no such sum: its
    bR must be 0.
    """
    first, second = both_biases(cell)
    rows = np.split(second, desc.num_gates)
    for gate, bias in zip(desc.cell.declaration.gates, rows, strict=True):
        if gate.apart and bias.any():
            expected = f"be 0 in the rows of {gate.name} of every bias_hh"
            cure = f"{who} has one bias, outside of the product with r"
            raise ValueError(message(function, "net.views", expected, f"up to {abs(bias).max()}", cure))
    return added(first, second)


def added(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return a sum that is bit-identical to one term where the other is 0, also for a negative 0."""
    return np.where(second == 0, first, np.where(first == 0, second, first + second))


def _first_size(function: str, form: CellFormat, cell: Cell, arrays: dict[str, np.ndarray], dim: str) -> int:
    """Infer a size from the first entry that has this dimension."""
    name, dims = next((name, dims) for name, dims in form.entries.items() if dim in dims)
    check_shape(function, cell.entry(name), arrays[name], (None,) * len(dims), dims)
    return arrays[name].shape[dims.index(dim)]


def _check_shapes(
    function: str, form: CellFormat, cell: Cell, arrays: dict[str, np.ndarray], desc: RNNDescriptor, layer: int
) -> None:
    sizes = {"input_size": desc.layer_input_size(layer), "hidden_size": desc.hidden_size, "biases": 2}
    for name, dims in form.entries.items():
        shape = tuple(prod(int(f) if f.isdigit() else sizes[f] for f in dim.split("*")) for dim in dims)
        check_shape(function, cell.entry(name), arrays[name], shape, dims)
