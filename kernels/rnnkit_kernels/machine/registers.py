"""The CPU's vector registers, and the operations on them that kernels emit as LLVM IR."""

import ctypes
import sys

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .arrays import FlatArray, data_pointer, view

I32, I64 = ir.IntType(32), ir.IntType(64)
ABI_ARGUMENTS = 2  # by Numba's convention the first two are pointers for the result and for an error
STACK_BYTES = 1 << 15  # of `on_stack`, the size of a small L1 cache


def _host():
    """Return the bytes per vector register, the number of registers, whether the compilation target has a fused
    multiply-add, and its features in LLVM's names."""
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    features = {name[1:] for name in features.split(",") if name.startswith("+")}
    if triple.startswith(("aarch64", "arm64")):
        return 16, 32, True, features | _arm_dots()
    if "avx512f" in features:
        return 64, 32, True, features
    if features & {"avx", "avx2"}:
        return 32, 16, "fma" in features, features
    return 16, 16, False, features


def _arm_dots():
    """Return this ARM CPU's dot products, which LLVM knows from the CPU's name but does not report as features."""
    if config.CPU_NAME:
        return set()  # compiled for another CPU: only its features count
    if sys.platform == "darwin":
        return {"dotprod"}  # every ARM CPU that macOS runs on
    if sys.platform != "linux":
        return set()
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    bits = {"dotprod": (16, 20), "bf16": (26, 14)}  # AT_HWCAP, AT_HWCAP2: Linux, asm/hwcap.h
    return {name for name, (word, bit) in bits.items() if getauxval(word) >> bit & 1}


VECTOR_BYTES, REGISTERS, HAS_FMA, FEATURES = _host()


def emit_fma(builder, a, b, c):
    """a*b + c with one rounding; product and sum if the CPU has no FMA, which libm would emulate."""
    if not HAS_FMA:
        return builder.fadd(builder.fmul(a, b), c)
    scalar = a.type.element if isinstance(a.type, ir.VectorType) else a.type
    bits = {ir.FloatType(): "f32", ir.DoubleType(): "f64"}[scalar]
    kind = f"v{a.type.count}{bits}" if isinstance(a.type, ir.VectorType) else bits
    fused = cgutils.get_or_insert_function(builder.module, ir.FunctionType(a.type, [a.type] * 3), f"llvm.fma.{kind}")
    return builder.call(fused, [a, b, c])


def emit_in_every_lane(builder, value, count):
    """Return the vector of `count` times this value."""
    undefined = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    zeros = ir.Constant(ir.VectorType(I32, count), [I32(0)] * count)
    return builder.shuffle_vector(builder.insert_element(undefined, value, I32(0)), undefined, zeros)


@intrinsic
def not_inlined(typingctx):
    """Mark the enclosing function noinline: inlined, it would be optimised again in each caller."""

    def generate(context, builder, signature, arguments):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def on_stack(typingctx, array):
    """Return STACK_BYTES of uninitialised memory, as an array of this one's dtype, valid until the calling function
    returns.

    That function must not be inlined: in a loop, each iteration would take more of the stack.
    """
    result = FlatArray(array.dtype)

    def generate(context, builder, signature, arguments):
        kind = context.get_value_type(result.dtype)
        count = STACK_BYTES * 8 // result.dtype.bitwidth
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(kind, count))
        memory.align = VECTOR_BYTES
        return view(context, builder, result, builder.bitcast(memory, kind.as_pointer()), I64(count))

    return result(array), generate


@intrinsic
def copy_vector(typingctx, target, at, source, start):
    """target[at:at + lanes] = source[start:start + lanes], one register."""

    def generate(context, builder, signature, arguments):
        target, at, source, start = arguments
        real = signature.args[0].dtype
        vector = ir.VectorType(context.get_value_type(real), VECTOR_BYTES * 8 // real.bitwidth).as_pointer()
        source = builder.bitcast(data_pointer(context, builder, signature.args[2], source, start), vector)
        target = builder.bitcast(data_pointer(context, builder, signature.args[0], target, at), vector)
        builder.store(builder.load(source, align=real.bitwidth // 8), target, align=real.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64), generate


@intrinsic
def panel_lanes(typingctx, array):
    """Return the elements of the array's dtype in one vector register."""
    count = VECTOR_BYTES * 8 // array.dtype.bitwidth
    return types.int64(array), lambda context, builder, signature, arguments: I64(count)


@intrinsic
def fma(typingctx, a, b, c):
    """a*b + c, fused if the CPU has FMA."""
    return a(a, a, a), lambda context, builder, signature, arguments: emit_fma(builder, *arguments)


@intrinsic
def real_of(typingctx, bits):
    """The float32 with these bits."""
    return types.float32(bits), lambda context, builder, signature, arguments: builder.bitcast(
        *arguments, ir.FloatType()
    )
