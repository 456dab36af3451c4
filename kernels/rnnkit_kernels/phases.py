"""Kernel functions that are specialised for a cell when the kernel is compiled, by the cell's type."""

from functools import lru_cache

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from .machine.jit import OPTIONS, inner
from .machine.matrix import shifted
from .machine.registers import I64
from .operands import Gradients, Operands
from .stages import operand_places


def per_cell(choose):
    """Make a kernel function of a cell and more arguments; `choose` returns its code for the cell's declaration."""

    def function(cell, *arguments):
        """Placeholder that kernels call: `overload` gives it other code for each cell."""

    overload(function, jit_options=OPTIONS, strict=False)(
        lambda cell, *arguments: choose(cell.instance_class.declaration)
    )
    return function


_compiled = lru_cache(inner)


def _declaration(cell):
    return cell.instance_class.declaration


def all_of(functions_of):
    """Make a kernel function of a cell and a tuple of arguments: it calls each of `functions_of(declaration)` with the
    cell and these arguments, in order, and returns a tuple of their results.
    """

    @intrinsic
    def call_all(typingctx, cell, arguments):
        functions = [_compiled(own) for own in functions_of(_declaration(cell))]
        calls = [
            types.Dispatcher(own).get_call_type(typingctx, (cell, *arguments.types), {}) for own in functions
        ]  # fmt: skip
        result = types.BaseTuple.from_types([call.return_type for call in calls])

        def generate(context, builder, signature, arguments):
            cell, others = arguments
            values = [cell, *cgutils.unpack_tuple(builder, others)]
            found = [
                context.get_function(types.Dispatcher(own), call)(builder, values)
                for own, call in zip(functions, calls, strict=True)
            ]
            return context.make_tuple(builder, result, found)

        return result(cell, arguments), generate

    return call_all


@intrinsic
def noinline_if_many_phases(typingctx, cell):
    """Mark the enclosing function, which runs a phase, noinline if its cell has several phases.

    Inlined together they share so many values that register allocation takes half of the compile time. A single phase
    is inlined: a call would take a thirtieth of the time of a step (H = 16, N = 1).
    """
    has_others = len(_declaration(cell).phases) > 1

    def generate(context, builder, signature, arguments):
        if has_others:
            builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(cell), generate


def matrix_of(declaration, name):
    """Build the function that returns the rows of a variable of the cell, from the cell, the `Operands` or `Gradients`
    and hidden_size."""
    is_gradient, field, slot = operand_places(declaration)[name]
    number = (Gradients if is_gradient else Operands)._fields.index(field)
    return lambda cell, bundle, hidden_size: shifted(bundle[number], slot * hidden_size)


def columns_of_slots(slots):
    """Make a kernel function that returns the first columns of these slots of a gate buffer, from hidden_size."""

    @intrinsic
    def columns(typingctx, hidden_size):
        result = types.UniTuple(types.int64, len(slots))

        def generate(context, builder, signature, arguments):
            return context.make_tuple(builder, result, [builder.mul(arguments[0], I64(slot)) for slot in slots])

        return result(types.int64), generate

    return columns
