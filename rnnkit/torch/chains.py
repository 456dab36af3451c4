"""Chains of calls of one step, as loops over time make them: they add up one gradient of all parameters themselves.

Autograd would read and write all of it once more for each call, which took a tenth of a chain's time (H = 256).
"""

from __future__ import annotations

from operator import is_
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import torch

from rnnkit.call.memory import popped
from rnnkit.descriptor.weights import num_weights
from rnnkit.network import engine
from rnnkit.torch.arrays import to_array
from rnnkit.torch.function import once, views
from rnnkit.torch.gradient_memory import give_back
from rnnkit.torch.plain import Found, Size
from rnnkit.torch.threads import threads

_backward_pass = torch._C._current_graph_task_id


class Joined(NamedTuple):
    """The parameters of a chain of calls, whether each wants a gradient, a tensor that stands for all of them, and its
    gradients."""

    parameters: tuple[Any, ...]
    wanted: list[bool]
    tensor: torch.Tensor
    sums: Sums


def joined(found: Found, parameters: tuple[Any, ...]) -> Joined:
    """The same for all calls of one step until other parameters come."""
    wanted = [one.requires_grad for one in parameters]
    for own in found.joined:
        if own.wanted == wanted and all(map(is_, own.parameters, parameters)):
            return own
    sums = Sums()
    own = Joined(parameters, wanted, _join(found, sums, *parameters), sums)
    found.joined.append(own)
    return own


class Sums:
    """What backward passes of autograd add up, by the number of each pass."""

    def __init__(self) -> None:
        self._sums: dict[int, Sum] = {}

    def begun(self) -> Sum | None:
        """That of this pass; None in the first call that it comes to."""
        own = self._sums.get(_backward_pass())
        return own if own is not None and own.dw() is not None else None

    def begin(self, dw: np.ndarray) -> torch.Tensor:
        """Let the calls to come in this pass add to the gradient of this one; it is returned for autograd."""
        for number, other in list(self._sums.items()):
            if other.dw() is None:  # of a pass that did not come to its end, or where no parameter's is wanted
                self._sums.pop(number, None)
        self._sums[_backward_pass()] = Sum(dw)
        return torch.from_numpy(dw)

    def end(self) -> Sum | None:
        """That of this pass, to which nobody adds any more."""
        return self._sums.pop(_backward_pass(), None)


class Sum:
    """The gradient that the calls of one pass add to: the first one's, for as long as autograd keeps it. It hands it on
    when no call is left."""

    def __init__(self, dw: np.ndarray) -> None:
        self.dw = ref(dw)
        self._gathered: dict[tuple[int, int], tuple[Size, Any]] = {}

    def place(self, found: Found, size: Size) -> tuple[Any, Any]:
        """The gradient that a call adds its own to; or 0, and what gathers several calls of this size."""
        if size.gathered is None:
            return self.dw(), None
        shape = size.layout.shape
        if shape not in self._gathered:
            new = popped(size.gathered) or engine.small_calls().Gathered(found.desc, shape[1], size.threads)
            self._gathered[shape] = size, new
        _, gathered = self._gathered[shape]
        if gathered.is_full:
            with threads():
                gathered.add_to(self.dw())
        return 0, gathered

    def finish(self, dw: np.ndarray) -> None:
        """Add what is gathered to the gradient."""
        for size, gathered in self._gathered.values():
            with threads():
                gathered.add_to(dw)
            size.gathered.append(gathered)


class _Joined(torch.autograd.Function):
    """What stands for all parameters in the calls of a chain, and has no memory: its gradient is the flat one."""

    @staticmethod
    def forward(ctx, found, sums, *parameters):
        ctx.of = found, sums
        return parameters[0].new_empty(1).expand(num_weights(found.desc))

    @staticmethod
    def backward(ctx, gradient):
        (found, sums), dw = ctx.of, to_array(gradient.contiguous())
        total = sums.end()
        if total is not None:
            total.finish(dw)
            give_back(found, total.dw())
        return None, None, *once(views(found.desc, dw), gradient)


# PyTorch's own looks for transforms first, in 4 us: none is about where a call is plain.
_join = super(torch.autograd.Function, _Joined).apply
