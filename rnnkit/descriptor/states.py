"""Cells with several states besides h: a tuple of arrays in the API, one concatenated array in the engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnkit.descriptor.descriptor import RNNDescriptor


def concatenate_states(desc: RNNDescriptor, states: Any) -> Any:
    """Concatenate a tuple of S states (L*D, N, H) to (L*D, N, S*H). A single state and None stay as they are."""
    return states if states is None or len(desc.states) < 2 else np.concatenate(states, axis=2)


def split_states(desc: RNNDescriptor, states: Any) -> Any:
    """Split the array of `concatenate_states` into a tuple of arrays. A single state and None stay as they are."""
    if len(desc.states) < 2:
        return states
    return tuple(np.ascontiguousarray(one) for one in np.split(states, len(desc.states), axis=2))


def arrays_of(states: Any) -> tuple[Any, ...]:
    """Return the arrays of a state argument, without None."""
    if states is None:
        return ()
    return tuple(one for one in states if one is not None) if isinstance(states, tuple) else (states,)
