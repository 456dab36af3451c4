"""What `rnnkit.explain` says: the decisions of `route` and `scheduler` for a size, without running anything."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from rnnkit.call.steps import states_shape, steps_of
from rnnkit.call.workspace import workspace_nbytes
from rnnkit.cpu.layer import groups_of, layers_of
from rnnkit.cpu.route import is_stepwise, route, slabs_of, steps_at_once
from rnnkit.cpu.rows import same_length
from rnnkit.cpu.scheduler import Scheduler, threads_of_step
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit_kernels.machine import thread_pool

_Facts = tuple[str, str, int, int, int, int]


def routes(desc: RNNDescriptor, seq_len: int, batch_size: int) -> Iterator[_Facts]:
    """Yield the fields of `explanation.Route` for forward, backward and infer."""
    if seq_len * batch_size == 0:
        yield from [("nothing", "in place", 1, 0, 0, 0)] * 3
        return
    own, size = route(desc, seq_len, batch_size), (seq_len, batch_size)
    yield _by_layer(desc, *size, own.in_place, "forward", workspace_nbytes(desc, *size))
    yield _by_layer(desc, *size, own.in_place_back, "backward", 0)
    if is_stepwise(desc.evaluating, steps_of(*size)):
        yield _stepwise(desc, *size, own.in_place)
    else:
        yield _by_layer(desc.evaluating, *size, own.in_place, "infer", 0)


def compiled(desc: RNNDescriptor) -> tuple[str, ...]:
    """Return the names of the kernels of this descriptor that have machine code in this process."""
    found: set[str] = set()
    for precision, in_place in ((None, False), (None, True)):
        for layer in layers_of(desc, precision, in_place):
            for code_cache in (layer.code_cache, layer.code_cache.get("drawn", {})):
                found |= {kernel.__name__ for kernel in code_cache if hasattr(kernel, "__name__")}
    return tuple(sorted(found))


def _by_layer(desc: RNNDescriptor, seq_len: int, batch_size: int, in_place: bool, call: str, nbytes: int) -> _Facts:
    scheduler = Scheduler(same_length(seq_len, batch_size), desc.np_dtype.itemsize, in_place=in_place)
    threads, kernel_calls, flops, itemsize = 1, 0, 0, desc.np_dtype.itemsize
    layers = layers_of(desc, None, in_place)
    slabs = [*slabs_of(layers, steps_of(seq_len, batch_size))] if call == "infer" else [(0, seq_len)]
    for group in groups_of(desc, desc.dropout > 0, None, in_place):
        schedule = scheduler.backward(group) if call == "backward" else scheduler.forward(group, call == "forward")
        work = sum(layer.work for layer in group) * seq_len * batch_size * (2 if call == "backward" else 1)
        calls = len(scheduler.calls(group, schedule))
        if work // calls // len(slabs) > thread_pool.SINGLE_THREAD_WORK:
            threads = max(threads, schedule.threads)
        kernel_calls += max(calls, len(slabs))
        flops += 2 * work
        if call != "forward":  # the gates of a chunk
            columns = group[0].gradient_columns if call == "backward" else group[0].columns
            nbytes = max(nbytes, len(group) * scheduler.chunk_rows(schedule) * columns * itemsize)
    if not in_place:
        nbytes += int(layers[-1].offsets[-1]) * itemsize
    weights = "in place" if in_place else "packed"
    return "by layer", weights, threads, kernel_calls, nbytes, flops


def _stepwise(desc: RNNDescriptor, seq_len: int, batch_size: int, in_place: bool) -> _Facts:
    layers, itemsize = layers_of(desc.evaluating, None, in_place), desc.np_dtype.itemsize
    work = sum(layer.input_work + layer.step_work for layer in layers) * seq_len * batch_size
    threads = threads_of_step(batch_size, layers, itemsize) if work > thread_pool.SINGLE_THREAD_WORK else 1
    rows = (min(seq_len, steps_at_once(batch_size)) + 1) * batch_size
    states = prod(states_shape(1, batch_size, 1)) * desc.num_layers * (desc.output_size + desc.states_size)
    nbytes = (rows * layers[0].columns + states + (0 if in_place else int(layers[-1].offsets[-1]))) * itemsize
    weights = "in place" if in_place else "packed"
    return "stepwise", weights, min(threads, thread_pool.wanted_size()), 1, nbytes, 2 * work
