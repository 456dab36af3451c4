"""Calls as programs of words (`rnnkit_kernels.programs`), which compiled code runs without Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.memory import Memory
from rnnkit.call.options import options_of
from rnnkit.call.steps import Resets
from rnnkit.call.workspace import Workspace, workspace_layout
from rnnkit.cpu.backward import prepare_backward
from rnnkit.cpu.engine import prepare_forward
from rnnkit.cpu.infer import PackedNetwork, stepwise_calls
from rnnkit.cpu.layer import layers_of, prepare_packing
from rnnkit.cpu.route import is_stepwise_in_modules, reads_in_place, route
from rnnkit.cpu.rows import StepRows
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import num_weights
from rnnkit_kernels import programs
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.arrays import DATA_OF_OBJECT
from rnnkit_kernels.machine.bound import Bound
from rnnkit_kernels.machine.entries import entry_of
from rnnkit_kernels.machine.sync import sync_size
from rnnkit_kernels.rows import clear_reset_states, mark_resets

_INFERENCE_BYTES = 1 << 23  # largest outputs of the layers of an inference: they are a program's own


class Call(NamedTuple):
    """What a program does: `kind` is infer, forward, backward or pack.

    forward also writes `kept`, what `kept.store` would; backward reads it. Its gradients dw, dx, dhx and dcx are new.
    pack writes the `packed` weights, which an infer with `packed` reads.
    """

    kind: str
    desc: RNNDescriptor
    seq_len: int
    batch_size: int
    lengths: bool  # whether sequences have lengths, int32
    resets: bool  # whether they have resets to zeros
    packed: bool = False


def has_program(call: Call) -> bool:
    """Return whether a call can be a program: not with random numbers, side inputs and learned states."""
    desc, count = call.desc, call.seq_len * call.batch_size
    is_plain = not (desc.draws or desc.inputs_size or desc.learned_initial_state)
    nbytes = count * desc.num_pseudo_layers * desc.output_size * desc.np_dtype.itemsize
    return is_plain and count > 0 and (call.kind != "infer" or nbytes <= _INFERENCE_BYTES)


def packed_nbytes(desc: RNNDescriptor) -> int:
    """Return the bytes of the packed weights, which depend on the width of this machine's vectors."""
    return int(layers_of(desc)[-1].offsets[-1]) * desc.np_dtype.itemsize


