"""The flat weight buffer: this module defines the order of its blocks.

The order is that of cuDNN's weight space and of MXNet's RNN operator, without padding or alignment: first the matrices
of all pseudo-layers, then the biases of all, then the vectors of all, if the cell has vectors. Initial states that
belong to the network stand behind them: h0 of all pseudo-layers, then the other states of each. Size, views, packing
and initialisation follow from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from math import prod, sqrt
from sys import maxsize
from typing import Any, NamedTuple

import numpy as np

from rnnkit.common.arrays import library_of, not_an_array
from rnnkit.common.numbers import uniform
from rnnkit.descriptor.descriptor import RNNDescriptor, check_descriptor
from rnnkit.errors import message, wrong_dtype, wrong_shape, wrong_type
from rnnkit_kernels.cells.cell import Scalar

_DRAW_CHUNK = 1 << 16  # numbers drawn at once in float64, to limit temporary memory
_MAX_LAYOUTS = 64  # of the caches: a search over many descriptors must not fill the memory


class WeightBlock(NamedTuple):
    """One named block of the flat buffer: ``w[start:start + prod(shape)].reshape(shape)``.

    Attributes
    ----------
    name : str
        PyTorch's name, for example ``weight_hh_l1_reverse``.
    shape : tuple of int
        Each gate has H rows; the gates are in the order of the notes of :class:`rnnkit.RNNDescriptor`. The projection
        ``weight_hr`` has shape (P, H).
    start : int
        Index of the first element in the buffer.
    """

    name: str
    shape: tuple[int, ...]
    start: int


def weight_layout(desc: RNNDescriptor) -> tuple[WeightBlock, ...]:
    """Return the blocks of the flat buffer, in order and without gaps.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.

    Returns
    -------
    tuple of :class:`WeightBlock`
        Name, shape and start of each block.

    Raises
    ------
    TypeError
        `desc` is not an RNNDescriptor.

    Examples
    --------
    >>> from rnnkit.descriptor.descriptor import RNNDescriptor
    >>> for block in weight_layout(RNNDescriptor("gru", 3, 2)):
    ...     print(block)
    WeightBlock(name='weight_ih_l0', shape=(6, 3), start=0)
    WeightBlock(name='weight_hh_l0', shape=(6, 2), start=18)
    WeightBlock(name='bias_ih_l0', shape=(6,), start=30)
    WeightBlock(name='bias_hh_l0', shape=(6,), start=36)
    """
    check_descriptor("weight_layout", desc)
    return _layout(desc)


def num_weights(desc: RNNDescriptor) -> int:
    """Return the number of elements in the flat buffer.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.

    Returns
    -------
    int
        Number of elements, not bytes.

    Raises
    ------
    TypeError
        `desc` is not an RNNDescriptor.

    Examples
    --------
    >>> from rnnkit.descriptor.descriptor import RNNDescriptor
    >>> num_weights(RNNDescriptor("gru", 3, 2))
    42
    """
    check_descriptor("num_weights", desc)
    return size_of(desc)


def weight_views(desc: RNNDescriptor, w: Any) -> dict[str, Any]:
    """Return the named blocks as views of the buffer. Writing to a view writes to the buffer.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    w : ndarray (num_weights,), desc.dtype
        The flat buffer, or a gradient in the same layout: C-contiguous, NumPy or CuPy.

    Returns
    -------
    dict of str to ndarray
        Name -> view, in the order of the buffer.

    Raises
    ------
    TypeError
        `w` is not an array of the descriptor's dtype.
    ValueError
        `w` has a wrong shape, or is not C-contiguous.

    Examples
    --------
    >>> from rnnkit.descriptor.descriptor import RNNDescriptor
    >>> desc = RNNDescriptor("gru", 3, 2)
    >>> w = init_weights(desc, seed=0)
    >>> weight_views(desc, w)["bias_hh_l0"][:] = 1
    >>> w[-6:].tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    check_descriptor("weight_views", desc)
    check_weights("weight_views", "w", w, desc)
    return {name: w[start : start + prod(shape)].reshape(shape) for name, shape, start in _layout(desc)}


