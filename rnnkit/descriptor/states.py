"""States of a network: several besides h are a tuple of arrays in the API and one concatenated array in the engine; and
initial states that belong to the network, which the flat buffer holds.
"""

from __future__ import annotations

from typing import Any

from rnnkit.common.arrays import library_of
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import start_of_initial_states


def concatenate_states(desc: RNNDescriptor, states: Any) -> Any:
    """Concatenate a tuple of S states (L*D, N, H) to (L*D, N, S*H). A single state and None stay as they are."""
    if states is None or len(desc.states) < 2:
        return states
    library: Any = library_of(states[0])
    return library.concatenate(states, axis=2)


def split_states(desc: RNNDescriptor, states: Any) -> Any:
    """Split the array of `concatenate_states` into a tuple of arrays. A single state and None stay as they are."""
    if len(desc.states) < 2:
        return states
    library: Any = library_of(states)
    return tuple(library.ascontiguousarray(one) for one in library.split(states, len(desc.states), axis=2))


def arrays_of(states: Any) -> tuple[Any, ...]:
    """Return the arrays of a state argument, without None."""
    if states is None:
        return ()
    return tuple(one for one in states if one is not None) if isinstance(states, tuple) else (states,)


def learned_states(desc: RNNDescriptor, w: Any, batch_size: int) -> tuple[Any, Any]:
    """Return the network's own initial states for so many sequences, (L*D, N, P) and (L*D, N, S*H) or None; None, None
    if it has none."""
    if not desc.learned_initial_state:
        return None, None
    h, others = _parts(desc, w)
    return _repeated(h, batch_size), None if others is None else _repeated(others, batch_size)


def _repeated(part: Any, batch_size: int) -> Any:
    library: Any = library_of(part)
    found = library.empty((len(part), batch_size, part.shape[-1]), part.dtype)
    found[...] = part
    return found


def add_state_gradients(desc: RNNDescriptor, dw: Any, dhx: Any, dcx: Any) -> None:
    """Add the gradients of `learned_states`, summed over the sequences, to dw; None adds nothing."""
    for part, gradient in zip(_parts(desc, dw), (dhx, dcx), strict=True):
        if part is not None and gradient is not None:
            part += gradient.sum(axis=1, keepdims=True)


def _parts(desc: RNNDescriptor, w: Any) -> tuple[Any, Any]:
    """Return views (L*D, 1, P) and (L*D, 1, S*H), or None, of the initial states in a flat buffer."""
    rows, start = desc.num_pseudo_layers, start_of_initial_states(desc)
    middle = start + rows * desc.output_size
    cells = w[middle:].reshape(rows, 1, desc.states_size) if desc.has_cell_state else None
    return w[start:middle].reshape(rows, 1, desc.output_size), cells
