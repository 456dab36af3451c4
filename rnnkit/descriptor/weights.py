"""The flat weight buffer: the one place for the order of its blocks.

The order is cuDNN's weight space (and that of MXNet's RNN operator), without padding or alignment: first the matrices
of every pseudo-layer, then the biases of every pseudo-layer, then the vectors of every pseudo-layer, if the cell has
some.  Size, views, packing and initialisation derive from it.
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
from rnnkit.kernels.cells.cell import Scalar

_DRAW_CHUNK = 1 << 16  # numbers drawn at once in float64: the buffer itself is then all the memory that is taken
_MAX_LAYOUTS = 64  # descriptors whose layout is kept: a program has few at a time, a search through many must not keep all


class WeightBlock(NamedTuple):
    """One named block of the flat buffer: ``w[start:start + prod(shape)].reshape(shape)``.

    Attributes
    ----------
    name : str
        PyTorch's name, ``weight_hh_l1_reverse`` for example.
    shape : tuple of int
        Rows are the gates in the order of :class:`rnnkit.RNNDescriptor`, hidden_size each; ``weight_hr`` (projection)
        is (proj_size, hidden_size).
    start : int
        Index of its first element in the buffer.
    """

    name: str
    shape: tuple[int, ...]
    start: int


def weight_layout(desc: RNNDescriptor) -> tuple[WeightBlock, ...]:
    """Return the blocks of the flat buffer, in its order and without gaps.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.

    Returns
    -------
    tuple of :class:`WeightBlock`
        Name, shape and start of each.

    Raises
    ------
    TypeError
        `desc` is no RNNDescriptor.

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
    """Return the number of elements of the flat buffer.

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
        `desc` is no RNNDescriptor.

    Examples
    --------
    >>> from rnnkit.descriptor.descriptor import RNNDescriptor
    >>> num_weights(RNNDescriptor("gru", 3, 2))
    42
    """
    check_descriptor("num_weights", desc)
    return _size(desc)


def weight_views(desc: RNNDescriptor, w: Any) -> dict[str, Any]:
    """Return the named blocks as views of the buffer: writing a view writes the buffer.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    w : ndarray (num_weights,), desc.dtype
        The flat buffer (or a gradient in its layout), C-contiguous; a NumPy or a CuPy array.

    Returns
    -------
    dict of str to ndarray
        In the order of the buffer.

    Raises
    ------
    TypeError
        `w` is no array of the descriptor's dtype.
    ValueError
        `w` has another shape, or is not contiguous.

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
    """Return a new buffer, every weight and bias uniform in [-1/sqrt(hidden_size), 1/sqrt(hidden_size)].

    A cell's vectors are drawn as it declares them.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    seed : int, optional
        Seed of the draw, or whatever else ``numpy.random.default_rng`` takes.  The numbers are drawn in float64 in the
        buffer's order, so that both dtypes get the same ones up to rounding.

    Returns
    -------
    ndarray (num_weights,), desc.dtype
        The flat buffer.

    Raises
    ------
    TypeError, ValueError
        `desc` is no RNNDescriptor, or NumPy refuses the seed.
    MemoryError
        The buffer does not fit into memory.

    Notes
    -----
    The range is that of PyTorch's recurrent layers.
    """
    check_descriptor("init_weights", desc)
    check_size("init_weights", desc)
    try:
        rng = np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(message("init_weights", "seed", "be what default_rng takes", error)) from error
    bound = 1.0 / sqrt(desc.hidden_size)
    w = np.empty(_size(desc), desc.np_dtype)
    vectors = desc.cell.declaration.vectors
    own = _layout(desc)[len(_layout(desc)) - desc.num_pseudo_layers * len(vectors) :]
    end = own[0].start if own else w.size
    for start in range(0, end, _DRAW_CHUNK):
        part = w[start : min(start + _DRAW_CHUNK, end)]
        part[:] = uniform(rng, -bound, bound, part.size)
    for number, (_, shape, start) in enumerate(own):
        _, low, high = vectors[number % len(vectors)]
        ends = -bound if low is None else low, bound if high is None else high
        w[start : start + shape[0]] = uniform(rng, *ends, shape)
    return w


def pack_weights(desc: RNNDescriptor, named: Mapping[str, Any]) -> np.ndarray:
    """Return a new buffer filled from named arrays, such as a PyTorch ``state_dict``.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    named : mapping of str to array_like
        One array for each name of ``weight_layout(desc)``, of that shape and of the descriptor's dtype.  The parameters
        of a PyTorch module (``dict(module.named_parameters())``) are taken by their values, on the host.

    Returns
    -------
    ndarray (num_weights,), desc.dtype
        The flat buffer, a copy.

    Raises
    ------
    TypeError
        `named` is no mapping, or an array has another dtype, or is not on the host.
    ValueError
        Names are missing or unknown, or shapes differ (the message lists all of them), or a value is no array.

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
    misshapen = [
        f"{name} {arrays[name].shape} for {shape}" for name, shape, _ in layout if arrays[name].shape != shape
    ]
    if misshapen:
        expected = "have the shapes of weight_layout(desc)"
        raise ValueError(message("pack_weights", "named", expected, ", ".join(misshapen)))
    for name, array in arrays.items():
        if array.dtype != desc.np_dtype:
            raise wrong_dtype("pack_weights", f'named["{name}"]', desc.dtype, array.dtype)
    return np.concatenate([array.ravel() for array in arrays.values()])