def init_weights(desc: RNNDescriptor, seed: Any = None) -> np.ndarray:
    """Return a new buffer of random weights and biases, uniform in [-1/sqrt(H), 1/sqrt(H)].

    A cell may declare other ranges for its vectors and scalars. Learned initial states are zeros.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    seed : int, optional
        Seed, or anything else that ``numpy.random.default_rng`` accepts. None: a random seed. The numbers are drawn in
        float64, so that all dtypes agree up to rounding.

    Returns
    -------
    ndarray (num_weights,), desc.dtype
        The flat buffer.

    Raises
    ------
    TypeError, ValueError
        `desc` is not an RNNDescriptor, or NumPy does not accept the seed.
    MemoryError
        The buffer does not fit into memory.

    Notes
    -----
    PyTorch's recurrent layers have the same initial range.

    Examples
    --------
    >>> from rnnkit.descriptor.descriptor import RNNDescriptor
    >>> init_weights(RNNDescriptor("gru", 3, 2), seed=0).shape
    (42,)
    """
    check_descriptor("init_weights", desc)
    check_size("init_weights", desc)
    try:
        rng = np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"init_weights: seed is not accepted by numpy.random.default_rng: {error}") from error
    bound = 1.0 / sqrt(desc.hidden_size)
    w = np.empty(size_of(desc), desc.np_dtype)
    vectors, first = desc.cell.declaration.vectors, start_of_initial_states(desc)
    w[first:] = 0
    blocks = [block for block in _layout(desc) if block.start < first]
    vector_blocks = blocks[len(blocks) - desc.num_pseudo_layers * len(vectors) :]
    end = vector_blocks[0].start if vector_blocks else first
    for start in range(0, end, _DRAW_CHUNK):
        part = w[start : min(start + _DRAW_CHUNK, end)]
        part[:] = uniform(rng, -bound, bound, part.size)
    for number, (_, shape, start) in enumerate(vector_blocks):
        _, low, high = vectors[number % len(vectors)]
        ends = -bound if low is None else low, bound if high is None else high
        w[start : start + shape[0]] = uniform(rng, *ends, shape)
    return w


def pack_weights(desc: RNNDescriptor, named: Mapping[str, Any]) -> np.ndarray:
    """Return a new buffer with the values of named arrays, for example of a PyTorch ``state_dict``.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    named : mapping of str to array_like
        One array for each name of ``weight_layout(desc)``, with its shape and the descriptor's dtype. Parameters of a
        PyTorch module (``dict(module.named_parameters())``) are detached; they must be on the host.

    Returns
    -------
    ndarray (num_weights,), desc.dtype
        The flat buffer, a new array.

    Raises
    ------
    TypeError
        `named` is not a mapping, or an array has a wrong dtype or is not on the host.
    ValueError
        Names are missing or unknown, or shapes are wrong (the message lists all of them), or a value is not an array.

    Examples
    --------
    >>> from rnnkit.descriptor.descriptor import RNNDescriptor
    >>> desc = RNNDescriptor("gru", 3, 2)
    >>> w = init_weights(desc, seed=0)
    >>> bool((pack_weights(desc, weight_views(desc, w)) == w).all())
    True
    """
    check_descriptor("pack_weights", desc)
    if not isinstance(named, Mapping):
        raise wrong_type("pack_weights", "named", "a mapping of names to arrays", named)
    layout = _layout(desc)
    names = [name for name, _, _ in layout]
    check_names("pack_weights", "named", f"the {len(names)} names of weight_layout(desc)", names, named)
    arrays = {name: host_array("pack_weights", f'named["{name}"]', named[name]) for name in names}
    misshapen = [f"{name} {arrays[name].shape} for {shape}" for name, shape, _ in layout if arrays[name].shape != shape]
    if misshapen:
        expected = "have the shapes of weight_layout(desc)"
        raise ValueError(message("pack_weights", "named", expected, ", ".join(misshapen)))
    for name, array in arrays.items():
        if array.dtype != desc.np_dtype:
            raise wrong_dtype("pack_weights", f'named["{name}"]', desc.dtype, array.dtype)
    return np.concatenate([array.ravel() for array in arrays.values()])


def suffix_of(layer: int, direction: int) -> str:
    """Return the suffix of the block names of a pseudo-layer."""
    return f"_l{layer}" + ("_reverse" if direction else "")


def check_weights(function: str, argument: str, w: Any, desc: RNNDescriptor) -> None:
    """Check a flat buffer on any device by its dtype, shape and flags."""
    if isinstance(w, np.ndarray) and library_of(w) is None:
        raise not_an_array(function, argument, "a plain array", w)
    if not (hasattr(w, "dtype") and hasattr(w, "shape") and hasattr(w, "flags")):
        raise wrong_type(function, argument, "an array", w)
    if w.dtype != desc.np_dtype:
        raise wrong_dtype(function, argument, desc.dtype, w.dtype)
    if w.shape != (size_of(desc),):
        raise wrong_shape(function, argument, (size_of(desc),), ("num_weights",), w.shape)
    if not w.flags.c_contiguous:
        cure = f"copy it with {argument}.copy()"
        raise ValueError(message(function, argument, "be C-contiguous", f"strides {w.strides}", cure))


