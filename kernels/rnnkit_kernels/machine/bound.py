"""Pre-bound kernel arguments, the same in many calls: flattened once into 64-bit words.

A kernel call reads everything in tuples that it receives: for the layer passes this took 1 to 1.5 us, a third of a
short call, and the code for it a tenth of a kernel's compile time.
"""

from array import array
from itertools import count
from struct import pack, unpack

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import NativeValue, intrinsic, models, register_model, typeof_impl, unbox

from .arrays import FlatArray, data_of_object, shape_of_object, signature_of, view

_WORD = ir.IntType(64)


class Bound(int):
    """A tuple of numbers, None, arrays, tuples and other `Bound`, for kernels: the address of its words.

    It keeps the words and the tuple alive. The contents of the arrays may change; their size and address may not.
    """

    def __new__(cls, arguments):
        words = array("q", _words(arguments))
        own = super().__new__(cls, words.buffer_info()[0])
        own.arguments, own._words = arguments, words
        return own


def _words(arguments):
    """Return the words of a tuple: each number, and the address of each array's object. Then follow the words of nested
    tuples, the last tuple first."""
    words, tuples = [], [arguments]
    while tuples:
        for value in tuples.pop():
            kind = type(value)
            if kind is np.ndarray:  # the most frequent; reading data and shape would take ten times as long
                words.append(id(value))
            elif kind is int or kind is bool or kind is Bound:
                words.append(value)
            elif isinstance(value, tuple):
                tuples.append(value)
            elif isinstance(value, np.ndarray):
                words.append(id(value))
            elif isinstance(value, (float, np.floating)):
                words.extend(unpack("q", pack("d", value)))
            elif value is not None:
                words.append(int(value))
    return words


class BoundArguments(types.Type):
    """The Numba type of `Bound`, by that of the tuple."""

    def __init__(self, kind):
        self.types = (kind,)
        super().__init__(f"bound({kind})")


@typeof_impl.register(Bound)
def _typeof(value, context):
    return BoundArguments(*signature_of((value.arguments,)))


@register_model(BoundArguments)
class _BoundModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _WORD.as_pointer())


@unbox(BoundArguments)
def _unbox(kind, value, c):
    return NativeValue(c.builder.bitcast(c.pyapi.long_as_voidptr(value), _WORD.as_pointer()))


@intrinsic
def values_of(typingctx, bound):
    """Return the tuple of a `Bound`, with the tuples of any `Bound` inside it."""

    def generate(context, builder, signature, arguments):
        return _load_bound(context, builder, signature.args[0], *arguments)

    return _without_bound(bound)(bound), generate


def _without_bound(kind):
    """Return a type with each `BoundArguments` replaced by the type of its tuple."""
    if isinstance(kind, BoundArguments):
        return _without_bound(*kind.types)
    if isinstance(kind, types.BaseTuple) and len(kind) > 0:
        return types.BaseTuple.from_types([*map(_without_bound, kind)], getattr(kind, "instance_class", None))
    return kind


def _load_bound(context, builder, kind, pointer):
    """Load the tuple whose words start at `pointer`, in LLVM IR."""
    constant, places = builder.module.add_metadata([]), count()

    def word():
        loaded = builder.load(builder.gep(pointer, [_WORD(next(places))]))
        loaded.set_metadata("invariant.load", constant)
        return loaded

    return _tuple(context, builder, *kind.types, word)


def _tuple(context, builder, kind, word):
    """Load a tuple of this type from the next words, in LLVM IR."""
    values = {n: _leaf(context, builder, one, word) for n, one in enumerate(kind) if not _is_tuple(one)}
    for n, one in reversed(list(enumerate(kind))):
        if _is_tuple(one):
            values[n] = _tuple(context, builder, one, word)
    return context.make_tuple(builder, _without_bound(kind), [values[n] for n in range(len(kind))])


def _is_tuple(kind):
    return isinstance(kind, types.BaseTuple)


def _leaf(context, builder, kind, word):
    """Load a value other than a tuple from the next word, in LLVM IR."""
    if kind == types.none:
        return context.get_dummy_value()
    if isinstance(kind, BoundArguments):
        return _load_bound(context, builder, kind, builder.inttoptr(word(), _WORD.as_pointer()))
    if isinstance(kind, (FlatArray, types.Array)):
        return _array(context, builder, kind, builder.inttoptr(word(), ir.IntType(8).as_pointer()))
    if isinstance(kind, types.Float):
        double = builder.bitcast(word(), ir.DoubleType())
        return double if kind.bitwidth == 64 else builder.fptrunc(double, context.get_value_type(kind))
    return builder.trunc(word(), ir.IntType(1)) if isinstance(kind, types.Boolean) else word()


def _array(context, builder, kind, found):
    """Load a C-contiguous array from its object at `found`, in LLVM IR."""
    data = data_of_object(builder, found, context.get_data_type(kind.dtype).as_pointer())
    if isinstance(kind, FlatArray):
        return view(context, builder, kind, data, *shape_of_object(builder, found, 1))
    itemsize = _WORD(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    shape, strides = shape_of_object(builder, found, kind.ndim), [itemsize]
    for size in reversed(shape[1:]):
        strides.insert(0, builder.mul(size, strides[0]))
    own = context.make_array(kind)(context, builder)
    context.populate_array(own, data=data, shape=shape, strides=strides, itemsize=itemsize, meminfo=None)
    return own._getvalue()