def suffix_of(layer: int, direction: int) -> str:
    """Return what the names of a pseudo-layer's blocks end with."""
    return f"_l{layer}" + ("_reverse" if direction else "")


def check_weights(function: str, argument: str, w: Any, desc: RNNDescriptor) -> None:
    """Check a flat buffer on whichever device: it needs only a dtype, a shape and flags."""
    if isinstance(w, np.ndarray) and library_of(w) is None:
        raise not_an_array(function, argument, "a plain array", w)
    if not (hasattr(w, "dtype") and hasattr(w, "shape") and hasattr(w, "flags")):
        raise wrong_type(function, argument, "an array", w)
    if w.dtype != desc.np_dtype:
        raise wrong_dtype(function, argument, desc.dtype, w.dtype)
    if w.shape != (_size(desc),):
        raise wrong_shape(function, argument, (_size(desc),), ("num_weights",), w.shape)
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


@lru_cache(_MAX_LAYOUTS)
def _size(desc: RNNDescriptor) -> int:
    first, above = (
        sum(prod(shape) for blocks in _BLOCKS for _, shape in blocks(desc, layer))
        for layer in (0, 1)  # those above are like layer 1
    )
    return desc.num_directions * (first + (desc.num_layers - 1) * above)


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


_BLOCKS = _matrices, _biases, _vectors


def check_size(function: str, desc: RNNDescriptor, extra: int = 0) -> None:
    """Refuse a buffer that no address space holds; of what is smaller, NumPy says how much memory it could not get."""
    nbytes = (_size(desc) + extra) * desc.np_dtype.itemsize
    if nbytes > maxsize:
        raise MemoryError(message(function, "desc", f"have weights of at most {maxsize} bytes", nbytes))


def host_array(function: str, argument: str, value: Any) -> np.ndarray:
    """Return an array of what converts itself to one: NumPy's own, a list, a tensor on the host."""
    if getattr(value, "requires_grad", False):  # a PyTorch tensor, which does not convert itself then
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
    """Check that exactly these names are found, in any order; the message lists what is missing and unknown."""
    wanted, given = dict.fromkeys(names), dict.fromkeys(found)  # sets that keep the order
    differences = {"missing": [n for n in wanted if n not in given], "unknown": [n for n in given if n not in wanted]}
    listed = [f"{what}: {', '.join(map(str, those))}" for what, those in differences.items() if those]
    if listed:
        raise ValueError(
            message(function, argument, f"hold {expected}", f"{len(given)} names", "; ".join([*listed, *cures]))
        )
