"""Synchronization of a team inside kernels: joining a call, barriers, and progress. Emitted as LLVM IR.

All state is in one int64 array, `sync`. The caller of a kernel publishes the call there and hands out tickets to
workers (the worker threads of the pool), until each has one or a limit of spins is reached: a worker that sleeps, or
whose core another program uses, costs no more than that. A worker goes from call to call in compiled code: in Python
it would wait for the GIL, which the caller holds between two calls, for longer than a small kernel takes.
"""

import sys
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .arrays import data_pointer
from .float_mode import emit_default_mode, emit_former_mode, emit_mode
from .jit import inner, kernel
from .registers import ABI_ARGUMENTS, I32, I64

# Elements of `sync`, in groups on separate cache lines:
#   ARRIVED     threads at the barrier
#   PASSED      barriers so far; on the cache line of ARRIVED: the last thread to arrive writes both, so those that
#               wait fetch one line
#   TICKET      next ticket: number*TICKET_STEP + thread_id, plus CLOSED once the team is complete
#   PROGRESS    steps that the first of two pipelined teams has done
#   NUMBER      number of the call
#   SPIN_LIMIT  spins that the caller waits for workers
#   _NUM_TICKETS   size of a full team: tickets have the thread_ids 1 to _NUM_TICKETS - 1; thread 0 is the caller
#   _FUNCTION, _FRAME   the published call
#   TAKEN       one line for each thread: the blocks taken of its share (`partition.next_block`), and from BARRIER on a
#               barrier for threads that share rows (`partition.team_of_rows`)
# The elements of the teams that the team may split into (`partition.split_team`) follow those of the whole team.
ARRIVED, PASSED, TICKET, PROGRESS, TAKEN = 0, 1, 16, 48, 64
NUMBER, SPIN_LIMIT, _NUM_TICKETS, _FUNCTION, _FRAME = range(32, 37)
CACHE_LINE, BARRIER = 16, 8
TEAMS = 3  # the whole team, and the two that it may split into
TICKET_STEP, CLOSED = 1 << 20, 1 << 19
AWAKE_SPINS = 8_000  # of a worker that waits for a call, about 200 us; a sleeping one takes 80 us to wake
_SPINS_BEFORE_YIELD = 4000  # after about 100 us the awaited thread has probably lost its core: yield
_NO_CALL = 1 << 40  # larger than any number of a call


class Team(NamedTuple):
    """The threads that run a kernel, as seen by thread `thread_id` of `size`; `sync` holds their shared state."""

    thread_id: int
    size: int
    sync: np.ndarray


def sync_size(size):
    """Return the elements of `sync` for a team of `size` threads."""
    return TEAMS * (TAKEN + size * CACHE_LINE)


def _emit_pause(builder):
    """Tell the core that this is a spin loop."""
    machine = builder.module.triple.split("-")[0]
    if machine == "x86_64":
        hint, arguments = "llvm.x86.sse2.pause", []
    elif machine in ("aarch64", "arm64"):
        hint, arguments = "llvm.aarch64.hint", [I32(1)]
    else:
        return
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, hint), arguments)


@intrinsic
def _pause(typingctx):
    def generate(context, builder, signature, arguments):
        _emit_pause(builder)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _yield_core(typingctx):
    """Yield the core to another thread."""

    def generate(context, builder, signature, arguments):
        name = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(I32, []), name)
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def load(typingctx, sync, place):
    def generate(context, builder, signature, arguments):
        return builder.load_atomic(data_pointer(context, builder, signature.args[0], *arguments), "acquire", 8)

    return types.int64(sync, types.int64), generate


@intrinsic
def store(typingctx, sync, place, value):
    def generate(context, builder, signature, arguments):
        sync, place, value = arguments
        builder.store_atomic(value, data_pointer(context, builder, signature.args[0], sync, place), "release", 8)
        return context.get_dummy_value()

    return types.void(sync, types.int64, types.int64), generate


@intrinsic
def _add(typingctx, sync, place, value):
    """Add to a counter; returns its old value."""

    def generate(context, builder, signature, arguments):
        sync, place, value = arguments
        counter = data_pointer(context, builder, signature.args[0], sync, place)
        return builder.atomic_rmw("add", counter, value, "acq_rel")

    return types.int64(sync, types.int64, types.int64), generate


@intrinsic
def exchange(typingctx, sync, place, expected, value):
    """Replace `expected` by `value`; returns whether it was there."""

    def generate(context, builder, signature, arguments):
        sync, place, expected, value = arguments
        pointer = data_pointer(context, builder, signature.args[0], sync, place)
        result = builder.cmpxchg(pointer, expected, value, "acq_rel", "acquire")
        return builder.extract_value(result, 1)

    return types.boolean(sync, types.int64, types.int64, types.int64), generate


def _workers_entry(kernel, frame_type, own_place):
    """Emit the function (frame, thread_id, size) that calls the kernel with the arguments in the frame, but with this
    thread_id and size, which are at `own_place`."""
    kind = ir.FunctionType(ir.VoidType(), [frame_type.as_pointer(), I64, I64])
    entry = ir.Function(kernel.module, kind, f"{kernel.name}.worker")
    entry.linkage = "internal"
    builder = ir.IRBuilder(entry.append_basic_block())
    frame, thread_id, size = entry.args
    places = range(len(frame_type.elements))
    values = [builder.load(cgutils.gep_inbounds(builder, frame, 0, place)) for place in places]
    values[own_place : own_place + 2] = thread_id, size
    results = [builder.alloca(argument.type.pointee) for argument in kernel.args[:ABI_ARGUMENTS]]
    mode = emit_mode(builder)
    emit_default_mode(builder, mode)
    builder.call(kernel, results + values, attrs=["noinline"])
    emit_former_mode(builder, mode)
    builder.ret_void()
    return entry


