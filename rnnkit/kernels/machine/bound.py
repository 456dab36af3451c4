"""Arguments of a kernel that are the same in many calls: read from Python's objects once, into words of memory.

To read a layer pass from its tuples takes a microsecond, a third of a short call, and the code for it a tenth of the
time of compiling a kernel.
"""

from struct import pack, unpack

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import NativeValue, intrinsic, models, register_model, typeof_impl, unbox

from .arrays import FlatArray, signature_of, view

_WORD = ir.IntType(64)


class Bound(int):
    """The address of the words of some arguments, which it keeps alive: numbers, None, arrays and tuples of them."""

    def __new__(cls, *arguments):
        """Lay them out. They may not change; what is in the arrays may."""
        words = np.array(_words(arguments, []), np.int64)
        own = super().__new__(cls, words.ctypes.data)
        own.arguments, own._words = arguments, words
        return own


def _words(value, words):
    """Append a value's words to those in front, an array's data and shape as two or more; returns them."""
    if isinstance(value, tuple):
        for one in value:
            _words(one, words)
    elif isinstance(value, np.ndarray):
        words.append(value.__array_interface__["data"][0])
        words.extend(value.shape)
    elif isinstance(value, (float, np.floating)):
        words.extend(unpack("q", pack("d", value)))
    elif value is not None:
        words.append(int(value))
    return words


class BoundArguments(types.Type):
    """The Numba type of `Bound`, by the types of the arguments."""

    def __init__(self, kinds):
        self.types, self.values = kinds, types.BaseTuple.from_types(kinds)
        super().__init__(f"bound({self.values})")


@typeof_impl.register(Bound)
def _typeof(value, context):
    return BoundArguments(signature_of(value.arguments))


@register_model(BoundArguments)
class _BoundModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _WORD.as_pointer())


@unbox(BoundArguments)
def _unbox(kind, value, c):
    return NativeValue(c.builder.bitcast(c.pyapi.long_as_voidptr(value), _WORD.as_pointer()))


@intrinsic
def values_of(typingctx, bound):
    """The arguments, as a tuple."""

    def generate(context, builder, signature, arguments):
        constant = builder.module.add_metadata([])
        places = iter(range(1 << 20))

        def word():
            loaded = builder.load(builder.gep(arguments[0], [_WORD(next(places))]))
            loaded.set_metadata("invariant.load", constant)
            return loaded

        return _value(context, builder, signature.return_type, word)

    return bound.values(bound), generate


def _value(context, builder, kind, word):
    """A value of this type from the next words, in LLVM IR."""
    if isinstance(kind, types.BaseTuple):
        return context.make_tuple(builder, kind, [_value(context, builder, one, word) for one in kind])
    if isinstance(kind, FlatArray):
        data = builder.inttoptr(word(), context.get_data_type(kind.dtype).as_pointer())
        return view(context, builder, kind, data, word())
    if isinstance(kind, types.Array):
        return _array(context, builder, kind, word)
    if isinstance(kind, types.Float):
        double = builder.bitcast(word(), ir.DoubleType())
        return double if kind.bitwidth == 64 else builder.fptrunc(double, context.get_value_type(kind))
    if isinstance(kind, types.Boolean):
        return builder.trunc(word(), ir.IntType(1))
    return context.get_dummy_value() if kind == types.none else word()


def _array(context, builder, kind, word):
    """A C-contiguous array of several dimensions."""
    itemsize = _WORD(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    data = builder.inttoptr(word(), context.get_data_type(kind.dtype).as_pointer())
    shape = [word() for _ in range(kind.ndim)]
    strides = [itemsize]
    for size in reversed(shape[1:]):
        strides.insert(0, builder.mul(size, strides[0]))
    array = context.make_array(kind)(context, builder)
    context.populate_array(array, data=data, shape=shape, strides=strides, itemsize=itemsize, meminfo=None)
    return array._getvalue()
