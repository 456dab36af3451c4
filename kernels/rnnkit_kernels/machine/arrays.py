"""Arrays inside kernels: a pointer to the first element, and the number of elements.

Numba's own arrays have seven fields. Each call between functions passes all of them, and LLVM has to remove the unused
ones: with two fields a kernel compiles in two thirds of the time. Indices must not be negative.
"""

import operator
import sys

from llvmlite import ir
from numba import typeof, types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import (
    NativeValue,
    intrinsic,
    lower_builtin,
    lower_getattr,
    models,
    register_model,
    unbox,
)

# In NumPy's PyArrayObject, whose layout is public, data, the number of dimensions and their sizes follow the header,
# which ends in the type.
_TYPE, DATA_OF_OBJECT, _SHAPE = object.__basicsize__ - 8, object.__basicsize__, object.__basicsize__ + 16
_ANY_SIZE = 1 << 40  # dummy size of an array given by its address


class FlatArray(types.Type):
    """The Numba type of a one-dimensional, C-contiguous array that is passed to a kernel."""

    def __init__(self, dtype):
        self.dtype = dtype
        super().__init__(f"flat({dtype})")


@register_model(FlatArray)
class _FlatModel(models.StructModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, [("data", types.CPointer(kind.dtype)), ("size", types.int64)])


@infer_getattr
class _Attributes(AttributeTemplate):
    key = FlatArray

    def resolve_size(self, array):
        return types.int64

    def resolve_dtype(self, array):
        return types.DType(array.dtype)


@lower_getattr(FlatArray, "size")
def _size(context, builder, kind, value):
    return builder.extract_value(value, 1)


@lower_getattr(FlatArray, "dtype")
def _dtype(context, builder, kind, value):
    return context.get_dummy_value()


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args, kws):
        array, index = args
        if isinstance(array, FlatArray) and isinstance(index, types.Integer):
            return signature(array.dtype, array, types.int64)


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args, kws):
        array, index, _ = args
        if isinstance(array, FlatArray) and isinstance(index, types.Integer):
            return signature(types.none, array, types.int64, array.dtype)


@lower_builtin(operator.getitem, FlatArray, types.Integer)
def _get(context, builder, signature, arguments):
    kind = signature.args[0]
    return context.unpack_value(builder, kind.dtype, data_pointer(context, builder, kind, *arguments))


@lower_builtin(operator.setitem, FlatArray, types.Integer, types.Any)
def _set(context, builder, signature, arguments):
    kind, (array, index, value) = signature.args[0], arguments
    context.pack_value(builder, kind.dtype, value, data_pointer(context, builder, kind, array, index))
    return context.get_dummy_value()


@unbox(FlatArray)
def _unbox(kind, array, c):
    """Read the array's fields from memory, unchecked: `arguments.check_arrays` has checked the types.

    The address of an array, an int, may replace it: 0 is an empty array, any other one has the size `_ANY_SIZE`.
    """

    data, i64 = c.context.get_data_type(kind.dtype).as_pointer(), ir.IntType(64)
    array = c.builder.bitcast(array, c.pyapi.voidptr)
    is_address = c.builder.icmp_unsigned("==", _field(c.builder, array, _TYPE, c.pyapi.voidptr), _type_of_ints(c))
    found = []
    with c.builder.if_else(is_address) as (then, otherwise):
        with then:
            first = c.builder.bitcast(c.pyapi.long_as_voidptr(c.builder.bitcast(array, c.pyapi.pyobj)), data)
            is_given = cgutils.is_not_null(c.builder, first)
            size = c.builder.select(is_given, ir.Constant(i64, _ANY_SIZE), ir.Constant(i64, 0))
            found.append((first, size, c.builder.block))
        with otherwise:
            first, (size,) = data_of_object(c.builder, array, data), shape_of_object(c.builder, array, 1)
            found.append((first, size, c.builder.block))
    fields = []
    for number, own in enumerate((data, i64)):
        fields.append(c.builder.phi(own))
        for one in found:
            fields[-1].add_incoming(one[number], one[-1])
    return NativeValue(view(c.context, c.builder, kind, *fields))


def _field(builder, pointer, place, kind):
    """Load the field at a byte offset from a pointer, in LLVM IR."""
    return builder.load(builder.bitcast(builder.gep(pointer, [ir.Constant(ir.IntType(64), place)]), kind.as_pointer()))


def data_of_object(builder, found, kind):
    """Load the data pointer of a NumPy array object, in LLVM IR."""
    return _field(builder, found, DATA_OF_OBJECT, kind)


def shape_of_object(builder, found, dimensions):
    """Load the first sizes of the shape of a NumPy array object, in LLVM IR."""
    i64 = ir.IntType(64)
    shape = _field(builder, found, _SHAPE, i64.as_pointer())
    return [builder.load(builder.gep(shape, [i64(number)])) for number in range(dimensions)]


def _type_of_ints(c):
    """Return a pointer to Python's `int`, in LLVM IR."""
    name = "PyLong_Type"
    found = c.builder.module.globals.get(name) or ir.GlobalVariable(c.builder.module, ir.IntType(8), name)
    found.linkage = "external"
    if sys.platform == "win32":
        found.storage_class = "dllimport"
    return found


def signature_of(arguments):
    """Return the types of a kernel's arguments, one-dimensional arrays as FlatArray, also inside tuples."""
    return tuple(_as_flat(typeof(value)) for value in arguments)


def _as_flat(kind):
    if isinstance(kind, types.Array) and kind.ndim == 1:
        return FlatArray(kind.dtype)
    if isinstance(kind, types.BaseTuple) and len(kind) > 0:
        return types.BaseTuple.from_types([*map(_as_flat, kind.types)], getattr(kind, "instance_class", None))
    return kind


def view_of(context, builder, kind, array):
    """Return a pointer to the first number of an array, and the count, in LLVM IR."""
    if isinstance(kind, FlatArray):
        return [builder.extract_value(array, field) for field in range(2)]
    found = context.make_array(kind)(context, builder, array)
    return [found.data, found.nitems]


def data_pointer(context, builder, kind, array, start):
    """Return a pointer to element `start` of an array, read as if flat, in LLVM IR."""
    return builder.gep(view_of(context, builder, kind, array)[0], [start])


def view(context, builder, kind, first, size):
    """Return the `size` elements from a pointer on, as a value of FlatArray, in LLVM IR."""
    array = ir.Constant(context.get_value_type(kind), ir.Undefined)
    return builder.insert_value(builder.insert_value(array, first, 0), size, 1)


@intrinsic
def flat(typingctx, array):
    """Return a C-contiguous array of any number of dimensions, flat."""
    result = FlatArray(array.dtype)

    def generate(context, builder, signature, arguments):
        return view(context, builder, result, *view_of(context, builder, signature.args[0], *arguments))

    return result(array), generate


@intrinsic
def part(typingctx, array, start, stop):
    """array[start:stop] for 0 <= start <= stop <= array.size, without code for other bounds."""

    def generate(context, builder, signature, arguments):
        array, start, stop = arguments
        first = data_pointer(context, builder, signature.args[0], array, start)
        return view(context, builder, signature.return_type, first, builder.sub(stop, start))

    return FlatArray(array.dtype)(array, types.int64, types.int64), generate
