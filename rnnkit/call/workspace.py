"""The workspace: what a training forward leaves for backward. Layout, views and stamp; no mathematics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.memory import Memory
from rnnkit.call.options import CallOptions, checked_checkpoint_steps
from rnnkit.call.steps import segments_of, states_shape
from rnnkit.descriptor.descriptor import RNNDescriptor, check_descriptor
from rnnkit.errors import BackendError, WorkspaceError, message, wrong_type
from rnnkit.kernels.cells.declaration import mean_blocks
from rnnkit.kernels.cells.modes import modes_with


class Block(NamedTuple):
    """One array of the workspace."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


@lru_cache(64)
def gate_columns(desc: RNNDescriptor) -> int:
    """Return the numbers that a step keeps per row: activated gates, what else the gradient of the cell needs, the sums
    that its means are made of, and what a projection multiplies."""
    declaration, size = desc.cell.declaration, desc.hidden_size
    return (len(declaration.slots) + desc.projected) * size + len(declaration.means) * mean_blocks(size)


def workspace_layout(
    desc: RNNDescriptor, seq_len: int, batch_size: int, pseudo_layers: Sequence[int] | None = None,
    resets: bool = False,
) -> tuple[Block, ...]:
    """Return the arrays of a workspace, or what some pseudo-layers have of them.

    Hidden states and cells are arrays of `states_shape`.
    """
    dtype, states = desc.np_dtype, states_shape(seq_len, batch_size, desc.num_directions, resets)
    width = desc.num_directions * desc.output_size
    if pseudo_layers is None:
        pseudo_layers = range(desc.num_pseudo_layers)
    layers = sorted({pseudo_layer // desc.num_directions for pseudo_layer in pseudo_layers})
    blocks = [Block(f"hidden_l{layer}", (*states, width), dtype) for layer in layers]
    for pseudo_layer in pseudo_layers:
        blocks.append(Block(f"gates_{pseudo_layer}", (seq_len, batch_size, gate_columns(desc)), dtype))
        if desc.has_cell_state:
            blocks.append(Block(f"cell_{pseudo_layer}", (*states, desc.states_size), dtype))
        per_step = [noise.per_step for noise in desc.cell.declaration.noises if desc.draws_noise]
        if False in per_step:
            shape = batch_size, per_step.count(False) * desc.hidden_size
            blocks.append(Block(f"noises_{pseudo_layer}", shape, dtype))
        if True in per_step:
            shape = seq_len, batch_size, per_step.count(True) * desc.hidden_size
            blocks.append(Block(f"step_noises_{pseudo_layer}", shape, dtype))
    if desc.dropout > 0:
        for layer in filter(None, layers):  # nothing is dropped in front of the first
            blocks.append(Block(f"mask_l{layer}", (seq_len, batch_size, width), np.dtype(bool)))
            blocks.append(Block(f"input_l{layer}", (seq_len, batch_size, width), dtype))
    return tuple(blocks)


def chains(desc: RNNDescriptor) -> list[tuple[int, ...]]:
    """Return the pseudo-layers that go through the segments between checkpoints together, in forward's order.

    Those of one direction do: none needs more of another than a segment. Of two directions each goes its own way, and
    the layer above needs all that they put out. Backward goes from the last to the first: forward before reverse.
    """
    if desc.num_directions == 1:
        return [tuple(range(desc.num_layers))]
    return [(2 * layer + direction,) for layer in range(desc.num_layers) for direction in (1, 0)]


def checkpoint_layout(desc: RNNDescriptor, seq_len: int, batch_size: int, checkpoint_steps: int) -> tuple[Block, ...]:
    """Return the arrays of a workspace with checkpoints: the states in front of each segment, and of two directions the
    outputs of all layers but the last, with a step in front and behind as hidden states have."""
    dtype = desc.np_dtype
    count, _ = segments_of(seq_len, batch_size, dtype.itemsize, checkpoint_steps)
    states = count, desc.num_pseudo_layers, batch_size
    blocks = [Block("start_hidden", (*states, desc.output_size), dtype)]
    if desc.has_cell_state:
        blocks.append(Block("start_cell", (*states, desc.states_size), dtype))
    if desc.num_directions == 2:
        shape = *states_shape(seq_len, batch_size, 2), 2 * desc.output_size
        blocks += [Block(f"output_l{layer}", shape, dtype) for layer in range(desc.num_layers - 1)]
    return tuple(blocks)


def workspace_nbytes(desc: RNNDescriptor, T: int, N: int, checkpoint_steps: int | None = None) -> int:
    """Return the memory that a training forward keeps for backward.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    T : int
        seq_len, at least 0.
    N : int
        batch_size, at least 0.
    checkpoint_steps : int, optional
        As forward takes it, at least 1; None is without checkpoints.

    Returns
    -------
    int
        Bytes of the workspace as forward on NumPy arrays leaves it. x is kept by reference and not counted; packed
        weights and what backward works in are kept in the workspace's memory too, for the next call, and not counted
        either. Without checkpoints y is a part of it; with them it is not, and what is counted is the states that are
        kept, one segment with all that backward needs of it and, with two directions, the outputs of every layer but
        the last. On a GPU it is for cuDNN to say how much it reserves.

    Raises
    ------
    TypeError, ValueError
        `desc` is no RNNDescriptor, a size is no int of at least 0, or `checkpoint_steps` none of at least 1.

    Examples
    --------
    >>> workspace_nbytes(RNNDescriptor("lstm", 3, 5), T=10, N=2)
    2480
    >>> [workspace_nbytes(RNNDescriptor("lstm", 256, 256), 10_000, 8, steps) >> 20 for steps in (None, 128)]
    [468, 7]
    """
    check_descriptor("workspace_nbytes", desc)
    for name, size in (("T", T), ("N", N)):
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)):
            raise wrong_type("workspace_nbytes", name, "an int", size)
        if size < 0:
            raise ValueError(message("workspace_nbytes", name, "be at least 0", size))
    checkpoint_steps = checked_checkpoint_steps("workspace_nbytes", checkpoint_steps)
    if checkpoint_steps is None:
        return _nbytes(workspace_layout(desc, int(T), int(N)))
    batch = int(T), int(N)
    _, size = segments_of(*batch, desc.np_dtype.itemsize, checkpoint_steps)
    segment = max(_nbytes(workspace_layout(desc, min(size, batch[0]), batch[1], chain)) for chain in chains(desc))
    return _nbytes(checkpoint_layout(desc, *batch, checkpoint_steps)) + segment


