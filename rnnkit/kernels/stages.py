"""The stages of a cell over the rows of a step: all addresses are computed here, and the cell sees numbers."""

import operator
from types import ModuleType
from typing import NamedTuple

from llvmlite import ir as llvm
from numba import types
from numba.core import cgutils, ir
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.errors import NumbaError, UnsupportedBytecodeError
from numba.core.ir_utils import get_definition, guard
from numba.core.untyped_passes import IRProcessing
from numba.extending import intrinsic, overload
from numba.np.numpy_support import as_dtype

from .cells.functions import slope, value
from .cells.rules import place, refusal
from .cells.uses import helpers_of
from .machine import activations as activations  # what the functions that cells are written in compile to
from .machine.compiler import COMPILER
from .machine.jit import OPTIONS, inner
from .machine.matrix import Matrix, matrix_pointers
from .machine.registers import I64


class Operands(NamedTuple):
    """What the stages of a step read and write, a row for each sequence."""

    gates: Matrix
    hidden_prev: Matrix
    hidden: Matrix  # before a projection
    states_prev: Matrix
    states: Matrix
    vectors: Matrix  # one row for all sequences


class GradientOperands(NamedTuple):
    """What those of the gradient read and write."""

    gates: Matrix
    hidden_prev: Matrix
    states_prev: Matrix
    states: Matrix
    dgates: Matrix
    dhidden: Matrix  # before a projection
    dhidden_prev: Matrix
    dstates: Matrix
    vectors: Matrix


def _places(declaration):
    """Name -> (operand, slot in its rows)."""
    places = {"h_prev": ("hidden_prev", 0), "h": ("hidden", 0), "dh": ("dhidden", 0), "dh_prev": ("dhidden_prev", 0)}
    for slot, name in enumerate(declaration.slots):
        places |= {name: ("gates", slot), f"d{name}": ("dgates", slot)}
    for slot, name in enumerate(declaration.states):
        places |= {name: ("states", slot), f"{name}_prev": ("states_prev", slot)}
        places |= {f"d{name}": ("dstates", slot), f"d{name}_prev": ("dstates", slot)}
    for slot, (name, *_) in enumerate(declaration.vectors):
        places |= {name: ("vectors", slot), f"d{name}": ("dgates", len(declaration.slots) + slot)}
    return places


@register_pass(mutates_CFG=False, analysis_only=False)
class _RealLiterals(FunctionPass):
    """Give the numbers in a stage the type of its arguments, those of modules (math.pi) too: 1 - z of a float32 z is no
    float64."""

    _name = "rnnkit_real_literals"

    def __init__(self):
        FunctionPass.__init__(self)

    def run_pass(self, state):
        reals = [as_dtype(one).type for one in state.args if isinstance(one, types.Float)]
        if not reals:
            return False
        assigned = [one for block in state.func_ir.blocks.values() for one in block.find_insts(ir.Assign)]
        powers = (one.value for one in assigned if isinstance(one.value, ir.Expr) and one.value.op == "binop")
        exponents = {power.rhs.name for power in powers if power.fn is operator.pow}
        for one in assigned:
            known = _known(state, one.value)
            numbers = known if type(known) is tuple else (known,)
            if numbers and all(type(number) in (int, float) for number in numbers) and one.target.name not in exponents:
                typed = tuple(map(reals[0], numbers))
                one.value = ir.Const(typed if known is numbers else typed[0], one.value.loc)
        return True


def _known(state, value):
    """What is known of a value before types are: a default, one of the source, of its module, or of another one."""
    if isinstance(value, (ir.Const, ir.Global, ir.FreeVar)):
        return value.value
    if isinstance(value, ir.Arg):
        return getattr(state.args[value.index], "value", None)  # of an argument left out
    if isinstance(value, ir.Expr) and value.op == "getattr":
        owner = _known(state, guard(get_definition, state.func_ir, value.value))
        return getattr(owner, value.attr, None) if isinstance(owner, ModuleType) else None
    return None


class _StageCompiler(COMPILER):
    def define_pipelines(self):
        [pipeline] = super().define_pipelines()
        pipeline.add_pass_after(_RealLiterals, IRProcessing)
        pipeline.finalize()
        return [pipeline]


_INLINED = {"forceinline": True}  # as a call a unit, a loop is not vectorised and takes 3 to 4 times as long
_HELPER = OPTIONS | _INLINED | {"pipeline_class": _StageCompiler}
_COMPILED, _HELPERS = {}, set()


def _compiled(stage):
    """The stage's function for Numba, which knows the functions of numbers that it calls."""
    if stage.function not in _COMPILED:
        _know_helpers(stage.function)
        _COMPILED[stage.function] = inner(stage.function, **_INLINED, pipeline_class=_StageCompiler)
    return types.Dispatcher(_COMPILED[stage.function])


def _know_helpers(function):
    for helper in helpers_of(function):
        if helper not in _HELPERS:
            _HELPERS.add(helper)
            _know_helpers(helper)
            overload(helper, jit_options=_HELPER, strict=False)(lambda *numbers, own=helper: own)


def _know_activations(function):
    """Let Numba know what an activation, which is a parameter of a cell, has for this function of it and a number."""

    @overload(function, jit_options=_HELPER, strict=False)
    def of(activation, number):
        own = getattr(getattr(activation, "instance_class", None), function.__name__, None)
        if own is not None:
            _know_helpers(own)
        return own


_know_activations(value)
_know_activations(slope)