class Program:
    """The program of a call, on at most `threads` threads, and all that it refers to.

    Parameters
    ----------
    call : Call
    buffers : mapping of str to (int, int)
        The number and the bytes of each buffer, by name: w, x, hx and cx (may be missing), lengths, resets, packed; the
        results y, hy, cy and kept, or dy, dhy, dcy and kept, and the gradients dw, dx, dhx and dcx.
    threads : int
        Helpers may be one fewer.

    Attributes
    ----------
    words : ndarray of int64
        The program.
    nbytes : int
        Size of its memory, about.
    """

    def __init__(self, call: Call, buffers: Mapping[str, tuple[int, int]], threads: int) -> None:
        self._call, self._buffers, self._threads = call, buffers, threads
        self._code: list[int] = []
        self._alive: list[Any] = []
        self._shared: list[int] = []  # work of the kernel calls that helpers may share
        self._rows = StepRows(call.seq_len, call.batch_size, call.lengths or call.resets, resets=call.resets)
        self._lengths = np.full(call.batch_size, call.seq_len)
        marks = np.zeros((2, call.seq_len + 1, call.batch_size) if call.resets else 0, np.uint8)
        self._resets = Resets(marks, False) if call.resets else None
        self._marks = marks.reshape(-1)
        if self._rows.padded:
            self._rows.relist(call.seq_len, self._lengths, self._resets)
        parts = {"infer": self._infer, "forward": self._forward, "backward": self._backward, "pack": self._pack}
        parts[call.kind]()
        self.nbytes += self._rows.nbytes
        self._sync = np.zeros(sync_size(threads), np.int64)
        self._helpers = np.zeros((threads - 1, programs.HELPER_WORDS), np.int64)
        self._helpers[:, programs.LAST + 1 : programs.LAST + 3] = self._sync.ctypes.data, self._sync.size
        shared = len(self._shared) if sum(self._shared) > thread_pool.WAKE_THRESHOLD else 0
        header = self._sync.ctypes.data, self._sync.size, threads if shared else 1, shared, self._helpers.ctypes.data
        self.words = np.array([*header, *self._code, programs.END], np.int64)

    @property
    def is_helped(self) -> bool:
        """Whether a helper may still read its memory."""
        return bool(self._helpers[:, programs.BUSY].any())

    # What operations are made of.

    def _place(self, name: str | np.ndarray, offset: int = 0) -> tuple[int, int]:
        """Return a place in a buffer, or in an array of the program's own."""
        if isinstance(name, str):
            return self._buffers[name][0], offset
        self._alive.append(name)
        return 0, name.ctypes.data + offset

    def _array(self, name: str | np.ndarray | None, itemsize: int = 0) -> list[int]:
        """Return the arguments of an array: a buffer, one of the program's own, or an empty one."""
        itemsize = itemsize or self._call.desc.np_dtype.itemsize
        size = name.size if isinstance(name, np.ndarray) else self._buffers.get(name, (0, 0))[1] // itemsize
        return [*self._place(name), 0, size] if size else [0, 0, 0, 0]

    def _add(self, operation: int, *words: int) -> None:
        self._code.extend((operation, *words))

    def _run(self, call: Any, *arguments: list[int]) -> None:
        """Add a prepared kernel call."""
        entry, words = entry_of(call), [one for words in arguments for one in words]
        self._alive.append(call)
        self._shared += [entry.work] if entry.work > thread_pool.SINGLE_THREAD_WORK else []
        self._add(programs.CALL, programs.form_of(call.call[2]), entry.address, entry.work, 1 + len(words) // 2)
        self._code.extend((0, int(entry.bound), *words))

    def _copy(self, target: tuple[int, int], source: tuple[int, int], nbytes: int) -> None:
        if nbytes:
            self._add(programs.COPY, *target, *source, nbytes)

    # The parts of a call, in their order.

    def _list_rows(self, in_steps: bool = True) -> None:
        """Check the lengths, mark the resets and, unless the call reads these alone, list the rows of the steps."""
        call = self._call
        if call.lengths:
            sizes = call.batch_size, call.seq_len
            self._add(programs.LENGTHS, self._place(self._lengths)[1], *self._place("lengths"), *sizes)
        lengths = self._array(self._lengths)
        if call.resets:
            marks = thread_pool.bound(mark_resets, 0, (self._marks, self._lengths), self._marks)
            self._run(marks, self._array("resets", 1), lengths)
        if self._rows.padded and in_steps:
            self._run(self._rows.list, lengths, self._array(self._marks))
            for _, cut in self._rows.cuts.values():
                self._run(cut, [0, 0])

    def _clear_reset(self, name: str | np.ndarray | None, array: np.ndarray, directions: int) -> None:
        """Zero the states, or gradients of these, of sequences that reset before step 0; `array` is like it."""
        if name is not None and self._call.resets:
            layers = self._call.desc.num_pseudo_layers
            arguments = self._marks, self._call.batch_size, layers, directions
            self._run(thread_pool.bound(clear_reset_states, 0, array, *arguments), self._array(name))

    def _states(self, desc: RNNDescriptor) -> tuple[str | None, str | None]:
        """Return the names of the call's initial states."""
        has_cells = desc.has_cell_state and "cx" in self._buffers
        return "hx" if "hx" in self._buffers else None, "cx" if has_cells else None

    def _infer(self) -> None:
        if is_stepwise_in_modules(self._call.desc, self._rows):
            self._infer_stepwise()
            return
        desc, no_w = self._call.desc, np.zeros(num_weights(self._call.desc), self._call.desc.np_dtype)
        network = PackedNetwork(desc, no_w, in_place=self._reads_in_place())
        kept = network.kept(self._rows, self._threads)
        self.nbytes = network.nbytes
        self._list_rows()
        self._pack_or_point(network.packing(), kept.calls, network.weights)
        for call in kept.calls:
            if isinstance(call, partial):
                call(None)  # writes the zeros that states are reset to
        self._run_groups(kept.calls, kept.clearing)
        y = self._rows.after(kept.hidden)
        self._copy(self._place("y"), self._place(y), y.nbytes)

    def _reads_in_place(self) -> bool:
        return not self._call.packed and reads_in_place(self._call.desc, self._call.seq_len, self._call.batch_size)

    def _pack_or_point(self, packing: Sequence[Any], calls: Sequence[Any], packed: np.ndarray) -> None:
        """Pack the weights that calls read, or let them read those that were packed before."""
        if self._call.packed:
            self._point(calls, packed, "packed")
            return
        for pack in packing:
            self._run(pack, self._array("w"))

    def _pack(self) -> None:
        desc = self._call.desc
        packed = np.empty(packed_nbytes(desc) // desc.np_dtype.itemsize, desc.np_dtype).view()
        self.nbytes, packing = 0, prepare_packing(packed, layers_of(desc))
        self._point(packing, packed, "packed")
        for pack in packing:
            self._run(pack, self._array("w"))

    def _infer_stepwise(self) -> None:
        desc, (_, _, seq_len, batch_size, *_) = self._call.desc, self._call
        runner = stepwise_calls(desc, self._rows, self._reads_in_place())
        scratch, hy, cy, sizes = runner.prepared()
        self.nbytes = scratch.nbytes + hy.nbytes + cy.nbytes
        self._list_rows(in_steps=False)
        self._pack_or_point(scratch.packing, [scratch.call], scratch.packed)
        layers, states = desc.num_layers, []
        for name, final in zip(self._states(desc), (hy, cy), strict=True):
            own = np.zeros(final.shape if final.size == 0 else (layers, *final.shape[1:]), final.dtype)
            if name is not None and self._call.resets:
                self._copy(self._place(own), self._place(name), own.nbytes)
                self._clear_reset(own, own.reshape(-1), 1)
                name = None
            states.append(own if name is None else name)
        first = (seq_len - 1) % 2 * layers
        ends = [name if seq_len == 1 else array for name, array in (("hy", hy), ("cy", cy))]
        lengths = self._lengths if self._call.lengths else None
        last = scratch.gates, scratch.numbers, lengths, self._marks[: seq_len * batch_size]
        arrays = "x", *states, "y", *ends, *last, None if scratch.packing else "w"
        self._run(scratch.call, *map(self._array, arrays), [one for size in sizes for one in (0, size)])
        for name, array in (("hy", hy), ("cy", cy)) if seq_len > 1 else ():
            last = array[first : first + layers]
            self._copy(self._place(name), self._place(last), last.nbytes)

    def _run_groups(self, calls: Sequence[Any], clearing: Sequence[Any]) -> None:
        """Add the kernel calls of a forward, without that which writes the states of resets, and those that clear."""
        hx, cx = self._states(self._call.desc)
        arrays = [self._array(name) for name in ("x", "w", hx, cx, "hy", "cy")]
        for call in calls:
            if not isinstance(call, partial):
                self._run(call, *arrays)
        for clear in clearing:
            self._run(clear, [0, 0])

    def _workspace(self) -> tuple[Workspace, np.ndarray]:
        """Return a workspace, and the memory of its arrays, which stand for those of `kept`."""
        _, desc, seq_len, batch_size, _, resets, _ = self._call
        options = options_of("forward", desc, seq_len, batch_size)
        workspace = Workspace(desc, {"x": np.empty(0, desc.np_dtype)}, options, Memory())
        layout = workspace_layout(desc, seq_len, batch_size, resets=resets)
        memory = workspace.memory.arena.side_by_side(layout)
        workspace.allocate(layout)
        return workspace, memory

    def _point(self, calls: Sequence[Any], memory: np.ndarray, name: str) -> None:
        """Let the arrays of these calls that lie in this memory lie in the buffer. They are views: an array that owns
        memory would free the buffer's."""
        first, calls = memory.ctypes.data, (call for call in calls if not isinstance(call, partial))
        found = {id(array): array for call in calls for array in _arrays_in(call.call[1])}
        for array in found.values():
            offset = array.ctypes.data - first
            if array.size and 0 <= offset < memory.nbytes:
                assert not array.flags.owndata
                self._add(programs.POINT, id(array) + DATA_OF_OBJECT, *self._place(name, offset))

    def _forward(self) -> None:
        desc, (workspace, memory) = self._call.desc, self._workspace()
        in_place = route(desc, self._call.seq_len, self._call.batch_size).in_place
        prepared = prepare_forward(workspace, self._rows, self._threads, in_place)
        self.nbytes = workspace.memory.nbytes - memory.nbytes
        self._list_rows()
        calls = [call for _, some in prepared.groups for call in some if not isinstance(call, partial)]
        self._point([*calls, *prepared.clearing], memory, "kept")
        hidden, first = prepared.arrays[f"hidden_l{desc.num_layers - 1}"], memory.ctypes.data
        for name, array in prepared.arrays.items() if self._call.resets else ():
            if name.startswith(("hidden", "cell")):  # what states are reset to
                anew = array[self._call.seq_len + 2]
                self._add(programs.CLEAR, *self._place("kept", anew.ctypes.data - first), anew.nbytes)
        for pack in prepared.packing:
            self._run(pack, self._array("w"))
        self._run_groups(calls, prepared.clearing)
        y = self._rows.after(hidden)
        self._copy(self._place("y"), self._place("kept", y.ctypes.data - first), y.nbytes)

    def _backward(self) -> None:
        desc, (_, _, seq_len, batch_size, *_) = self._call.desc, self._call
        workspace, memory = self._workspace()
        in_place, arena = route(desc, seq_len, batch_size).in_place_back, Arena()
        gradient = prepare_backward(desc, workspace.arrays, self._rows, self._threads, in_place, arena)
        self.nbytes = arena.nbytes
        self._list_rows()
        calls = [call for group in gradient.groups for call in group.calls]
        self._point(calls, memory, "kept")
        for name in ("dw", "dx") if self._rows.padded else ():
            self._add(programs.CLEAR, *self._place(name), self._buffers[name][1])
        states = [("dhx", "dhy"), ("dcx", "dcy")][: 1 + desc.has_cell_state]
        for name, of_result in states:
            self._copy(self._place(name), self._place(of_result), self._buffers[name][1])
        arrays = [self._array(name) for name in ("w", "x", "dy", "dx", "dhx", "dcx", "dw", None, None)]
        flags = [0, int(not self._rows.padded), 0, 1, 0, 1]  # dw_is_new, wants_dhx, runs_steps
        for call in calls:
            self._run(call, *arrays, flags)
        for name, _ in states:
            like = np.empty(0, desc.np_dtype)
            self._clear_reset(name, like, desc.num_directions)


def _arrays_in(value: Any) -> Iterator[np.ndarray]:
    """Yield the arrays among bound arguments."""
    if isinstance(value, np.ndarray):
        yield value
    for one in value.arguments if isinstance(value, Bound) else value if isinstance(value, tuple) else ():
        yield from _arrays_in(one)
