"""How the threads of a team come together inside a kernel: who takes part, and the barrier. Emitted as LLVM IR.

All state is in one int64 array, `sync`. The caller of a kernel opens a door for the helpers and closes it when all are
in, or when its patience ends: a helper that sleeps, or whose core is taken by another program, costs no more than that.
"""

import sys

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .jit import kernel
from .simd import data_pointer

# Places in `sync`; what is waited for stands on cache lines of its own. DOOR holds number*DOOR_STEP + members inside,
# plus CLOSED once the kernel's crew is complete; ARRIVED counts arrivals at barriers, BASE is its value at the start.
ARRIVED, DOOR, BASE, NUMBER, PATIENCE, SYNC_SIZE = 0, 16, 32, 33, 34, 48
DOOR_STEP, CLOSED = 1 << 20, 1 << 19
AWAKE_TURNS = 8_000  # turns of a helper's waiting loop, about 200 us; a sleeping one takes 80 us to wake
_SPINS_BEFORE_YIELD = 4000  # a member that waits longer (about 100 us) has lost its partner's core: let others run
_I64 = ir.IntType(64)


def _emit_pause(builder):
    """Tell the core that this is a waiting loop."""
    machine = builder.module.triple.split("-")[0]
    if machine == "x86_64":
        hint, arguments = "llvm.x86.sse2.pause", []
    elif machine in ("aarch64", "arm64"):
        hint, arguments = "llvm.aarch64.hint", [ir.IntType(32)(1)]
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
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(32), []), name)
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _load(typingctx, sync, place):
    def generate(context, builder, signature, arguments):
        return builder.load_atomic(data_pointer(context, builder, signature.args[0], *arguments), "acquire", 8)

    return types.int64(sync, types.int64), generate


@intrinsic
def _store(typingctx, sync, place, value):
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
def _exchange(typingctx, sync, place, expected, value):
    """Replace `expected` by `value`; returns whether it was there."""

    def generate(context, builder, signature, arguments):
        sync, place, expected, value = arguments
        pointer = data_pointer(context, builder, signature.args[0], sync, place)
        result = builder.cmpxchg(pointer, expected, value, "acq_rel", "acquire")
        return builder.extract_value(result, 1)

    return types.boolean(sync, types.int64, types.int64, types.int64), generate


@kernel
def wait_for_work(sync, known, turns):
    """Spin until a door of a later number than `known` is opened, at most `turns` turns."""
    for _ in range(turns):
        if _load(sync, DOOR) // DOOR_STEP > known:
            return
        _pause()


@kernel
def enroll(sync, member, members):
    """(number, size) of this thread in the crew that runs the kernel; the number is -1 for a helper that came too late.

    The caller, member 0, opens the door and waits for `members` at most sync[PATIENCE] turns. A helper gives the
    negative number of the call as `member`. One that is too late waits for the next call, as in `leave`.
    """
    if members == 1:
        return 0, 1
    if member == 0:
        _store(sync, BASE, _load(sync, ARRIVED))
        door = _load(sync, NUMBER) * DOOR_STEP + 1
        _store(sync, DOOR, door)
        for _ in range(_load(sync, PATIENCE)):
            if _load(sync, DOOR) == door + members - 1:
                break
            _pause()
        return 0, _add(sync, DOOR, CLOSED) - door + 1
    number = -member
    place = -1
    while place < 0:
        door = _load(sync, DOOR)
        if door // DOOR_STEP > number or (door // DOOR_STEP == number and door % DOOR_STEP >= CLOSED):
            wait_for_work(sync, number, AWAKE_TURNS)
            return -1, 0
        if door // DOOR_STEP == number and _exchange(sync, DOOR, door, door + 1):
            place = door % DOOR_STEP
        else:
            _pause()
    while _load(sync, DOOR) % DOOR_STEP < CLOSED:
        _pause()
    return place, _load(sync, DOOR) % DOOR_STEP - CLOSED


@kernel
def meet(sync, members):
    """Barrier of a crew: return once all its members are here."""
    if members == 1:
        return
    base = _load(sync, BASE)
    ticket = _add(sync, ARRIVED, 1) - base
    target = base + (ticket // members + 1) * members
    spins = 0
    while _load(sync, ARRIVED) < target:
        _pause()
        spins += 1
        if spins > _SPINS_BEFORE_YIELD:
            _give_way()


@kernel
def leave(sync, member, members):
    """Barrier at the end of a kernel; a helper then waits a while for the next call, still inside the compiled code.

    Back in Python it would have to wait for the interpreter's lock, which the caller holds between two calls, and
    waking from that wait takes longer than a small kernel does.
    """
    if members == 1:
        return
    number = _load(sync, DOOR) // DOOR_STEP
    meet(sync, members)
    if member > 0:
        wait_for_work(sync, number, AWAKE_TURNS)
