"""How the threads of a team come together inside a kernel: who takes part, and the barrier. Emitted as LLVM IR.

All state is in one int64 array, `sync`. The caller of a kernel posts there what is to be run, hands out tickets to
helpers, and stops when each has one, or after so many spins: a helper that sleeps, or whose core is taken by another
program, costs no more than that. A helper goes from one call to the next in compiled code: back in Python it would wait
for the interpreter's lock, which the caller holds between two calls, for longer than a small kernel takes.
"""

import sys
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .arrays import data_pointer
from .jit import inner, kernel
from .registers import ABI_ARGUMENTS, I32, I64

# Elements of `sync`, in groups on cache lines of their own. ARRIVED counts those who are at a barrier, PASSED the
# barriers: on one line, which comes to the last one to arrive, and from there to those who wait. TICKET is the next
# ticket, number*TICKET_STEP + thread_id, plus CLOSED once the team is complete; _MOST says how many there are. PROGRESS
# says how far the first of two teams has come, where the second waits for it. From TAKEN on each thread has a line,
# which says what is taken of its share of the work (`partition.next_block`), and from MEETING on in it a barrier for
# threads that share rows (`partition.team_of_rows`). Behind the elements of the whole team are those of the teams that
# it may split into (`partition.split_team`).
ARRIVED, PASSED, TICKET, PROGRESS, TAKEN = 0, 1, 16, 48, 64
NUMBER, SPIN_LIMIT, _MOST, _FUNCTION, _FRAME = range(32, 37)
CACHE_LINE, MEETING = 16, 8
TEAMS = 3  # the whole one and two that it splits into
TICKET_STEP, CLOSED = 1 << 20, 1 << 19
AWAKE_SPINS = 8_000  # of a helper that waits for a call, about 200 us; a sleeping one takes 80 us to wake
_SPINS_BEFORE_YIELD = 4000  # who waits longer (about 100 us) has lost its partner's core: let others run
_NO_CALL = 1 << 40  # a number that none has


class Team(NamedTuple):
    """The threads that run a kernel, as one of them sees it: number `thread_id` of `size`, and what they meet at."""

    thread_id: int
    size: int
    sync: np.ndarray


def sync_size(size):
    """Elements of `sync` for a team of so many."""
    return TEAMS * (TAKEN + size * CACHE_LINE)


def _emit_pause(builder):
    """Tell the core that this is a waiting loop."""
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
def _give_way(typingctx):
    """Let another thread have the core."""

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
    """Add to a counter; returns what it was."""

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


def _helpers_entry(kernel, frame_type, own_place):
    """A function (frame, thread_id, size) that calls the kernel with the arguments in the frame, but as that thread:
    thread_id and size have their place among them."""
    kind = ir.FunctionType(ir.VoidType(), [frame_type.as_pointer(), I64, I64])
    entry = ir.Function(kernel.module, kind, f"{kernel.name}.helper")
    entry.linkage = "internal"
    builder = ir.IRBuilder(entry.append_basic_block())
    frame, thread_id, size = entry.args
    places = range(len(frame_type.elements))
    values = [builder.load(cgutils.gep_inbounds(builder, frame, 0, place)) for place in places]
    values[own_place : own_place + 2] = thread_id, size
    results = [builder.alloca(argument.type.pointee) for argument in kernel.args[:ABI_ARGUMENTS]]
    builder.call(kernel, results + values, attrs=["noinline"])
    builder.ret_void()
    return entry


@intrinsic
def post_call(typingctx, sync, thread_id, size):
    """Let helpers call the kernel that this stands in, with the arguments of this call.

    They lie in the caller's stack frame: valid for who has a ticket, since the caller does not leave before. The last
    ones are thread_id, size and sync (`jit.TeamKernel`), of which sync, an array, is several in LLVM's function.
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
        entry = _helpers_entry(kernel, frame_type, own_place)
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
    """Run what the caller has posted, as this thread."""

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
    """Wait once more for another thread; returns how often that was."""
    _pause()
    if spins > _SPINS_BEFORE_YIELD:
        _give_way()
    return spins + 1


@inner
def join(sync, thread_id, size, most=CLOSED):
    """The team that runs the kernel, of `size` threads for all but the first.

    That is the caller: it hands out so many tickets, or the `most` that it has work for, and waits as long as it may;
    how many have come then all others are told.
    """
    size = min(size, most) if thread_id == 0 else size
    if thread_id > 0 or size == 1:
        return Team(thread_id, size, sync)
    store(sync, PROGRESS, 0)
    store(sync, _MOST, size)
    first = load(sync, NUMBER) * TICKET_STEP + 1
    store(sync, TICKET, first)
    for _ in range(load(sync, SPIN_LIMIT)):
        if load(sync, TICKET) == first + size - 1:
            break
        _pause()
    return Team(thread_id, _add(sync, TICKET, CLOSED) - first + 1, sync)


@inner
def take_part(sync, known, last, most_spins):
    """Take part in every call after number `known`, until none comes for so many spins, or the last one's number is
    `last`; returns that number.

    One that comes to a call too late, when no ticket is left or the team is complete, waits for the next; that others
    were enough keeps nobody awake.
    """
    waited = 0
    while waited < most_spins and known < last:
        ticket = load(sync, TICKET)
        number, taken = ticket // TICKET_STEP, ticket % TICKET_STEP
        if number > known and taken < load(sync, _MOST):
            if exchange(sync, TICKET, ticket, ticket + 1):
                spins = 0
                while load(sync, TICKET) % TICKET_STEP < CLOSED:
                    spins = _wait(spins)
                _call_posted(sync, taken, load(sync, TICKET) % TICKET_STEP - CLOSED)  # `taken` is its thread_id
                known, waited = number, 0
        elif number > known:
            known, waited = number, waited if taken % CLOSED >= load(sync, _MOST) else 0
        else:
            waited += 1
            _pause()
    return known


@kernel
def serve(sync, known, most_spins):
    """This is where helpers live."""
    return take_part(sync, known, _NO_CALL, most_spins)


@inner
def barrier(team):
    """Return once all threads of the team are here."""
    if team.size == 1:
        return
    sync, spins = team.sync, 0
    passed = load(sync, PASSED)  # stays that until this thread has arrived, too
    if _add(sync, ARRIVED, 1) == team.size - 1:
        store(sync, ARRIVED, 0)
        store(sync, PASSED, passed + 1)
        return
    while load(sync, PASSED) == passed:
        spins = _wait(spins)


@inner
def post_progress(team, progress):
    """Let the team that waits for this one go on; said by one thread, behind a barrier of its team."""
    store(team.sync, PROGRESS, progress)


@inner
def wait_for_progress(team, progress):
    """Return once the team in front has come this far."""
    spins = 0
    while load(team.sync, PROGRESS) < progress:
        spins = _wait(spins)
