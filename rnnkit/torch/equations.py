"""Runs calls on PyTorch's operations, from the equations of the cell, where the engine cannot run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import dropout

from rnnkit.call.side_inputs import split
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import suffix_of, weight_layout
from rnnkit.equations.unrolled import unrolled
from rnnkit.torch.arrays import without_autocast
from rnnkit.torch.layout import Layout, concatenate_states, split_states

Drawn = tuple[Sequence[Any], dict[str, Any]]
"""The dropout masks and the noises of a call, as `unrolled` takes them."""


def results(
    desc: RNNDescriptor,
    layout: Layout,
    marks: dict[str, Any],
    drawn: Drawn,
    tensors: Sequence[Any],
    all_states: bool = False,
) -> tuple[Tensor, ...]:
    """Run a call on x, hx, cx and the parameters; return its results, then with `all_states` those after each step.

    `marks` are lengths, and resets and mask (T, N).
    """
    device, has_options = tensors[0].device, any(drawn) or any(one is not None for one in marks.values())
    is_of_pytorch = not (has_options or all_states) and _is_of_pytorch(desc, layout)
    with without_autocast(device):
        if is_of_pytorch:
            return _by_pytorch(desc, layout, *tensors)
        return _by_equations(desc, layout, marks, drawn, tensors, all_states)


def _by_equations(
    desc: RNNDescriptor, layout: Layout, marks: dict[str, Any], drawn: Drawn, tensors: Sequence[Any], all_states: bool
) -> tuple[Tensor, ...]:
    x, hx, cx, *parameters = tensors
    weights = {block.name: one for block, one in zip(weight_layout(desc), parameters, strict=True)}
    x, inputs = split(desc, layout.time_major(x))
    hx, cx = layout.states(hx), layout.states(cx)
    states = None if cx is None else split_states(cx, len(desc.states))
    masks, noises = ([_like(one, x) for one in drawn[0]], {name: _like(one, x) for name, one in drawn[1].items()})
    given = {"inputs": inputs, "masks": masks or None, "noises": noises, "all_states": all_states}
    found = unrolled(desc, "torch")(weights, x, hx, states, **marks, **given)
    cy = None if found.cy is None else concatenate_states(found.cy if isinstance(found.cy, tuple) else (found.cy,))
    return *layout.results(found.y, found.hy, cy), *found.states


def _is_of_pytorch(desc: RNNDescriptor, layout: Layout) -> bool:
    """Whether PyTorch's own function runs such a network, twice as fast as a loop in Python with few units.

    It cannot be mapped by torch.vmap, and differentiated in forward mode only in part.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return False
    is_usual = desc.bias in ("both", "none") and desc.input_mode == "linear" and desc.cell_clip is None
    is_mode = isinstance(desc.mode, str) and desc.reset_after and is_usual
    return is_mode and not desc.learned_initial_state and layout.rows is None and layout.shape[0] > 0


def _by_pytorch(
    desc: RNNDescriptor, layout: Layout, x: Tensor, hx: Any, cx: Any, *parameters: Any
) -> tuple[Tensor, ...]:
    named = {block.name: one for block, one in zip(weight_layout(desc), parameters, strict=True)}
    order = "weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l", "weight_hr_l"
    rows = [suffix_of(*divmod(row, desc.num_directions)).removeprefix("_l") for row in range(desc.num_pseudo_layers)]
    flat = [named[f"{name}{row}"] for row in rows for name in order if f"{name}{row}" in named]
    x, given = layout.time_major(x), (layout.states(hx), layout.states(cx))
    sizes = (desc.output_size, desc.hidden_size)[: 1 + desc.has_cell_state]
    pairs, shape = zip(given, sizes, strict=False), (desc.num_pseudo_layers, layout.shape[1])
    states = [x.new_zeros(*shape, size) if one is None else one for one, size in pairs]
    given = states if desc.has_cell_state else states[0]
    options = desc.bias == "both", desc.num_layers, 0.0, False, desc.bidirectional, False
    with torch.backends.cudnn.flags(enabled=False):  # cuDNN has no second derivatives
        y, hy, *cy = getattr(torch, desc.mode)(x, given, flat, *options)
    return layout.results(y, hy, cy[0] if cy else None)


def _like(array: Any, x: Tensor) -> Tensor:
    return torch.as_tensor(array, device=x.device)


def draw(desc: RNNDescriptor, shape: tuple[int, int], like: Tensor) -> Drawn:
    """Draw random numbers from PyTorch's generator, for (T, N) steps; with vmap, as its `randomness` says."""
    rows, size = desc.num_pseudo_layers, desc.hidden_size
    ones = lambda *shape: torch.ones(shape, dtype=like.dtype, device=like.device)  # noqa: E731
    width, layers = desc.num_directions * desc.output_size, desc.num_layers - 1
    masks = [dropout(ones(*shape, width), desc.dropout) for _ in range(layers)] if desc.dropout > 0 else []
    noises = {}
    for one in desc.cell.declaration.noises if desc.draws_noise else ():
        rate, steps = float(getattr(desc.cell, one.rate)), shape if one.per_step else shape[1:]
        ones_of_noise = ones(rows, *steps, size)
        noises[one.name] = torch.bernoulli(ones_of_noise * rate) if one.choice else dropout(ones_of_noise, rate)
    return masks, noises