@lru_cache(_MAX_LAYOUTS)
def _layout(desc: RNNDescriptor) -> tuple[WeightBlock, ...]:
    blocks, start = [], 0
    for name, shape in _named_shapes(desc):
        blocks.append(WeightBlock(name, shape, start))
        start += prod(shape)
    return tuple(blocks)


def size_of(desc: RNNDescriptor) -> int:
    """Return `num_weights` of what is surely a descriptor. It keeps the number: every call needs it, and a look-up by
    hash takes longer."""
    size: int | None = desc.__dict__.get("_num_weights")
    if size is None:
        first, above = (
            sum(prod(shape) for blocks in _BLOCKS for _, shape in blocks(desc, layer))
            for layer in (0, 1)  # all layers above 0 have the size of layer 1
        )
        size = desc.__dict__["_num_weights"] = desc.num_directions * (first + (desc.num_layers - 1) * above)
    return size


def _named_shapes(desc: RNNDescriptor) -> Iterator[tuple[str, tuple[int, ...]]]:
    pseudo_layers = [
        (layer, suffix_of(layer, direction))
        for layer in range(desc.num_layers)
        for direction in range(desc.num_directions)
    ]
    for blocks in _BLOCKS:
        for layer, suffix in pseudo_layers:
            yield from ((name + suffix, shape) for name, shape in blocks(desc, layer))


def _matrices(desc: RNNDescriptor, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    rows = desc.num_input_gates * desc.hidden_size
    if desc.has_input_weight(layer):
        yield "weight_ih", (rows, desc.layer_input_size(layer))
    if desc.num_recurrent_gates:
        columns = desc.output_size // desc.cell.declaration.heads
        yield "weight_hh", (desc.num_recurrent_gates * desc.hidden_size, columns)
    if desc.projected:
        yield "weight_hr", (desc.output_size, desc.hidden_size)


def _biases(desc: RNNDescriptor, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    rows = desc.num_input_gates * desc.hidden_size
    if desc.has_bias_ih:
        yield "bias_ih", (rows,)
    if desc.has_bias_hh:
        yield "bias_hh", (desc.num_recurrent_gates * desc.hidden_size,)


def _vectors(desc: RNNDescriptor, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for vector in desc.cell.declaration.vectors:
        yield vector.name, (1 if isinstance(vector, Scalar) else desc.hidden_size,)


def _initial_hidden(desc: RNNDescriptor, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    if desc.learned_initial_state:
        yield "h0", (desc.output_size,)


def _initial_others(desc: RNNDescriptor, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for state in desc.states if desc.learned_initial_state else ():
        yield f"{state}0", (desc.hidden_size,)


_BLOCKS = _matrices, _biases, _vectors, _initial_hidden, _initial_others


def start_of_initial_states(desc: RNNDescriptor) -> int:
    """Return where the initial states begin in the flat buffer: its size if the network has none."""
    own = desc.output_size + desc.states_size if desc.learned_initial_state else 0
    return size_of(desc) - desc.num_pseudo_layers * own


def check_size(function: str, desc: RNNDescriptor) -> None:
    """Raise MemoryError for a buffer beyond the address space; NumPy itself raises for smaller ones."""
    nbytes = size_of(desc) * desc.np_dtype.itemsize
    if nbytes > maxsize:
        raise MemoryError(message(function, "desc", f"have weights of at most {maxsize} bytes", nbytes))


def host_array(function: str, argument: str, value: Any) -> np.ndarray:
    """Convert an array, a list or a tensor on the host to a NumPy array."""
    if getattr(value, "requires_grad", False):  # a PyTorch tensor, which NumPy cannot convert then
        value = value.detach()
    if isinstance(value, np.ndarray) and library_of(value) is None:
        raise not_an_array(function, argument, "a plain array", value)
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # an array on a GPU; ragged lists; a conjugated tensor
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(message(function, argument, "be an array on the host", error)) from error


def check_names(
    function: str, argument: str, expected: str, names: Iterable[str], found: Iterable[Any], *cures: str
) -> None:
    """Raise unless exactly these names are found, in any order; the message lists missing and unknown names."""
    wanted, given = dict.fromkeys(names), dict.fromkeys(found)  # sets that keep the order
    differences = {"missing": [n for n in wanted if n not in given], "unknown": [n for n in given if n not in wanted]}
    listed = [f"{what}: {', '.join(map(str, those))}" for what, those in differences.items() if those]
    if listed:
        raise ValueError(
            message(function, argument, f"hold {expected}", f"{len(given)} names", "; ".join([*listed, *cures]))
        )
