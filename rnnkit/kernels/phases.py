"""What a kernel does for each phase of a cell: decided by the cell's type, when the kernel is compiled."""

from numba import types
from numba.extending import intrinsic, overload

from .machine.jit import OPTIONS
from .machine.registers import I64
from .stages import places


def per_cell(choose):
    """Make a function for kernels whose first argument is a cell: the one that `choose` returns for its declaration."""

    def function(cell, *arguments):
        """What kernels call; its code is that of another function for each cell."""

    overload(function, jit_options=OPTIONS, strict=False)(
        lambda cell, *arguments: choose(cell.instance_class.declaration)
    )
    return function


def all_of(functions_of):
    """Make the function for kernels that calls those of `functions_of(declaration)`, one after the other, with the cell
    and the same arguments; it returns what they return, in a tuple."""

    def starting_at(number):
        def choose(declaration):
            own, *later = functions_of(declaration)[number:]
            first = per_cell(lambda declaration: own)
            if not later:
                return lambda cell, *arguments: (first(cell, *arguments),)
            following = starting_at(number + 1)
            return lambda cell, *arguments: (first(cell, *arguments),) + following(cell, *arguments)

        return per_cell(choose)

    return starting_at(0)


def _moved(builder, kind, matrix, columns):
    """The rows of a Matrix from another column on."""
    field = kind.fields.index("start")
    return builder.insert_value(matrix, builder.add(builder.extract_value(matrix, field), columns), field)


def _emit_place(declaration, name):
    """What emits the rows of what stands under a name, of a bundle of `Operands` or `Gradients` and hidden_size."""
    _, field, slot = places(declaration)[name]

    def emit(builder, kind, bundle, hidden_size):
        number = kind.fields.index(field)
        found = builder.extract_value(bundle, number)
        return _moved(builder, kind.types[number], found, builder.mul(hidden_size, I64(slot)))

    return emit


def located(declaration, name):
    """Make the function that gives the rows of what stands under a name, in the `Operands` or the `Gradients`."""
    emit = _emit_place(declaration, name)

    @intrinsic
    def matrix(typingctx, bundle, hidden_size):
        field = places(declaration)[name][1]
        return bundle.types[bundle.fields.index(field)](bundle, types.int64), (
            lambda context, builder, signature, arguments: emit(builder, signature.args[0], *arguments)
        )

    return matrix


@intrinsic
def sources(typingctx, cell, operands, hidden_size, x):
    """What the products of a layer multiplied, in their order: x, those of the phases, what stands in front of the
    projection, and for the vectors anything."""
    declaration = cell.instance_class.declaration
    found = [_emit_place(declaration, product.source) for product in declaration.products[1:]]
    result = types.UniTuple(x, len(found) + 3)

    def generate(context, builder, signature, arguments):
        _, bundle, hidden_size, x = arguments
        kind = signature.args[1]
        gates = builder.extract_value(bundle, kind.fields.index("gates"))
        stride = builder.extract_value(gates, x_fields.index("stride"))
        units = _moved(builder, signature.args[3], gates, builder.sub(stride, hidden_size))
        values = [emit(builder, kind, bundle, hidden_size) for emit in found]
        return context.make_tuple(builder, result, [x, *values, units, x])

    x_fields = x.fields
    return result(cell, operands, types.int64, x), generate


def columns_of_slots(slots):
    """Make the function that gives the first columns of these slots of a gate buffer, from hidden_size."""

    @intrinsic
    def columns(typingctx, hidden_size):
        result = types.UniTuple(types.int64, len(slots))

        def generate(context, builder, signature, arguments):
            return context.make_tuple(builder, result, [builder.mul(arguments[0], I64(slot)) for slot in slots])

        return result(types.int64), generate

    return columns
