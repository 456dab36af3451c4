"""Gradients of single sequences: the backward of each sequence of a batch by itself.

What the workspace saved of a sequence is copied to a workspace of its own, from which backward runs. Where it did not
save all, or not in this form, the sequence runs forward again, alone. So a gradient has the bits of a call with that
sequence alone, whatever the cell, options and device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from rnnkit.call.side_inputs import split, split_gradient
from rnnkit.call.workspace import Workspace
from rnnkit.common.arrays import library_of
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.states import concatenate_states, split_states
from rnnkit.errors import BackendError, message, wrong_type
from rnnkit.network.results import Backward, BackwardWithInputs


def rows_of(rows: Any, batch_size: int) -> Sequence[int]:
    """Return the indices of the chosen sequences; None is all.

    Raises
    ------
    TypeError, ValueError
        `rows` is neither a slice nor a sequence of ints, or one is out of range or listed twice.
    """
    if rows is None or isinstance(rows, slice):
        return range(batch_size)[rows or slice(None)]
    try:
        listed = np.asarray(rows)
    except ValueError:  # a ragged list
        raise wrong_type("backward", "rows", "a slice or a sequence of ints", rows) from None
    if listed.ndim != 1 or (listed.size and not np.issubdtype(listed.dtype, np.integer)):
        raise wrong_type("backward", "rows", "a slice or a sequence of ints", rows)
    found = [int(one) for one in listed]
    if any(not 0 <= one < batch_size for one in found) or len({*found}) < len(found):
        expected = f"hold different numbers in 0..batch_size-1={batch_size - 1}"
        raise ValueError(message("backward", "rows", expected, str(found[:8])))
    return found


def backward_of_each(
    forward: Callable[..., Any],
    gradients_of: Callable[..., Any],
    copied: Any,
    desc: RNNDescriptor,
    w: Any,
    workspace: Workspace,
    dy: Any,
    dhy: Any,
    dcy: Any,
    dw: Any,
    rows: Sequence[int],
) -> Backward[Any] | BackwardWithInputs[Any]:
    """Return the gradients of these sequences, dw as (rows, num_weights), by the engine's `forward` and `gradients_of`.

    `copied` gives the workspace of each sequence; None: they run forward again. All arguments are checked but dw, which
    is added to if it is given.
    """
    library, count = library_of(w), len(rows)
    _check(desc, w, dw, count, library)
    shape, dcy = (desc.num_pseudo_layers, count), concatenate_states(desc, dcy)
    dws = _new(library, (count, *w.shape), w.dtype) if dw is None else dw
    dx = library.zeros((workspace.options.seq_len, count, desc.row_size), w.dtype)
    dhx = library.empty((*shape, desc.output_size), w.dtype)
    dcx = library.empty((*shape, desc.states_size), w.dtype) if desc.has_cell_state else None
    alone = None
    # The longest first: what is prepared for it, in memory of its size, serves the others.
    for place in np.argsort([-int(workspace.steps.lengths[row]) for row in rows], kind="stable"):
        row = rows[place]
        if copied is None:
            length, alone = _forward_alone(forward, desc, w, workspace, row, alone)
        else:
            length, alone = copied.of(row)
        of_row = (None if one is None else one[:, row : row + 1] for one in (dy, dhy, dcy))
        dy_row, *of_states, of_cells = of_row
        dy_row, of_cells = None if dy_row is None else dy_row[:length], split_states(desc, of_cells)
        found = gradients_of(desc, w, alone, dy_row, *of_states, of_cells, None if dw is None else dws[place])
        of_inputs = found.inputs.values() if desc.inputs_size else ()
        dx[:length, place] = library.concatenate([found.dx, *of_inputs], axis=2)[:, 0]
        dhx[:, place] = found.dhx[:, 0]
        if dcx is not None:
            dcx[:, place] = concatenate_states(desc, found.dcx)[:, 0]
        if dw is None:
            dws[place] = found.dw
    dcx = None if dcx is None else split_states(desc, dcx)
    if not workspace.input_shapes:
        return Backward(dx, dhx, dcx, dws)
    shapes = {name: (*shape[:-2], count, shape[-1]) for name, shape in workspace.input_shapes.items()}
    dx, of_inputs = split_gradient(desc, dx, shapes)
    return BackwardWithInputs(dx, dhx, dcx, dws, of_inputs)


def _check(desc: RNNDescriptor, w: Any, dw: Any, count: int, library: Any) -> None:
    if library is not np and desc.draws:
        expected = "be False for a network with dropout or noises on a GPU, whose random numbers are those of the batch"
        raise BackendError(message("backward", "per_sequence", expected, True))
    if dw is None:
        return
    if getattr(dw, "shape", None) != (count, *w.shape):
        got = getattr(dw, "shape", type(dw).__name__)
        raise ValueError(message("backward", "dw", f"have shape {(count, *w.shape)} (rows, num_weights)", got))


def _new(library: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a new array for dw; the error names what a smaller one takes."""
    try:
        return library.empty(shape, dtype)
    except MemoryError as error:
        expected = (
            f"fit in memory: {shape[0]} gradients of {shape[1]} weights take {prod(shape) * dtype.itemsize} bytes"
        )
        raise MemoryError(
            message("backward", "dw", expected, str(error), "pass rows, some sequences at a time")
        ) from error


def _forward_alone(
    forward: Callable[..., Any],
    desc: RNNDescriptor,
    w: Any,
    workspace: Workspace,
    row: int,
    earlier: Workspace | None,
) -> tuple[int, Workspace]:
    """Run a sequence of the batch forward, alone, in the memory of an earlier one. Return its length and workspace."""
    options, steps, mask = workspace.options, workspace.steps, workspace.options.mask
    lengths = steps.lengths if mask is None else mask.lengths
    length = int(lengths[row]) if lengths.size else options.seq_len
    resets = None if steps.resets is None else steps.resets.marks[0, :-1] > 0
    if mask is not None and resets is not None:
        resets = mask.spread(resets)
    marks = {"resets": resets, "mask": None if mask is None else mask.listed}
    marks = {name: None if one is None else one[:length, row : row + 1] for name, one in marks.items()}
    x, inputs = split(desc, workspace.inputs["x"][:length, row : row + 1])
    given = zip(("hx", "cx"), workspace.given_states, strict=True)
    hx, cx = (workspace.inputs[name][:, row : row + 1] if is_given else None for name, is_given in given)
    initial = "hx" if steps.resets is not None and steps.resets.from_hx else "zeros"
    arguments = desc, w, x, hx, None if cx is None else split_states(desc, cx)
    found = forward(
        *arguments,
        inputs=inputs,
        initial=initial,
        seed=workspace.seed,
        first_row=options.first_row + row,
        workspace=earlier,
        checkpoint_steps=workspace.checkpoint_steps,
        precision=options.precision,
        **marks,
    )
    return length, found.workspace
