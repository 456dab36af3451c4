"""The states beside h of a cell that has several: a tuple of arrays outside, side by side in one array inside."""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnkit.descriptor.descriptor import RNNDescriptor


def concatenate_states(desc: RNNDescriptor, states: Any) -> Any:
    """Return the states (L*D, N, H) of a tuple in one array (L*D, N, S*H); a single state and None as they are."""
    return states if states is None or len(desc.states) < 2 else np.concatenate(states, axis=2)


def split_states(desc: RNNDescriptor, states: Any) -> Any:
    """Return each state in an array of its own; a single state and None as they are."""
    if len(desc.states) < 2:
        return states
    return tuple(np.ascontiguousarray(one) for one in np.split(states, len(desc.states), axis=2))


def arrays_of(states: Any) -> tuple[Any, ...]:
    """Return the arrays of what a user gives for states, those that are there."""
    if states is None:
        return ()
    return tuple(one for one in states if one is not None) if isinstance(states, tuple) else (states,)
