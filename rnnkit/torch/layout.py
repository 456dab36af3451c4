"""Conversion between a call's tensor layout and the engine's time-major arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.torch.arrays import library_of

STEPS_FIRST, BATCH_FIRST, ONE_STEP = range(3)  # sequences (T, N, I), (N, T, I), or the step (N, I) of a cell


class Layout(NamedTuple):
    """Order of a call's axes, or the rows of a packed sequence, which has only the valid steps.

    A cell takes and returns states (N, H), and has no other output.
    """

    shape: tuple[int, int]  # T, N
    order: int = STEPS_FIRST
    rows: Any = None  # of a packed sequence: t*N + n for step t of sequence n

    def time_major(self, array: Any) -> Any:
        """Return the array as (T, N, ...); padding is undefined."""
        if self.rows is not None:
            if isinstance(array, Tensor):  # by equations
                places = np.zeros(self.shape, np.int64)
                places.reshape(-1)[self.rows] = np.arange(len(self.rows))
                return array[torch.as_tensor(places, device=array.device)]
            library = library_of(array)
            padded = library.empty((*self.shape, array.shape[-1]), array.dtype)
            padded.reshape(-1, array.shape[-1])[library.asarray(self.rows)] = array
            return padded
        if self.order == STEPS_FIRST or array is None:
            return array
        return array.swapaxes(0, 1) if self.order == BATCH_FIRST else array[None]

    def to_tensor_layout(self, array: Any) -> Any:
        """Convert an array (T, N, ...) to the tensor's layout."""
        if self.rows is not None:
            rows = torch.as_tensor(self.rows) if isinstance(array, Tensor) else library_of(array).asarray(self.rows)
            return array.reshape(-1, array.shape[-1])[rows]
        if self.order == STEPS_FIRST:
            return array
        return array.swapaxes(0, 1) if self.order == BATCH_FIRST else array[0]

    def states(self, array: Any) -> Any:
        """Convert a tensor's states to (L*D, N, ...); None stays None."""
        return array if self.order != ONE_STEP or array is None else array[None]

    def to_tensor_states(self, array: Any) -> Any:
        """Convert states (L*D, N, ...), or their gradient, to the tensor's layout; None stays None."""
        return array if self.order != ONE_STEP or array is None else array[0]

    def results(self, y: Any, hy: Any, cy: Any) -> tuple[Any, ...]:
        """Return the module's results; cy is None except for cells with a cell state."""
        states = (hy,) if cy is None else (hy, cy)
        return tuple(state[0] for state in states) if self.order == ONE_STEP else (self.to_tensor_layout(y), *states)

    def num_results(self, desc: RNNDescriptor) -> int:
        """Return the number of results."""
        return (1 if self.order == ONE_STEP else 2) + desc.has_cell_state

    def cotangents(self, given: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Return the gradients of y, hy and cy from those of the results."""
        return (None, *given, None)[:3] if self.order == ONE_STEP else (*given, None)[:3]


def concatenate_states(states: Sequence[Tensor]) -> Tensor:
    """Concatenate the states other than h, (L*D, N, H) each, to one tensor (L*D, N, S*H), the engine's cx."""
    return states[0] if len(states) == 1 else torch.cat(tuple(states), -1)


def split_states(states: Tensor, count: int) -> tuple[Tensor, ...]:
    """Split concatenated states into `count` tensors, each contiguous."""
    if count == 1:
        return (states,)
    return tuple(state.clone(memory_format=torch.contiguous_format) for state in states.chunk(count, -1))