@intrinsic
def post_call(typingctx, sync, thread_id, size):
    """Publish this call of the enclosing kernel, with its arguments, to the workers.

    The arguments are in the caller's stack frame, which is valid for workers with a ticket, as the caller waits for
    them. The last ones are thread_id, size and sync (`jit.TeamKernel`); sync, an array, is several arguments in LLVM.
    """

    def generate(context, builder, signature, arguments):
        sync, thread_id, size = arguments
        kernel = builder.function
        passed = [argument.type for argument in kernel.args[ABI_ARGUMENTS:]]
        last = [*context.get_arg_packer([types.int64, types.int64, signature.args[0]]).argument_types]
        if passed[-len(last) :] != last:
            raise TypeError("post_call: the kernel's last parameters must be thread_id, size and sync")
        frame_type, own_place = ir.LiteralStructType(passed), len(passed) - len(last)
        with builder.goto_entry_block():
            frame = builder.alloca(frame_type)
        entry = _workers_entry(kernel, frame_type, own_place)
        calls = builder.and_(builder.icmp_signed("==", thread_id, I64(0)), builder.icmp_signed(">", size, I64(1)))
        with builder.if_then(calls):
            for number, argument in enumerate(kernel.args[ABI_ARGUMENTS:]):
                builder.store(argument, cgutils.gep_inbounds(builder, frame, 0, number))
            for place, address in ((_FUNCTION, entry), (_FRAME, frame)):
                target = data_pointer(context, builder, signature.args[0], sync, I64(place))
                builder.store(builder.ptrtoint(address, I64), target)
        return context.get_dummy_value()

    return types.void(sync, thread_id, size), generate


@intrinsic
def _call_posted(typingctx, sync, thread_id, size):
    """Run the published call as this thread."""

    def generate(context, builder, signature, arguments):
        sync, *numbers = arguments
        function, frame = (
            builder.load(data_pointer(context, builder, signature.args[0], sync, I64(place)))
            for place in (_FUNCTION, _FRAME)
        )
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, I64, I64]).as_pointer()
        builder.call(builder.inttoptr(function, kind), [builder.inttoptr(frame, byte), *numbers])
        return context.get_dummy_value()

    return types.void(sync, types.int64, types.int64), generate


@inner
def _wait(spins):
    """Spin once; returns the count of spins."""
    _pause()
    if spins > _SPINS_BEFORE_YIELD:
        _yield_core()
    return spins + 1


@inner
def join(sync, thread_id, size, most=CLOSED):
    """Return the team that runs the kernel. A worker gets the final size of the team as `size`.

    Thread 0, the caller, hands out tickets for up to `size` threads, at most `most`, and waits for SPIN_LIMIT spins.
    Then it closes the tickets, which tells the workers the size of the team.
    """
    size = min(size, most) if thread_id == 0 else size
    if thread_id > 0 or size == 1:
        return Team(thread_id, size, sync)
    store(sync, PROGRESS, 0)
    store(sync, _NUM_TICKETS, size)
    first = load(sync, NUMBER) * TICKET_STEP + 1
    store(sync, TICKET, first)
    for _ in range(load(sync, SPIN_LIMIT)):
        if load(sync, TICKET) == first + size - 1:
            break
        _pause()
    return Team(thread_id, _add(sync, TICKET, CLOSED) - first + 1, sync)


@inner
def take_part(sync, known, last, most_spins):
    """Take part in every call after number `known`, until none comes for `most_spins` spins, or until number `last`;
    returns the number of the last call seen.

    A worker that is late, when no ticket is left or the team is closed, waits for the next call. If the other workers
    took all tickets, the call does not restart its count of spins: a worker that is not needed falls asleep.
    """
    waited = 0
    while waited < most_spins and known < last:
        ticket = load(sync, TICKET)
        number, taken = ticket // TICKET_STEP, ticket % TICKET_STEP
        if number > known and taken < load(sync, _NUM_TICKETS):
            if exchange(sync, TICKET, ticket, ticket + 1):
                spins = 0
                while load(sync, TICKET) % TICKET_STEP < CLOSED:
                    spins = _wait(spins)
                _call_posted(sync, taken, load(sync, TICKET) % TICKET_STEP - CLOSED)  # `taken` is the thread_id
                known, waited = number, 0
        elif number > known:
            known, waited = number, waited if taken % CLOSED >= load(sync, _NUM_TICKETS) else 0
        else:
            waited += 1
            _pause()
    return known


@kernel
def serve(sync, known, most_spins):
    """Run the main loop of a worker thread."""
    return take_part(sync, known, _NO_CALL, most_spins)


@inner
def barrier(team):
    """Return once all threads of the team have arrived."""
    if team.size == 1:
        return
    sync, spins = team.sync, 0
    passed = load(sync, PASSED)  # constant until this thread has arrived, too
    if _add(sync, ARRIVED, 1) == team.size - 1:
        store(sync, ARRIVED, 0)
        store(sync, PASSED, passed + 1)
        return
    while load(sync, PASSED) == passed:
        spins = _wait(spins)


@inner
def post_progress(team, progress):
    """Signal progress to the waiting team; called by one thread after a barrier of its team."""
    store(team.sync, PROGRESS, progress)


@inner
def wait_for_progress(team, progress):
    """Return once the leading team has made this progress."""
    spins = 0
    while load(team.sync, PROGRESS) < progress:
        spins = _wait(spins)
