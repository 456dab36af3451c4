"""Stepwise execution, by `kernels.stack`: one kernel call runs all layers of one direction, step by step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.arena import KEPT_BYTES
from rnnkit.call.memory import Memory
from rnnkit.call.steps import Steps, row_numbers, with_zeros
from rnnkit.cpu.layer import Layer, contiguous, deepest_of, new_array, prepare_packing, with_scratch
from rnnkit.cpu.route import steps_at_once
from rnnkit.cpu.scheduler import panel_grain_of, rows_for_grain, threads_of_step
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit_kernels.handles import SIZE, fill
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.bound import Bound
from rnnkit_kernels.stack import run_stack

_MAX_POOLED = 8  # scratches of the largest size in the pool
_SEQUENCES = 64  # sizes of prepared calls

_ALL_STEPS = np.empty(0, np.int64)  # instead of lengths
NO_MARKS = np.empty(0, np.uint8)
_ROWS_OF_A_READ = 2  # a step with fewer rows is bound by reading the weights


def run_steps(sequences: PreparedStepwiseCall, steps: Steps, x: np.ndarray, hx: Any, cx: Any, w: Any = None) -> tuple:
    """Run all layers over these steps, whose resets are to zeros; w as `PreparedStepwiseCall.run` takes it."""
    lengths, marks = contiguous(steps.lengths) if steps.padded else _ALL_STEPS, NO_MARKS
    if steps.resets is not None:
        marks, first = steps.resets.marks[0, :-1].reshape(-1), steps.resets.marks[0, 0] > 0
        hx, cx = with_zeros(hx, first), with_zeros(cx, first)
    return sequences.run(x, hx, cx, w, lengths, marks)


class Scratch(NamedTuple):
    """Scratch of a stepwise call with a number of rows, and its prepared kernel call, which takes the arrays."""

    numbers: np.ndarray  # of the rows of `gates`
    gates: np.ndarray
    nbytes: int  # of gates, packed weights and scratch in total
    packed: Any  # weights, as the kernel takes them
    packing: Sequence[Callable[[np.ndarray], None]]  # pack the flat weights of a call
    call: Callable[[tuple[np.ndarray, ...]], None]


class Stack:
    """Runs the layers of a network step by step; thread-safe.

    Attributes
    ----------
    weights : ndarray or None
        The packed weights; None if each call passes flat ones.
    """

    def __init__(
        self, desc: RNNDescriptor, layers: Sequence[Layer], packed: Any = None, in_place: bool = False
    ) -> None:
        self._desc, self._layers, self._form, self.weights = desc, layers, layers[0].precision, packed
        self._memory, first, dtype = Memory(), layers[0], desc.np_dtype if packed is None else packed.dtype
        self._sizes = desc.num_layers, desc.output_size, desc.states_size if desc.has_cell_state else 0
        self._deepest = deepest_of(layers)
        self._rows_for_grain, self._panel_grain = rows_for_grain(first, dtype.itemsize), panel_grain_of(dtype.itemsize)
        self._no_y, self._no_cells = np.empty((0, 0), dtype), np.empty((0, 0, 0), dtype)
        stacked = (np.stack([getattr(layer, name) for layer in layers]) for name in ("weight_starts", "offsets"))
        self._fixed = Bound((first.cell, first.sizes, first.products, *stacked))
        self._scratches: dict[tuple[int, int], list[Scratch]] = {}  # idle ones, by rows and steps of a chunk
        self._sequences: dict[tuple[int, int], PreparedStepwiseCall] = {}
        self._zeros, self._no_w = np.zeros(desc.hidden_size, dtype), np.empty(0, dtype)
        # If calls pass flat weights, a scratch includes packed weights.
        self._largest_scratch = KEPT_BYTES // (1 if packed is None else _MAX_POOLED)
        self._dtype, self._words, self._in_place = dtype, int(layers[-1].offsets[-1]), in_place
        self._work = sum(layer.input_work + layer.step_work for layer in layers)

    def buffers(self, rows: int, take: Callable[..., np.ndarray] = new_array) -> tuple[np.ndarray, np.ndarray, Scratch]:
        """Return the buffers of a step with so many rows: hy, cy and scratch."""
        dtype, (layers, outputs, cells) = self._dtype, self._sizes
        hy = take("hy", (layers, rows, outputs), dtype)
        return hy, take("cy", (layers, rows, cells), dtype) if cells else self._no_cells, self._scratch(rows, 1, take)

    def _scratch(self, rows: int, chunk: int, take: Callable[..., np.ndarray] = new_array) -> Scratch:
        dtype, layer, none = self._dtype, self._layers[0], self._no_w
        numbers = row_numbers((chunk + 1) * rows)
        gates = take("gates", (numbers.size * layer.columns,), dtype)
        threads, packed, nbytes = threads_of_step(rows, self._layers, dtype.itemsize), self.weights, gates.nbytes
        packing: Sequence[Callable[[np.ndarray], None]] = ()
        if packed is None:
            packed = take("packed", (self._words,), dtype).view()  # a program may give it other memory
            nbytes += packed.nbytes
            packing = () if self._in_place else prepare_packing(packed, self._layers)
        if self._form is not None:  # scratch is allocated for this many threads: no more may join
            threads = min(threads, thread_pool.max_threads())
            packed = self.with_scratch(chunk * rows, threads, take)
            nbytes += packed.scratch.nbytes
        panel_grain = self._panel_grain if rows >= self._rows_for_grain else 0
        work = self._work * max(rows, _ROWS_OF_A_READ)
        like = *(none,) * 6, gates, numbers, _ALL_STEPS, NO_MARKS, none, (0,) * 4
        arguments = like, self._fixed, packed, self._zeros, panel_grain, threads
        call = thread_pool.bound(run_stack, work, *arguments, code_cache=layer.code_cache)
        return Scratch(numbers, gates, nbytes, packed, packing, call)

    def with_scratch(self, rows: int, threads: int, take: Callable[..., np.ndarray]) -> Any:
        """Return the packed weights as kernels take them, with scratch for the rows that a thread takes at a time."""
        return with_scratch(self.weights, self._form, self._deepest, rows, threads, take)

    def handles(self, count: int) -> np.ndarray:
        """Return handles (count, SIZE) of the network for compiled code. The array keeps all alive that they need."""
        words = (ctypes.c_int64 * (count * SIZE))()
        found, words.keeps = np.frombuffer(words, np.int64).reshape(count, SIZE), []
        layers, outputs, cells = self._sizes
        sizes = self._desc.row_size, outputs, layers * outputs, layers * cells
        for handle in found:
            hy, cy = np.empty((2 * layers, outputs), self._dtype), np.empty((2 * layers, cells), self._dtype)
            scratch = self._scratch(1, 1)
            fill(handle, scratch.call, hy, cy, (scratch.gates, scratch.numbers), sizes)
            words.keeps.append((self, hy, cy, scratch))
        return found

    def scratches(self, rows: int, chunk: int) -> list[Scratch]:
        """Return the pool of idle scratches for so many rows."""
        scratches = self._scratches.get((rows, chunk))
        if scratches is None:
            kept = [scratch.nbytes for scratches in list(self._scratches.values()) for scratch in list(scratches)]
            if sum(kept) > KEPT_BYTES - self._largest_scratch:
                self._scratches, self._sequences = {}, {}
            scratches = self._scratches[rows, chunk] = []
        return scratches

    def borrow(self, scratches: list[Scratch], rows: int, chunk: int) -> Scratch:
        """Pop an idle scratch, or create one. It is exclusive, since even a signal handler may call the engine."""
        try:
            return scratches.pop()
        except IndexError:  # none, or another thread has taken it
            return self._scratch(rows, chunk)

    def give_back(self, scratches: list[Scratch], scratch: Scratch) -> None:
        """Return scratch to the pool, if it is not large."""
        if scratch.nbytes <= self._largest_scratch:
            scratches.append(scratch)

    def step(self, x: np.ndarray, hx: Any, cx: Any = None, buffers: Any = None) -> tuple[Any, Any, Any]:
        """Run all layers over one time step; returns y, hy and cy, in the buffers if given."""
        if buffers is not None:
            hy, cy, scratch = buffers
            self._run(x, hx, cx, self._no_y, hy, cy, scratch)
        else:
            rows, (layers, outputs, cells) = len(x), self._sizes
            hy = np.empty((layers, rows, outputs), x.dtype)
            cy = np.empty((layers, rows, cells), x.dtype) if cells else self._no_cells
            scratches = self.scratches(rows, 1)
            scratch = self.borrow(scratches, rows, 1)
            self._run(x, hx, cx, self._no_y, hy, cy, scratch)
            self.give_back(scratches, scratch)
        return hy[-1], hy, cy if self._sizes[2] else None

    def sequences(self, seq_len: int, batch_size: int) -> PreparedStepwiseCall:
        """Return the runner of calls of this size."""
        runner = self._sequences.get((seq_len, batch_size))
        if runner is None:
            if len(self._sequences) >= _SEQUENCES:
                self._sequences = {}
            runner = self._sequences[seq_len, batch_size] = PreparedStepwiseCall(self, seq_len, batch_size)
        return runner

    def _run(
        self, x: np.ndarray, hx: Any, cx: Any, y: np.ndarray, hy: np.ndarray, cy: np.ndarray, scratch: Scratch
    ) -> None:
        """Run all layers over the steps of x (T*N, I) and write y, hy and cy, as `run_stack` does."""
        (layers, outputs, cells), rows = self._sizes, hy.shape[1]
        hx = np.zeros((layers, rows, outputs), x.dtype) if hx is None else contiguous(hx)
        if not cells:
            cx = self._no_cells
        else:
            cx = np.zeros((layers, rows, cells), x.dtype) if cx is None else contiguous(cx)
        sizes = len(x) // max(rows, 1), rows, x.shape[1], cells
        arrays = contiguous(x), hx, cx, y, hy, cy, scratch.gates, scratch.numbers
        scratch.call((*arrays, _ALL_STEPS, NO_MARKS, self._no_w, sizes))


class PreparedStepwiseCall:
    """Prepared stepwise calls of one size: only the arrays are missing."""

    def __init__(self, stack: Stack, seq_len: int, batch_size: int) -> None:
        (layers, outputs, cells), places = stack._sizes, min(seq_len, 2)
        self._stack, self._rows_and_chunk = stack, (batch_size, min(seq_len, steps_at_once(batch_size)))
        self._scratches, self._dtype = stack.scratches(*self._rows_and_chunk), stack._dtype
        self._y, self._sizes = (seq_len, batch_size, outputs), (seq_len, batch_size, stack._desc.row_size, cells)
        self._hy, self._cy = (places * layers, batch_size, outputs), (places * layers, batch_size, cells)
        first = (seq_len - 1) % 2 * layers
        self._last, self._no_hx = slice(first, first + layers), np.zeros((layers, batch_size, outputs), self._dtype)
        self._no_cx = np.zeros((layers, batch_size, cells), self._dtype) if cells else stack._no_cells

    def prepared(self) -> tuple[Scratch, np.ndarray, np.ndarray, tuple[int, ...]]:
        """Return scratch of a caller's own, arrays for hy and cy, and the sizes: what a call passes to the kernel."""
        hy, cy = np.empty(self._hy, self._dtype), np.empty(self._cy, self._dtype)
        return self._stack._scratch(*self._rows_and_chunk), hy, cy, self._sizes

    def run(
        self,
        x: np.ndarray,
        hx: Any,
        cx: Any,
        w: Any = None,
        lengths: np.ndarray = _ALL_STEPS,
        marks: np.ndarray = NO_MARKS,
    ) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return y, hy and cy, with the packed weights or with w."""
        hx, cx = None if hx is None else contiguous(hx), None if cx is None else contiguous(cx)
        return self.run_dense(contiguous(x), hx, cx, None if w is None else contiguous(w), lengths, marks)

    def run_dense(
        self,
        x: np.ndarray | int,
        hx: np.ndarray | int | None,
        cx: np.ndarray | int | None,
        w: np.ndarray | None,
        lengths: np.ndarray = _ALL_STEPS,
        marks: np.ndarray = NO_MARKS,
    ) -> tuple[np.ndarray, np.ndarray, Any]:
        """Like `run`, with arrays that the kernels can take, or their addresses."""
        stack, dtype, has_cell_state = self._stack, self._dtype, self._sizes[3] > 0
        scratch = stack.borrow(self._scratches, *self._rows_and_chunk)
        y, hy = np.empty(self._y, dtype), np.empty(self._hy, dtype)
        hx = self._no_hx if hx is None else hx
        cy = np.empty(self._cy, dtype) if has_cell_state else stack._no_cells
        cx = self._no_cx if cx is None or not has_cell_state else cx
        w = stack._no_w if w is None else w
        if scratch.packing:
            for pack in scratch.packing:
                pack(w)
            w = stack._no_w
        scratch.call((x, hx, cx, y, hy, cy, scratch.gates, scratch.numbers, lengths, marks, w, self._sizes))
        stack.give_back(self._scratches, scratch)
        last = self._last
        return y, hy[last], cy[last] if has_cell_state else None
