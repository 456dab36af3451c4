"""How a call runs: one of a few routes, chosen from sizes and the number of threads alone. All thresholds stand here.

Results do not depend on the route. How threads share the work of a route is decided in `scheduler`, whether threads are
woken for it in `rnnkit_kernels.machine.thread_pool`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from rnnkit.call.steps import LISTED_ROWS, Steps, gradient_chunk
from rnnkit.call.workspace import workspace_nbytes
from rnnkit.cpu.layer import Layer, groups_of, is_stack, layers_of
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import num_weights
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.formats import ROWS_AT_ONCE
from rnnkit_kernels.machine.in_place import MAX_ROWS_IN_PLACE

_CHUNK_BYTES = 1 << 20  # gates of a chunk of steps (float32): they stay in the threads' L2 until they are used
# The same with weights of int8 or bfloat16, if those of the input stay in L2; else a chunk has as many rows as are
# multiplied at once. On tile registers this takes 0.87 to 0.98 of the time that 1 MiB takes (H = 128 to 800, N = 16 to
# 64, Emerald Rapids).
_REDUCED_CHUNK_BYTES = 1 << 18
_CALL_WORK = 1 << 32  # multiply-adds of a kernel call, about 0.1 s on one thread: how long Ctrl-C waits, or one chunk
CACHED_BYTES = 1 << 20  # weights of a product, or the states of a step, of this size stay in a core's L2 cache

# Up to this many (words of the weights times rows of all steps) one kernel runs all layers step by step, which saves 60
# us of Python. On one thread the break-even is 2^26; on two threads, longer calls split better layer by layer.
_STEPWISE_WORK = 1 << 23
# The same in multiply-adds for a call through PyTorch with flat weights: above it, on two threads, a call layer by
# layer takes down to half of the time.
_STEPWISE_WORK_OF_MODULES = 3_000_000
# In-place reads of the weights that take as long as packing them once. With 8 reads an inference takes 0.8 to 1.2 of
# the time with packing if the weights are in the cache, else 0.8 to 0.98. Backward reads weights for MAX_ROWS_IN_PLACE
# rows at a time, and does not transpose: with 10 reads it takes 0.8 to 0.95, with 40 0.91 to 1.04, with 57 0.94 to 1.08
# (GRU and tanh, H = 32 to 512, Zen 4).
_READS, _READS_BACK = 9, 48
_INPUT_ROWS = 64  # rows whose input a stepwise call multiplies at once
# Bytes of the workspace of a training call through PyTorch that runs as a `PreparedCall`, without a `Workspace`.
_PREPARED_BYTES = 1 << 22
# Largest memory of a `PreparedCall` that is copied for backward, so that the next call can have it. A single-step call
# is always copied: such calls come in chains, and a copy takes a few percent of the time of the products.
_COPIED_BYTES = 1 << 16
# The weight gradients of single-step calls are computed together if the gradient does not stay in the cache between
# calls, and if they have few sequences: with 8 the arithmetic hides the memory traffic.
_GATHERED_BYTES, _GATHERED_SEQUENCES = 1 << 18, 6


class Route(NamedTuple):
    """What is prepared differently for batches of different numbers of steps."""

    in_place: bool  # whether forward reads the weights in place, instead of packing them
    in_place_back: bool  # the same of backward
    is_short: bool  # whether forward and backward run on one thread
    is_single_step: bool
    limit: int  # the largest number of steps that one kernel call runs: above it, only batches of one length share it


@lru_cache(1024)
def route(desc: RNNDescriptor, seq_len: int, batch_size: int, precision: str | None = None) -> Route:
    """Return the route of a training call. Weights of another precision are rounded, and so packed."""
    size = desc, seq_len, batch_size
    in_place, in_place_back = (precision is None and reads_in_place(*size, backward) for backward in (False, True))
    is_short = 2 * work_of(*size) <= thread_pool.SINGLE_THREAD_WORK
    limit = steps_of_one_call(desc, batch_size)
    return Route(in_place, in_place_back, is_short and in_place, seq_len == 1, limit)


def work_of(desc: RNNDescriptor, seq_len: int, batch_size: int) -> int:
    """Return the multiply-adds of a forward."""
    return _work_of_row(desc) * seq_len * batch_size


@lru_cache(1024)
def _work_of_row(desc: RNNDescriptor) -> int:
    return sum(layer.work for layer in layers_of(desc))


def reads_in_place(desc: RNNDescriptor, seq_len: int, batch_size: int, backward: bool = False) -> bool:
    """Return whether forward, or backward, reads the weights in place.

    Forward reads W once for each chunk of input, and R once for each step.

    Projection weights are always packed: an in-place version would add 0.5 s of compile time to every cell.
    """
    if desc.projected:
        return False
    if backward:
        at_once = MAX_ROWS_IN_PLACE
        return -(-seq_len * batch_size // at_once) + seq_len * -(-batch_size // at_once) < _READS_BACK
    fits = batch_size * desc.hidden_size * desc.np_dtype.itemsize <= CACHED_BYTES  # else h leaves the cache
    return fits and -(-seq_len // steps_at_once(batch_size)) + seq_len < _READS


def steps_at_once(batch_size: int) -> int:
    """Return the number of steps whose input a stepwise call multiplies at once."""
    return -(-_INPUT_ROWS // max(batch_size, 1))


def chunk_of(group: Sequence[Layer], batch_size: int) -> int:
    """Return the number of steps of a chunk of gates in forward, for all pseudo-layers that run at once."""
    columns = group[0].columns * (1 if is_stack(group) else len(group))
    rows = (_CHUNK_BYTES if group[0].precision is None else _REDUCED_CHUNK_BYTES) // (columns * 4)
    if group[0].precision is not None and 4 * max(layer.input_weights for layer in group) > CACHED_BYTES:
        rows = max(rows, ROWS_AT_ONCE)
    return max(1, rows // batch_size)


def steps_of_call(group: Sequence[Layer], batch_size: int, chunk: int) -> int:
    """Return the number of steps of a kernel call: a multiple of chunks, or less if one has too many rows to list."""
    listed = max(LISTED_ROWS // batch_size, 1)
    interruptible = _CALL_WORK // (sum(layer.work for layer in group) * batch_size)
    return min(max(interruptible // chunk, 1) * chunk, listed // chunk * chunk or listed)


@lru_cache(1024)
def steps_of_one_call(desc: RNNDescriptor, batch_size: int) -> int:
    """Return the number of steps of the longest batch that runs in one kernel call for each group of layers, forward
    and backward."""
    rows = max(batch_size, 1)
    back = gradient_chunk(rows, desc.np_dtype.itemsize)
    groups = groups_of(desc, desc.dropout > 0)
    return min(steps_of_call(group, rows, chunk) for group in groups for chunk in (chunk_of(group, rows), back))


def slabs_of(layers: Sequence[Layer], steps: Steps) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) of slabs of steps: in inference all layers run one slab before the next.

    Stacked layers of one direction have short slabs, so that little of the lower layers' outputs is in memory: a slab's
    outputs take the space of a chunk's gates.
    """
    total = max(steps.seq_len, 1)
    slab = total
    if len(layers) > 1 and layers[0].direction == layers[1].direction:
        slab = min(total, layers[0].columns // layers[0].sizes.hidden * chunk_of(layers[:1], max(steps.batch_size, 1)))
    for start in range(0, total, slab):
        yield start, min(start + slab, steps.seq_len)


def is_stepwise(desc: RNNDescriptor, steps: Steps) -> bool:
    """Return whether an inference runs all layers step by step, in one kernel call."""
    size = steps.seq_len, steps.batch_size
    count = steps.seq_len * steps.batch_size
    is_short = count * num_weights(desc) <= _STEPWISE_WORK or reads_in_place(desc, *size)
    is_to_zeros = steps.resets is None or steps.resets.is_to_zeros
    return desc.num_directions == 1 and count > 0 and is_short and is_to_zeros


def is_stepwise_in_modules(desc: RNNDescriptor, steps: Steps) -> bool:
    """Return the same of a call through PyTorch, whose weights are flat."""
    fits = work_of(desc, steps.seq_len, steps.batch_size) <= _STEPWISE_WORK_OF_MODULES
    return fits and is_stepwise(desc, steps)


def is_prepared(desc: RNNDescriptor, seq_len: int, batch_size: int) -> bool:
    """Return whether a training call through PyTorch runs as a `PreparedCall`."""
    of_row, of_step = _workspace_nbytes(desc)
    return 0 < seq_len * batch_size and (of_row + seq_len * of_step) * batch_size <= _PREPARED_BYTES


@lru_cache(1024)
def _workspace_nbytes(desc: RNNDescriptor) -> tuple[int, int]:
    """Return the bytes of a workspace: of a sequence without steps, and of one step more."""
    none, one = (workspace_nbytes(desc, seq_len, 1) for seq_len in (0, 1))
    return none, one - none


def is_copied(seq_len: int, nbytes: int) -> bool:
    """Return whether the memory of a `PreparedCall` is copied for backward."""
    return seq_len == 1 or nbytes <= _COPIED_BYTES


def gathers(desc: RNNDescriptor, batch_size: int) -> bool:
    """Return whether to gather the weight gradients of single-step calls with `batch_size` sequences.

    Only with one pseudo-layer: with several, later ones overwrite the gates' gradients of the first ones. Only without
    vectors, whose gradients are added up step by step.
    """
    is_large = num_weights(desc) * desc.np_dtype.itemsize >= _GATHERED_BYTES
    is_one = desc.num_pseudo_layers == 1 and not desc.cell.declaration.vectors
    return is_one and is_large and 0 < batch_size <= _GATHERED_SEQUENCES
