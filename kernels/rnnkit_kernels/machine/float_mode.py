"""The floating-point mode of a thread, which kernels set at entry and put back.

Programs and libraries change it: `torch.set_flush_denormal`, libraries built with -ffast-math, XLA on its own threads.
It says how results are rounded and whether subnormal numbers are 0. Results of kernels must not depend on it.
"""

import inspect

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .registers import I32, I64

_X86_CONTROL, _X86_DEFAULT = 0xFFC0, 0x1F80  # of MXCSR: round to nearest, subnormal numbers, no exceptions
_X86, _ARM = "x86_64", ("aarch64", "arm64")
_BYTE = ir.IntType(8).as_pointer()


def emit_mode(builder):
    """Emit the read of the thread's mode, None on an unknown processor."""
    if _machine(builder) == _X86:
        with builder.goto_entry_block():
            place = builder.alloca(I32)
        _call(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), builder.bitcast(place, _BYTE))
        return builder.zext(builder.load(place), I64)
    if _machine(builder) in _ARM:
        return _call(builder, "llvm.aarch64.get.fpcr", I64)
    return None


def emit_default_mode(builder, mode):
    """Emit the change to the default mode, unless `mode` is that."""
    if mode is not None:
        with builder.if_then(_differs(builder, mode), likely=False):
            kept = builder.and_(mode, I64(~_X86_CONTROL))  # flags of what has happened
            _emit_write(builder, builder.or_(kept, I64(_X86_DEFAULT)) if _machine(builder) == _X86 else I64(0))


def emit_former_mode(builder, mode):
    """Emit the change back to `mode`, unless that is the default."""
    if mode is not None:
        with builder.if_then(_differs(builder, mode), likely=False):
            _emit_write(builder, mode)


def _machine(builder):
    return builder.module.triple.split("-")[0]


def _differs(builder, mode):
    if _machine(builder) == _X86:
        return builder.icmp_signed("!=", builder.and_(mode, I64(_X86_CONTROL)), I64(_X86_DEFAULT))
    return builder.icmp_signed("!=", mode, I64(0))


def _emit_write(builder, mode):
    if _machine(builder) in _ARM:
        _call(builder, "llvm.aarch64.set.fpcr", ir.VoidType(), mode)
        return
    with builder.goto_entry_block():
        place = builder.alloca(I32)
    builder.store(builder.trunc(mode, I32), place)
    _call(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), builder.bitcast(place, _BYTE))


def _call(builder, name, result, *arguments):
    kind = ir.FunctionType(result, [one.type for one in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


@intrinsic
def _enter(typingctx):
    """Set the default mode; returns the former one."""

    def generate(context, builder, signature, arguments):
        mode = emit_mode(builder)
        emit_default_mode(builder, mode)
        return I64(0) if mode is None else mode

    return types.int64(), generate


@intrinsic
def _leave(typingctx, mode):
    """Set this mode again."""

    def generate(context, builder, signature, arguments):
        if _machine(builder) in (_X86, *_ARM):
            emit_former_mode(builder, *arguments)
        return context.get_dummy_value()

    return types.void(types.int64), generate


def in_default_mode(function, compiled):
    """Return a Python function with the parameters of `function` that calls `compiled` in the default mode."""
    given = ", ".join(inspect.signature(function).parameters)
    lines = f"def {function.__name__}({given}):", "mode = enter()", f"result = run({given})", "leave(mode)"
    space = {"__name__": function.__module__, "enter": _enter, "run": compiled, "leave": _leave}
    exec("\n    ".join([*lines, "return result"]), space)  # noqa: S102  the lines above
    return space[function.__name__]
