"""Atomic counters that the members of a team meet at, emitted as LLVM IR."""

import sys

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .jit import kernel
from .simd import data_pointer

_I64 = ir.IntType(64)
SYNC_SIZE, OPENED = 32, 16  # counters on cache lines of their own: [0] arrivals, [OPENED] kernels entered
_SPINS_BEFORE_YIELD = 4000  # a member that waits longer (about 100 us) has lost its partner's core: let others run


def _emit_pause(builder):
    """Tell the core that this is a waiting loop; after a while, let another thread have it."""
    machine = builder.module.triple.split("-")[0]
    if machine == "x86_64":
        hint, arguments = "llvm.x86.sse2.pause", []
    elif machine in ("aarch64", "arm64"):
        hint, arguments = "llvm.aarch64.hint", [ir.IntType(32)(1)]
    else:
        return
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, hint), arguments)


def _emit_yield(builder):
    name = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
    give_way = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(32), []), name)
    builder.call(give_way, [])


def _emit_wait(builder, counter, reached, limit):
    """Spin until `reached(value of counter)`, at most `limit` turns where a limit is given; returns the last value."""
    function, before = builder.function, builder.block
    head, again, rest, after = (function.append_basic_block(name) for name in ("wait", "again", "rest", "met"))
    builder.branch(head)
    builder.position_at_end(head)
    turns = builder.phi(_I64)
    turns.add_incoming(_I64(0), before)
    value = builder.load_atomic(counter, "acquire", 8)
    stop = reached(value)
    if limit is not None:
        stop = builder.or_(stop, builder.icmp_signed(">=", turns, limit))
    builder.cbranch(stop, after, again)
    builder.position_at_end(again)
    _emit_pause(builder)
    following = builder.add(turns, _I64(1))
    weary = builder.icmp_signed(">=", following, _I64(_SPINS_BEFORE_YIELD))
    if limit is None:
        with builder.if_then(weary, likely=False):
            _emit_yield(builder)
    builder.branch(rest)
    builder.position_at_end(rest)
    turns.add_incoming(following, rest)
    builder.branch(head)
    builder.position_at_end(after)
    return value


@intrinsic
def meet(typingctx, sync, start, members):
    """Barrier: return once `members` calls have been made since the last meeting. Counts arrivals in sync[start]."""

    def generate(context, builder, signature, arguments):
        sync, start, members = arguments
        counter = data_pointer(context, builder, signature.args[0], sync, start)
        ticket = builder.atomic_rmw("add", counter, _I64(1), "acq_rel")
        target = builder.mul(builder.add(builder.sdiv(ticket, members), _I64(1)), members)
        _emit_wait(builder, counter, lambda value: builder.icmp_signed(">=", value, target), None)
        return context.get_dummy_value()

    return types.void(sync, types.int64, types.int64), generate


@intrinsic
def _count_up(typingctx, sync, start):
    """Add one to the counter sync[start]."""

    def generate(context, builder, signature, arguments):
        counter = data_pointer(context, builder, signature.args[0], *arguments)
        builder.atomic_rmw("add", counter, _I64(1), "acq_rel")
        return context.get_dummy_value()

    return types.void(sync, types.int64), generate


@intrinsic
def _wait_for_change(typingctx, sync, start, known, turns):
    """Spin until sync[start] differs from `known`, at most `turns` turns; returns its value."""

    def generate(context, builder, signature, arguments):
        sync, start, known, turns = arguments
        counter = data_pointer(context, builder, signature.args[0], sync, start)
        return _emit_wait(builder, counter, lambda value: builder.icmp_signed("!=", value, known), turns)

    return types.int64(sync, types.int64, types.int64, types.int64), generate


@kernel
def open_work(sync, member, members):
    """Tell the helpers that the first member has entered a kernel, from where the GIL is free for them to follow."""
    if members > 1 and member == 0:
        _count_up(sync, OPENED)


@kernel
def wait_for_work(sync, known, turns):
    """Spin until a kernel has been entered since `known` were, at most `turns` turns; returns how many were."""
    return _wait_for_change(sync, OPENED, known, turns)
