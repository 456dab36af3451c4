"""Chains of single-step calls in a loop over time: they add up the gradient of the parameters themselves.

Autograd would read and write the whole gradient once more per call, a tenth of a chain's time (H = 256).
"""

from __future__ import annotations

from collections import deque
from operator import is_
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import torch

from rnnkit.descriptor.weights import num_weights
from rnnkit.network import engine
from rnnkit.torch import fallback
from rnnkit.torch.arrays import to_array
from rnnkit.torch.function import blocks_of, views
from rnnkit.torch.gradient_memory import Gradient, give_back
from rnnkit.torch.plain import FlatParameters, PreparedSize
from rnnkit.torch.threads import threads

_backward_pass = torch._C._current_graph_task_id


def _popped(idle: deque[Any]) -> Any:
    try:
        return idle.pop()
    except IndexError:  # another thread may take the last one at any moment
        return None


class ChainParameters(NamedTuple):
    """The parameters of a chain of calls."""

    parameters: tuple[Any, ...]
    wanted: list[bool]  # whether each requires a gradient
    tensor: torch.Tensor  # placeholder for all parameters
    sums: ChainGradients


def chain_parameters(flat: FlatParameters, parameters: tuple[Any, ...]) -> ChainParameters:
    """Return the chain's parameters, cached until the parameters change."""
    wanted = [parameter.requires_grad for parameter in parameters]
    for chain in flat.chains:
        if chain.wanted == wanted and all(map(is_, chain.parameters, parameters)):
            return chain
    sums = ChainGradients()
    chain = ChainParameters(parameters, wanted, _flat_parameter(flat, sums, *parameters), sums)
    flat.chains.append(chain)
    return chain


class ChainGradients:
    """Gradients of a chain that are being added up, by the id of autograd's backward pass."""

    def __init__(self) -> None:
        self._sums: dict[int, ChainGradient] = {}

    def current(self) -> ChainGradient | None:
        """Return the gradient of this pass, or None in its first call."""
        total = self._sums.get(_backward_pass())
        return total if total is not None and total.dw() is not None else None

    def begin(self, dw: np.ndarray) -> torch.Tensor:
        """Start a pass with the gradient of its first call; later calls add to it. Returns it as a tensor."""
        for number, other in list(self._sums.items()):
            if other.dw() is None:  # stale: an aborted pass, or no parameter requires a gradient
                self._sums.pop(number, None)
        self._sums[_backward_pass()] = ChainGradient(dw)
        return torch.from_numpy(dw)

    def end(self) -> ChainGradient | None:
        """Finish this pass and return its gradient."""
        return self._sums.pop(_backward_pass(), None)


class ChainGradient:
    """The gradient that the calls of one pass add to: a weak reference to the first call's dw, which autograd owns and
    passes on after the last call."""

    def __init__(self, dw: np.ndarray) -> None:
        self.dw = ref(dw)
        self._gathered: dict[tuple[int, int], tuple[PreparedSize, Any]] = {}

    def place(self, flat: FlatParameters, size: PreparedSize) -> tuple[Any, Any]:
        """Return the target of a call's gradient: (dw, None), or (0, the `Gathered` of calls of this size)."""
        if size.gathered is None:
            return self.dw(), None
        shape = size.layout.shape
        if shape not in self._gathered:
            new = _popped(size.gathered) or engine.cpu_module("prepared").Gathered(flat.desc, shape[1], size.threads)
            self._gathered[shape] = size, new
        _, gathered = self._gathered[shape]
        if gathered.is_full:
            with threads():
                gathered.add_to(self.dw())
        return 0, gathered

    def finish(self, dw: np.ndarray) -> None:
        """Add the gathered gradients to dw."""
        for size, gathered in self._gathered.values():
            with threads():
                gathered.add_to(dw)
            size.gathered.append(gathered)


class _FlatParameter(torch.autograd.Function):
    """Placeholder for all parameters in the calls of a chain, without memory; its gradient is the flat dw."""

    @staticmethod
    def forward(ctx, flat, sums, *parameters):
        ctx.of = flat, sums
        return parameters[0].new_empty(1).expand(num_weights(flat.desc))

    @staticmethod
    def backward(ctx, gradient):
        flat, sums = ctx.of
        if torch.is_grad_enabled() or fallback.transformed(gradient):  # each call has returned its whole gradient
            return None, None, *(gradient[at].reshape(shape) for at, shape in blocks_of(flat.desc))
        dw = to_array(gradient.contiguous())
        total = sums.end()
        if total is not None:
            total.finish(dw)
            if (own := total.dw()) is not None:
                give_back(flat, Gradient(flat, own))
        return None, None, *views(flat.desc, dw)


# Skips the check for functorch transforms in Function.apply (4 us): a plain call is in none.
_flat_parameter = super(torch.autograd.Function, _FlatParameter).apply
