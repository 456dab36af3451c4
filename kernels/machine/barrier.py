"""How the threads of a team come together inside a kernel: who takes part, and the barrier. Emitted as LLVM IR.

All state is in one int64 array, `sync`. The caller of a kernel says there what is to be run, opens a door for the
helpers and closes it when all are in, or when its patience ends: a helper that sleeps, or whose core is taken by
another program, costs no more than that. A helper goes from one call to the next in compiled code: back in Python it
would wait for the interpreter's lock, which the caller holds between two calls, for longer than a small kernel takes.
"""

import sys

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .jit import inner, kernel
from .registers import data_pointer

# Places in `sync`; what is waited for stands on cache lines of its own. DOOR holds number*DOOR_STEP + members inside,
# plus CLOSED once the kernel's crew is complete; ARRIVED counts arrivals at barriers, BASE is its value at the start.
# PROGRESS says how far the first of two crews has come, where the second follows it. From TAKEN on each member has a
# line, which says what is taken of its share of the work (`sharing.claim`). Behind the places of the whole crew are
# those of the crews that it may divide into (`sharing.divide`).
ARRIVED, DOOR, BASE, NUMBER, PATIENCE, _FUNCTION, _FRAME, PROGRESS, TAKEN = 0, 16, 32, 33, 34, 35, 36, 48, 64
LINE = 16
CREWS = 3  # the whole one and two that it divides into
DOOR_STEP, CLOSED = 1 << 20, 1 << 19
AWAKE_TURNS = 8_000  # turns of a helper's waiting loop, about 200 us; a sleeping one takes 80 us to wake
_SPINS_BEFORE_YIELD = 4000  # a member that waits longer (about 100 us) has lost its partner's core: let others run
_PLACES = 2  # by Numba's convention a function's first two arguments are the places of its result and of an error
_I64 = ir.IntType(64)


def sync_size(members):
    """Elements of `sync` for a team of so many."""
    return CREWS * (TAKEN + members * LINE)


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
def load(typingctx, sync, place):
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
def exchange(typingctx, sync, place, expected, value):
    """Replace `expected` by `value`; returns whether it was there."""

    def generate(context, builder, signature, arguments):
        sync, place, expected, value = arguments
        pointer = data_pointer(context, builder, signature.args[0], sync, place)
        result = builder.cmpxchg(pointer, expected, value, "acq_rel", "acquire")
        return builder.extract_value(result, 1)

    return types.boolean(sync, types.int64, types.int64, types.int64), generate


def _helpers_entry(kernel, frame_type):
    """A function (frame, member, members) that calls the kernel with the arguments in the frame, but as that member."""
    kind = ir.FunctionType(ir.VoidType(), [frame_type.as_pointer(), _I64, _I64])
    entry = ir.Function(kernel.module, kind, f"{kernel.name}.helper")
    entry.linkage = "internal"
    builder = ir.IRBuilder(entry.append_basic_block())
    frame, member, members = entry.args
    own = {"arg.member": member, "arg.members": members}
    arguments = kernel.args[_PLACES:]
    assert own.keys() <= {argument.name for argument in arguments}, "not a kernel of the contract, or another Numba"
    values = [builder.load(cgutils.gep_inbounds(builder, frame, 0, number)) for number in range(len(arguments))]
    values = [own.get(argument.name, value) for argument, value in zip(arguments, values, strict=True)]
    places = [builder.alloca(argument.type.pointee) for argument in kernel.args[:_PLACES]]
    builder.call(kernel, places + values, attrs=["noinline"])
    builder.ret_void()
    return entry


@intrinsic
def publish(typingctx, sync, member, members):
    """Let helpers call the kernel that this stands in, with the arguments of this call.

    They lie in the caller's stack frame: valid for who is let in, since the caller does not leave before.
    """

    def generate(context, builder, signature, arguments):
        sync, member, members = arguments
        kernel = builder.function
        frame_type = ir.LiteralStructType([argument.type for argument in kernel.args[_PLACES:]])
        with builder.goto_entry_block():
            frame = builder.alloca(frame_type)
        entry = _helpers_entry(kernel, frame_type)
        calls = builder.and_(builder.icmp_signed("==", member, _I64(0)), builder.icmp_signed(">", members, _I64(1)))
        with builder.if_then(calls):
            for number, argument in enumerate(kernel.args[_PLACES:]):
                builder.store(argument, cgutils.gep_inbounds(builder, frame, 0, number))
            for place, address in ((_FUNCTION, entry), (_FRAME, frame)):
                target = data_pointer(context, builder, signature.args[0], sync, _I64(place))
                builder.store(builder.ptrtoint(address, _I64), target)
        return context.get_dummy_value()

    return types.void(sync, member, members), generate


@intrinsic
def _call_published(typingctx, sync, member, members):
    """Run what the caller has published, as this member."""

    def generate(context, builder, signature, arguments):
        sync, *numbers = arguments
        function, frame = (
            builder.load(data_pointer(context, builder, signature.args[0], sync, _I64(place)))
            for place in (_FUNCTION, _FRAME)
        )
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _I64, _I64]).as_pointer()
        builder.call(builder.inttoptr(function, kind), [builder.inttoptr(frame, byte), *numbers])
        return context.get_dummy_value()

    return types.void(sync, types.int64, types.int64), generate


@inner
def _wait(spins):
    """One more turn of waiting for a member of the crew; returns their number."""
    _pause()
    if spins > _SPINS_BEFORE_YIELD:
        _give_way()
    return spins + 1


@inner
def gather(sync, member, members):
    """Size of the crew that runs the kernel: its caller opens the door and waits for `members` as long as it may."""
    if member > 0 or members == 1:
        return members
    for crew in range(0, sync.size, sync.size // CREWS):
        _store(sync, crew + BASE, load(sync, crew + ARRIVED))
    _store(sync, PROGRESS, 0)
    door = load(sync, NUMBER) * DOOR_STEP + 1
    _store(sync, DOOR, door)
    for _ in range(load(sync, PATIENCE)):
        if load(sync, DOOR) == door + members - 1:
            break
        _pause()
    return _add(sync, DOOR, CLOSED) - door + 1


@kernel
def serve(sync, known, turns):
    """Take part in every call after number `known`, until none comes for `turns` turns; returns the last one's number.

    This is where helpers live. One that comes to a call too late, when the door is closed, waits for the next.
    """
    waited = 0
    while waited < turns:
        door = load(sync, DOOR)
        number, inside = door // DOOR_STEP, door % DOOR_STEP
        if number > known and inside < CLOSED:
            if exchange(sync, DOOR, door, door + 1):
                spins = 0
                while load(sync, DOOR) % DOOR_STEP < CLOSED:
                    spins = _wait(spins)
                _call_published(sync, inside, load(sync, DOOR) % DOOR_STEP - CLOSED)
                known, waited = number, 0
        elif number > known:
            known, waited = number, 0
        else:
            waited += 1
            _pause()
    return known


@inner
def meet(sync, members):
    """Barrier of a crew: return once all its members are here."""
    if members == 1:
        return
    base = load(sync, BASE)
    ticket = _add(sync, ARRIVED, 1) - base
    target = base + (ticket // members + 1) * members
    spins = 0
    while load(sync, ARRIVED) < target:
        spins = _wait(spins)


@inner
def report(sync, progress):
    """Let the crew that follows go on; said by one member when its crew has met."""
    _store(sync, PROGRESS, progress)


@inner
def follow(sync, progress):
    """Return once the crew in front has come this far."""
    spins = 0
    while load(sync, PROGRESS) < progress:
        spins = _wait(spins)
