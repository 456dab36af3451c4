"""Numbers too small to count become 0 where kernels write them, before arithmetic on them yields subnormal numbers.

On many CPUs an operation on a subnormal number (below 2**-126 in float32) takes many times as long. States and
gradients that decay over time pass through these numbers, and rounding keeps some there for ever. CPUs can flush them
to 0 by themselves, but x86 decides after rounding and ARM before, so results would depend on the CPU; a comparison does
not. At 2**-100 a product with a weight of at least 2**-26 is still a normal number.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, type_callable
from numba.np.numpy_support import from_dtype

from .registers import emit_fma

SMALL = {types.float32: 2.0**-100, types.float64: 2.0**-960}
"""The magnitude below which a number of a dtype counts as 0."""
_NAMES = {ir.FloatType(): ("f32", types.float32), ir.DoubleType(): ("f64", types.float64)}


def emit_flushed(builder, value):
    """Return the value, or 0 if its magnitude is below SMALL; NaN stays NaN."""
    name, dtype = _NAMES[value.type]
    kind = ir.FunctionType(value.type, [value.type])
    magnitude = builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.fabs.{name}"), [value])
    is_small = builder.fcmp_ordered("<", magnitude, value.type(SMALL[dtype]))
    return builder.select(is_small, value.type(0.0), value)


def flushed(x):
    """x, or 0 if its magnitude is below SMALL; NaN stays NaN."""
    return x * 0 if abs(x) < SMALL[from_dtype(x.dtype)] else x


@type_callable(flushed)
def _type_of_flushed(context):
    return lambda x: x


@lower_builtin(flushed, types.Float)
def _lower_flushed(context, builder, signature, arguments):
    return emit_flushed(builder, *arguments)


def lifted_product(a, b):
    """a * b, rounded to a multiple of the smallest normal number: no result is subnormal, and no CPU takes its time."""
    return a * b


def lifted_fma(a, b, c):
    """a*b + c, fused, rounded in the same way."""
    return a * b + c


def _lift_of(kind):
    """Return the smallest number whose neighbours below it are a normal number apart."""
    return kind(SMALL[_NAMES[kind][1]] / 4)


@type_callable(lifted_product)
def _type_of_lifted_product(context):
    return lambda a, b: a if a == b else None


@lower_builtin(lifted_product, types.Float, types.Float)
def _lower_lifted_product(context, builder, signature, arguments):
    lift = _lift_of(arguments[0].type)
    return builder.fsub(emit_fma(builder, *arguments, lift), lift)


@type_callable(lifted_fma)
def _type_of_lifted_fma(context):
    return lambda a, b, c: a if a == b == c else None


@lower_builtin(lifted_fma, types.Float, types.Float, types.Float)
def _lower_lifted_fma(context, builder, signature, arguments):
    (a, b, c), lift = arguments, _lift_of(arguments[0].type)
    return builder.fsub(emit_fma(builder, a, b, builder.fadd(c, lift)), lift)


@intrinsic
def small_of(typingctx, array):
    """SMALL, for the dtype of an array."""
    dtype = array.dtype
    return dtype(array), lambda context, *_: context.get_constant(dtype, SMALL[dtype])
