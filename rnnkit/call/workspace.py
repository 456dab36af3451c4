"""The workspace, what a training forward saves for backward: memory layout, views and validity. No mathematics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.gates import activated_gates, joined_gates
from rnnkit.call.memory import Memory
from rnnkit.call.options import CallOptions, checked_checkpoint_steps
from rnnkit.call.pool import Lease, leased
from rnnkit.call.steps import segments_of, states_shape
from rnnkit.descriptor.descriptor import RNNDescriptor, check_descriptor
from rnnkit.errors import BackendError, WorkspaceError, message, wrong_type
from rnnkit_kernels.cells.declaration import mean_blocks
from rnnkit_kernels.cells.modes import modes_with


class Block(NamedTuple):
    """One array of the workspace."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


@lru_cache(64)
def gate_columns(desc: RNNDescriptor) -> int:
    """Return the number of columns of the gate buffer: activated gates, other values for the gradient of the cell,
    partial sums of its means, and the input of the projection."""
    declaration, size = desc.cell.declaration, desc.hidden_size
    return (len(declaration.slots) + desc.projected) * size + len(declaration.means) * mean_blocks(size)


def workspace_layout(
    desc: RNNDescriptor,
    seq_len: int,
    batch_size: int,
    pseudo_layers: Sequence[int] | None = None,
    resets: bool = False,
) -> tuple[Block, ...]:
    """Return the arrays of a workspace, or only those of some pseudo-layers.

    Hidden and cell states are arrays of `states_shape`.
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
        for layer in filter(None, layers):  # no dropout before the first layer
            blocks.append(Block(f"mask_l{layer}", (seq_len, batch_size, width), np.dtype(bool)))
            blocks.append(Block(f"input_l{layer}", (seq_len, batch_size, width), dtype))
    return tuple(blocks)


def checkpointed_layers(desc: RNNDescriptor) -> list[tuple[int, ...]]:
    """Return the groups of pseudo-layers that run segment by segment together, in forward order.

    Unidirectional layers do: each needs only the same segment of the layer below. The two directions of a layer run
    apart, since the next layer needs their complete outputs. Backward runs from the last group to the first: the
    forward direction before the reverse one.
    """
    if desc.num_directions == 1:
        return [tuple(range(desc.num_layers))]
    return [(2 * layer + direction,) for layer in range(desc.num_layers) for direction in (1, 0)]


def checkpoint_layout(desc: RNNDescriptor, seq_len: int, batch_size: int, checkpoint_steps: int) -> tuple[Block, ...]:
    """Return the arrays of a workspace with checkpoints: the states before each segment and, if bidirectional, the
    outputs of all layers but the last, with one extra row at each end, like hidden states."""
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
    """Return the memory that a training forward saves for backward.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    T : int
        seq_len, at least 0.
    N : int
        batch_size, at least 0.
    checkpoint_steps : int, optional
        The value passed to forward, at least 1; None means no checkpoints.

    Returns
    -------
    int
        Bytes of the workspace after a forward on NumPy arrays. They exclude x, which is kept by reference, and packed
        weights and scratch of backward, although these stay in the same memory for the next call. Without checkpoints
        they include y. With checkpoints they include the saved states, one segment with all that backward needs of it
        and, with two directions, the outputs of every layer but the last. Memory that is reused stays as large as its
        longest batch needed, or a quarter more. On a GPU cuDNN decides the size of its networks; others keep all
        states, and without checkpoints the gates.

    Raises
    ------
    TypeError, ValueError
        `desc` is not an RNNDescriptor, a size is not an int of at least 0, or `checkpoint_steps` is not one of at least
        1.

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
    layers = checkpointed_layers(desc)
    segment = max(_nbytes(workspace_layout(desc, min(size, batch[0]), batch[1], indices)) for indices in layers)
    return _nbytes(checkpoint_layout(desc, *batch, checkpoint_steps)) + segment


def _nbytes(layout: tuple[Block, ...]) -> int:
    return sum(prod(block.shape) * block.dtype.itemsize for block in layout)