def _call_type(typingctx, stage, cell, real):
    """The type of a stage's call; raise CellError where its equations are not of numbers of one type."""
    declaration, function = cell.instance_class.declaration, _compiled(stage)
    try:
        found = function.get_call_type(typingctx, (cell, *[real] * len(stage.reads)), {})
    except (NumbaError, UnsupportedBytecodeError) as error:
        where = getattr(error, "loc", None)
        line = where.line if where is not None else None
        text = " ".join(str(getattr(error, "msg", error)).split())[:400]
        cure = "import at the top of the file" if "IMPORT_NAME" in text else ""
        expected = "be equations of numbers that compile"
        raise refusal(declaration, place(stage.function, line), expected, text, cure) from None
    results = found.return_type.types if isinstance(found.return_type, types.BaseTuple) else (found.return_type,)
    if len(results) != len(stage.writes):
        expected = f"return {len(stage.writes)} numbers, {', '.join(stage.writes)}"
        raise refusal(declaration, place(stage.function), expected, len(results))
    for name, result in zip(stage.writes, results, strict=True):
        if result != real:
            raise refusal(declaration, place(stage.function), f"return {real} for {name}, as its arguments are", result)
    return function, found


def _runner(stages_of):
    """Make the function that runs those stages of a cell, one after the other, for each row."""

    @intrinsic
    def run(typingctx, cell, operands, hidden_size, rows, units):
        declaration = cell.instance_class.declaration
        real = operands.dtype.types[0].dtype
        calls = []
        for stage in stages_of(declaration):
            calls.append((stage, *_call_type(typingctx, stage, cell, real)))
        signature = types.void(cell, operands, types.int64, rows, units)

        def generate(context, builder, signature, arguments):
            cell, operands, hidden_size, rows, units = arguments
            kinds, places = signature.args[1], _places(declaration)
            first, last = (builder.extract_value(units, field) for field in range(2))
            ends = (builder.extract_value(rows, field) for field in range(2))
            count = builder.sub(last, first)
            with cgutils.for_range_slice(builder, *ends, I64(1), intp=I64) as (row, _):
                starts = {}

                def pointer(name):
                    """Where a name's units begin in this row; one pointer a place, or loops would not vectorise."""
                    operand, slot = places[name]
                    if operand not in starts:
                        matrix = builder.extract_value(operands, kinds.fields.index(operand))
                        starts[operand] = _row(context, builder, kinds.dtype, matrix, row, first)
                    if (operand, slot) not in starts:
                        distance = builder.mul(hidden_size, I64(slot))
                        starts[operand, slot] = builder.gep(starts[operand], [distance])
                    return starts[operand, slot]

                for stage, function, own in calls:
                    call = context.get_function(function, own)
                    read, written = list(map(pointer, stage.reads)), list(map(pointer, stage.writes))
                    with cgutils.for_range(builder, count, intp=I64) as loop:
                        values = [builder.load(builder.gep(start, [loop.index])) for start in read]
                        result = call(builder, [cell, *values])
                        results = [result] if len(written) == 1 else cgutils.unpack_tuple(builder, result)
                        for start, value in zip(written, results, strict=True):
                            builder.store(value, builder.gep(start, [loop.index]))
            return context.get_dummy_value()

        return signature, generate

    return run


def _row(context, builder, kind, matrix, row, column):
    """Pointer to a column of the row at position `row` of a Matrix."""
    first, rows, stride = matrix_pointers(context, builder, kind, matrix, row, column)
    return builder.gep(first, [builder.mul(builder.load(rows), stride)])


activate = _runner(lambda declaration: declaration.forward[0])
complete = _runner(lambda declaration: declaration.forward[1])
differentiate = _runner(lambda declaration: declaration.gradient[0])
complete_gradient = _runner(lambda declaration: declaration.gradient[1])


def _columns(slots_of):
    """Make the function that gives the first columns of the slots that a product of a cell writes."""

    @intrinsic
    def columns(typingctx, cell, hidden_size):
        slots = slots_of(cell.instance_class.declaration)
        result = types.UniTuple(types.int64, len(slots))

        def generate(context, builder, signature, arguments):
            values = [builder.mul(arguments[1], I64(slot)) for slot in slots]
            return context.make_tuple(builder, result, values)

        return result(cell, types.int64), generate

    return columns


input_columns = _columns(lambda declaration: declaration.input_slots)
recurrent_columns = _columns(lambda declaration: declaration.recurrent_slots)
apart_columns = _columns(lambda declaration: declaration.apart_slots)
second_columns = _columns(lambda declaration: declaration.second_slots)


@intrinsic
def vectors_column(typingctx, cell, hidden_size):
    """The column behind the slots: from there on the vectors stand behind the biases."""
    count = len(cell.instance_class.declaration.slots)

    def generate(context, builder, signature, arguments):
        return builder.mul(arguments[1], I64(count))

    return types.int64(cell, types.int64), generate


@intrinsic
def multiplied_column(typingctx, cell, hidden_size):
    """The first column of what R multiplies within the step."""
    declaration = cell.instance_class.declaration
    slot = declaration.slots.index(declaration.multiplied)

    def generate(context, builder, signature, arguments):
        return builder.mul(arguments[1], I64(slot))

    return types.int64(cell, types.int64), generate


@intrinsic
def carries_hidden(typingctx, cell):
    """Whether the gradient has a direct part from h to the h before, which that through R is added to."""
    value = llvm.IntType(1)(cell.instance_class.declaration.carries_hidden)
    return types.boolean(cell), lambda context, builder, signature, arguments: value
