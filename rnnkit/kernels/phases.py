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


def in_turn(functions_of):
    """Make the function for kernels that calls some, one after the other: `functions_of(declaration)` lists them.

    They are called with the cell and the same arguments.
    """

    def starting_at(number):
        def choose(declaration):
            functions = functions_of(declaration)
            if number == len(functions):
                return _nothing
            first, following = per_cell(lambda declaration: functions[number]), starting_at(number + 1)

            def run(cell, *arguments):
                first(cell, *arguments)
                following(cell, *arguments)

            return run

        return per_cell(choose)

    return starting_at(0)


def _nothing(cell, *arguments):
    pass


def all_of(functions_of):
    """Make the function for kernels that returns a tuple of what several return, as `in_turn` calls them."""

    def starting_at(number):
        def choose(declaration):
            functions = functions_of(declaration)
            if number == len(functions):
                return lambda cell, *arguments: ()
            first, following = per_cell(lambda declaration: functions[number]), starting_at(number + 1)
            return lambda cell, *arguments: (first(cell, *arguments),) + following(cell, *arguments)

        return per_cell(choose)

    return starting_at(0)


def located(declaration, name):
    """Make the function that gives the rows of what stands under a name, in the `Operands` or the `Gradients`."""
    _, field, slot = places(declaration)[name]

    @intrinsic
    def matrix(typingctx, bundle, hidden_size):
        number = bundle.fields.index(field)

        def generate(context, builder, signature, arguments):
            found, start_field = builder.extract_value(arguments[0], number), bundle.types[number].fields.index("start")
            start = builder.add(builder.extract_value(found, start_field), builder.mul(arguments[1], I64(slot)))
            return builder.insert_value(found, start, start_field)

        return bundle.types[number](bundle, types.int64), generate

    return matrix


def columns_of_slots(slots):
    """Make the function that gives the first columns of these slots of a gate buffer, from hidden_size."""

    @intrinsic
    def columns(typingctx, hidden_size):
        result = types.UniTuple(types.int64, len(slots))

        def generate(context, builder, signature, arguments):
            return context.make_tuple(builder, result, [builder.mul(arguments[0], I64(slot)) for slot in slots])

        return result(types.int64), generate

    return columns