class Workspace:
    """What one training forward saves for backward: created by `forward`, passed to `backward`.

    It is valid until another forward overwrites its memory. backward does not change it and may be called any number of
    times.

    Attributes
    ----------
    seed : int or None
        The seed of dropout and of a cell's noises, drawn by `forward` if not given; None if nothing is random.
    checkpoint_steps : int or None
        The value passed to `forward`.
    """

    given_states = True, True  # whether hx and cx were given; else they are zeros or the network's own
    record: Any = None  # state of the GPU engine
    lease: Lease | None = None  # of the memory, which becomes idle when no array of this workspace is left

    def __init__(self, desc: RNNDescriptor, inputs: dict[str, Any], options: CallOptions, memory: Memory) -> None:
        self.generation = memory.generation
        self.desc, self.inputs, self.memory, self.options = desc, inputs, memory, options
        self.steps, self.seed, self.checkpoint_steps = options.steps, options.seed, options.checkpoint_steps
        self.x = inputs["x"]  # `inputs` also has hx and cx: backward must not overwrite them
        self.arrays: dict[str, Any] = {}  # never modified: a later workspace of this size may share the dict
        self.input_shapes: dict[str, tuple[int, ...]] = {}  # of the side inputs given
        self.digests: dict[str, bytes] = {}  # of w and x in debug mode, see `debugging`

    def allocate(self, layout: tuple[Block, ...]) -> None:
        """Take the arrays from the arena, not cleared. The engine calls this first.

        Parameters
        ----------
        layout : tuple of Block
            Names, shapes and dtypes.
        """
        self.arrays = {name: self.memory.arena.take(name, shape, dtype) for name, shape, dtype in layout}

    def __repr__(self) -> str:
        return f"<Workspace of {self.desc}, seq_len={self.options.seq_len}, batch_size={self.steps.batch_size}>"

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
            A read-only view, valid until the memory is reused, or with a mask a copy; 0 beyond a sequence's length.
            The reverse direction's final state is at t = 0.

        Raises
        ------
        WorkspaceError
            A later forward has overwritten the workspace's memory, or forward ran with `checkpoint_steps`, which does
            not save every state.
        BackendError
            The layer is not the last one, and cuDNN ran the network: it does not expose these states.
        TypeError, ValueError
            `layer` or `direction` is not an int, or out of range.
        """
        self._check_place("hidden", layer, direction)
        size = self.desc.output_size
        return self._states("hidden", f"hidden_l{layer}", direction, direction * size, size)

    def cell(self, layer: int, direction: int = 0) -> Any:
        """Return the cell state after every step (LSTM).

        Parameters
        ----------
        layer, direction : int
            As for :meth:`hidden`.

        Returns
        -------
        ndarray (T, N, H)
            A view, as :meth:`hidden` returns it.

        Raises
        ------
        WorkspaceError, BackendError, TypeError, ValueError
            As :meth:`hidden`; BackendError for all layers on a GPU, ValueError if the mode has no cell state.
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
            A view, as :meth:`hidden` returns it.

        Raises
        ------
        WorkspaceError, BackendError, TypeError, ValueError
            As :meth:`hidden`; BackendError if cuDNN does not expose the state, ValueError if there is none of this
            name.
        """
        self._check_place("state", layer, direction)
        names = "h", *self.desc.states
        if name not in names:
            listed = " or ".join(f'"{known}"' for known in names)
            raise ValueError(message("state", "name", f"be {listed}", repr(name)))
        return self.hidden(layer, direction) if name == "h" else self._state("state", name, layer, direction)

    def gates(self, layer: int, direction: int = 0, *, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Return the activated gates of a layer's cell at every step, for example the forget gate of an LSTM.

        They are taken from what forward saves for backward, and computed from it where a cell saves something else.

        Parameters
        ----------
        layer, direction : int
            As for :meth:`hidden`.
        names : sequence of str, optional
            The gates to return, in this order. None: all that can be computed from what forward saves.

        Returns
        -------
        dict of str to ndarray (T, N, H)
            New arrays by the names that the cell declares: i, f, g, o of an LSTM, r, z, n of a GRU, a of a plain RNN.
            A gate is what the cell's equations have under its name after its activation, before dropout; where they
            have nothing under this name, the first function that they apply to the pre-activation, or if there is none
            the pre-activation. Gates that enter one function together, such as ``tanh(a + v)``, are one entry, under
            the first name. 0 beyond a sequence's length, and at steps that a mask skips.

        Raises
        ------
        WorkspaceError
            A later forward has overwritten the workspace's memory, or forward ran with `checkpoint_steps`, which does
            not save every step.
        BackendError
            The network ran on a GPU.
        TypeError, ValueError
            `layer` or `direction` is not an int, or out of range; ValueError if there is no gate of a name, or none at
            all: the equations use it in several ways, so that no value of it is the activated one, or forward does not
            save what it depends on.
        """
        self._check_place("gates", layer, direction)
        self._check_saves_all("gates")
        if self.record is not None:
            raise BackendError("gates: only the CPU engine shows gates; run the network on NumPy arrays to read them")
        steps, size = self.steps, self.desc.hidden_size
        saved = self.arrays[f"gates_{layer * self.desc.num_directions + direction}"]
        rows = saved.reshape(-1, saved.shape[-1])  # the steps one after the other, the longest sequence first
        runs = np.arange(steps.seq_len)[:, None] < steps.lengths
        places = steps.positions()[runs]

        def slot(number: int) -> np.ndarray:
            return rows[places, number * size : (number + 1) * size]

        found: dict[str, np.ndarray] = {}
        for name, gate in activated_gates(self.desc.cell, slot, names).items():
            found[name] = np.zeros((*runs.shape, size), saved.dtype)
            found[name][runs] = gate
            if self.options.mask is not None:
                found[name] = self.options.mask.spread(found[name])
        return found

    def joined_gates(self) -> dict[str, tuple[str, ...]]:
        """Return which gates of the cell enter one function together.

        Returns
        -------
        dict of str to tuple of str
            The gates of each entry of :meth:`gates`, by its name, which is one of them.
        """
        return joined_gates(self.desc.cell)

    def _state(self, function: str, name: str, layer: int, direction: int) -> Any:
        first, size = self.desc.states.index(name) * self.desc.hidden_size, self.desc.hidden_size
        number = layer * self.desc.num_directions + direction
        return self._states(function, f"cell_{number}", direction, first, size)

    def _states(self, function: str, name: str, direction: int, first: int, size: int) -> Any:
        """Return some columns of the states after every step."""
        self._check_saves_all(function)
        if name not in self.arrays:
            exposed = f"cuDNN exposes only the states of hidden({self.desc.num_layers - 1}), not {name}"
            raise BackendError(f"{function}: {exposed}; run the network on NumPy arrays to read them")
        states, seq_len = self.arrays[name][:, :, first : first + size], self.steps.seq_len
        if hasattr(self.record, "shown"):  # of all steps, those that a mask skips too
            return self.record.shown(states)
        view = self.steps.after(states) if len(states) > seq_len else states  # no initial states on a GPU
        if self.options.mask is not None:
            initial = states[seq_len + 1 if direction else 0]
            return self.options.mask.states_of_all(view, initial, direction)
        if isinstance(view, np.ndarray):
            view = view if self.lease is None else leased(view, self.lease)
            view.flags.writeable = False
        return view

    def _check_saves_all(self, function: str) -> None:
        if self.checkpoint_steps is not None:
            expected = "be None in forward to save the states of every step"
            raise WorkspaceError(message(function, "checkpoint_steps", expected, self.checkpoint_steps))

    def _check_place(self, function: str, layer: int, direction: int) -> None:
        check_workspace(function, self)
        for name, value, limit in (("layer", layer, "num_layers"), ("direction", direction, "num_directions")):
            count = getattr(self.desc, limit)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise wrong_type(function, name, "an int", value)
            if not 0 <= value < count:
                raise ValueError(message(function, name, f"be in 0..{limit}-1={count - 1}", value))


def check_workspace(function: str, workspace: Workspace, desc: RNNDescriptor | None = None) -> None:
    """Raise unless the workspace is still valid and, if a descriptor is given, belongs to it."""
    workspace.memory.check(function, workspace.generation)
    if desc is not None and desc is not workspace.desc and desc != workspace.desc:  # `is` first: comparing takes 0.6 us
        raise WorkspaceError(message(function, "workspace", f"be of {desc}", f"one of {workspace.desc}"))