def _nbytes(layout: tuple[Block, ...]) -> int:
    return sum(prod(block.shape) * block.dtype.itemsize for block in layout)


class Workspace:
    """What one training forward leaves for backward; `forward` makes it and `backward` takes it.

    It is valid until its memory is given to another forward. backward does not change it and may be called any number
    of times.

    Attributes
    ----------
    seed : int or None
        Of dropout and of a cell's noises, drawn by `forward` where none was given; None without these.
    checkpoint_steps : int or None
        As `forward` was given it.
    """

    wants_dx = True  # else backward's dx is empty; PyTorch's modules say so where no gradient of x is asked for

    def __init__(self, desc: RNNDescriptor, inputs: dict[str, Any], options: CallOptions, memory: Memory) -> None:
        self.generation = memory.generation
        self.desc, self.inputs, self.memory, self.options = desc, inputs, memory, options
        self.steps, self.seed, self.checkpoint_steps = options.steps, options.seed, options.checkpoint_steps
        self.x = inputs["x"]  # beside hx and cx, which backward must not overwrite
        self.arrays: dict[str, Any] = {}  # not written: the next workspace of this size may have the same
        self.input_shapes: dict[str, tuple[int, ...]] = {}  # of side inputs, as they were given
        self.record: Any = None  # what the GPU engine keeps beside arrays
        self.lease: Any = None  # of memory that others may have when nobody has this
        self.digests: dict[str, bytes] = {}  # of what must not change before backward, see `debugging`

    def __getstate__(self) -> dict[str, Any]:
        if self.lease is not None:
            self.lease.is_shown = True  # a shallow copy has the same memory
        return self.__dict__ | {"lease": None}

    def allocate(self, layout: tuple[Block, ...]) -> None:
        """Take the arrays from the arena, not cleared: the engine's first step.

        Parameters
        ----------
        layout : tuple of Block
            Names, shapes and dtypes.
        """
        self.arrays = {name: self.memory.arena.take(name, shape, dtype) for name, shape, dtype in layout}

    def __repr__(self) -> str:
        steps = self.steps
        return f"<Workspace of {self.desc}, seq_len={steps.seq_len}, batch_size={steps.batch_size}>"

    def hidden(self, layer: int, direction: int = 0) -> Any:
        """Return the hidden state after every step, before dropout.

        Parameters
        ----------
        layer : int
            0..L-1.
        direction : int
            0 forward, 1 reverse.

        Returns
        -------
        ndarray (T, N, P)
            A read-only view, void when the memory is used again; 0 beyond a sequence's length. The reverse direction's
            last state stands at t = 0.

        Raises
        ------
        WorkspaceError
            The workspace's memory has been used by a later forward, or it has checkpoints of the states alone.
        BackendError
            The layer is not the last one, and the network ran on a GPU: cuDNN does not show its states.
        TypeError, ValueError
            `layer` or `direction` is no int, or out of range.
        """
        self._check_place("hidden", layer, direction)
        size = self.desc.output_size
        return self._states("hidden", f"hidden_l{layer}")[:, :, direction * size : (direction + 1) * size]

    def cell(self, layer: int, direction: int = 0) -> Any:
        """Return the cell state after every step (LSTM).

        Parameters
        ----------
        layer, direction : int
            As for :meth:`hidden`.

        Returns
        -------
        ndarray (T, N, H)
            A view, as of the hidden state.

        Raises
        ------
        WorkspaceError, BackendError, TypeError, ValueError
            As :meth:`hidden`; BackendError for all layers of a GPU, ValueError if the mode has no cell.
        """
        self._check_place("cell", layer, direction)
        if "c" not in self.desc.states:
            known = " or ".join(f'"{mode}"' for mode in modes_with("cell_clip"))
            raise ValueError(message("cell", "mode", f"be {known}", repr(self.desc.mode)))
        return self._state("cell", "c", layer, direction)

    def state(self, name: str, layer: int, direction: int = 0) -> Any:
        """Return one of the states of a cell after every step.

        Parameters
        ----------
        name : str
            "h" for the hidden state, as :meth:`hidden` returns it, or one that the cell declares.
        layer, direction : int
            As for :meth:`hidden`.

        Returns
        -------
        ndarray (T, N, H)
            A view, as of the hidden state.

        Raises
        ------
        WorkspaceError, BackendError, TypeError, ValueError
            As :meth:`hidden`; BackendError where cuDNN does not show the state, ValueError if there is none of this
            name.
        """
        self._check_place("state", layer, direction)
        names = "h", *self.desc.states
        if name not in names:
            listed = " or ".join(f'"{one}"' for one in names)
            raise ValueError(message("state", "name", f"be {listed}", repr(name)))
        return self.hidden(layer, direction) if name == "h" else self._state("state", name, layer, direction)

    def _state(self, function: str, name: str, layer: int, direction: int) -> Any:
        first, size = self.desc.states.index(name) * self.desc.hidden_size, self.desc.hidden_size
        states = self._states(function, f"cell_{layer * self.desc.num_directions + direction}")
        return states[:, :, first : first + size]

    def _states(self, function: str, name: str) -> Any:
        if self.checkpoint_steps is not None:
            expected = "be None in forward, for the states of every step to be kept"
            raise WorkspaceError(message(function, "checkpoint_steps", expected, self.checkpoint_steps))
        if name not in self.arrays:
            shown = f"hidden({self.desc.num_layers - 1})"
            cure = "cuDNN keeps the others to itself: run the network on NumPy arrays to see them"
            raise BackendError(message(function, "the states of a GPU", f"be those of {shown}", name, cure))
        states, seq_len = self.arrays[name], self.steps.seq_len
        if self.lease is not None:
            self.lease.is_shown = True
        view = self.steps.after(states) if len(states) > seq_len else states  # a GPU's have no initial ones
        if isinstance(view, np.ndarray):
            view.flags.writeable = False
        return view

    def _check_place(self, function: str, layer: int, direction: int) -> None:
        check_workspace(function, self)
        for name, value, limit in (("layer", layer, "num_layers"), ("direction", direction, "num_directions")):
            count = getattr(self.desc, limit)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise wrong_type(function, name, "an int", value)
            if not 0 <= value < count:
                raise ValueError(message(function, name, f"be in 0..{limit}-1={count - 1}", value))


def check_workspace(function: str, workspace: Workspace, desc: RNNDescriptor | None = None) -> None:
    """Raise unless the workspace is still valid, and belongs to the descriptor where one is given."""
    workspace.memory.check(function, workspace.generation)
    if desc is not None and desc is not workspace.desc and desc != workspace.desc:  # equality takes 0.6 us
        raise WorkspaceError(message(function, "workspace", f"be of {desc}", f"one of {workspace.desc}"))
