"""How a call's tensors stand beside the engine's arrays, which are time-major."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.torch.arrays import library_of

STEPS_FIRST, BATCH_FIRST, ONE_STEP = range(3)  # sequences (T, N, I), (N, T, I), or the step (N, I) of a cell


class Layout(NamedTuple):
    """The order of a call's axes; or the valid steps alone, one after another, of a packed sequence.

    A cell takes and returns states (N, H), and no output beside them.
    """

    shape: tuple[int, int]  # T, N
    order: int = STEPS_FIRST
    rows: Any = None  # of a packed sequence: where step t of sequence n stands, t*N + n

    def time_major(self, array: Any) -> Any:
        """The array as (T, N, ...); what stands in the padding is anything."""
        if self.rows is not None:
            library = library_of(array)
            padded = library.empty((*self.shape, array.shape[-1]), array.dtype)
            padded.reshape(-1, array.shape[-1])[library.asarray(self.rows)] = array
            return padded
        if self.order == STEPS_FIRST or array is None:
            return array
        return array.swapaxes(0, 1) if self.order == BATCH_FIRST else array[None]

    def own(self, array: Any) -> Any:
        """An array (T, N, ...) as the tensor has it."""
        if self.rows is not None:
            return array.reshape(-1, array.shape[-1])[library_of(array).asarray(self.rows)]
        if self.order == STEPS_FIRST:
            return array
        return array.swapaxes(0, 1) if self.order == BATCH_FIRST else array[0]

    def states(self, array: Any) -> Any:
        """States (L*D, N, ...) from or for a tensor's; None of None."""
        return array if self.order != ONE_STEP or array is None else array[None]

    def own_states(self, array: Any) -> Any:
        """States, or their gradient, as the tensor has them; None of None."""
        return array if self.order != ONE_STEP or array is None else array[0]

    def results(self, y: Any, hy: Any, cy: Any) -> tuple[Any, ...]:
        """What the module returns, states one by one: cy is an LSTM's alone."""
        states = (hy,) if cy is None else (hy, cy)
        return tuple(one[0] for one in states) if self.order == ONE_STEP else (self.own(y), *states)

    def num_results(self, desc: RNNDescriptor) -> int:
        """How many these are."""
        return (1 if self.order == ONE_STEP else 2) + desc.has_cell_state

    def cotangents(self, given: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Gradients of y, hy and cy among those of the results."""
        return (None, *given, None)[:3] if self.order == ONE_STEP else (*given, None)[:3]


def joined(states: Sequence[Tensor]) -> Tensor:
    """The states beside h (L*D, N, H) side by side in one tensor (L*D, N, S*H), as the engine has them."""
    return states[0] if len(states) == 1 else torch.cat(tuple(states), -1)


def apart(states: Tensor, count: int) -> tuple[Tensor, ...]:
    """Each of so many states in memory of its own."""
    if count == 1:
        return (states,)
    return tuple(one.clone(memory_format=torch.contiguous_format) for one in states.chunk(count, -1))
