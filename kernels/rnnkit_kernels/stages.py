"""The stages of a cell over the rows of a step. All addresses are computed here; the cell's functions see numbers."""

from contextlib import contextmanager
from typing import Any, NamedTuple

from llvmlite import ir as llvm
from numba import types
from numba.core import cgutils
from numba.core.errors import NumbaError, UnsupportedBytecodeError
from numba.extending import intrinsic, overload

from .cells.declaration import MEAN_BLOCK
from .cells.functions import slope, value
from .cells.rules import CellError, cell_error, describe_stage
from .cells.source import changes_of
from .cells.uses import helpers_of
from .machine import activations as activations  # gives the functions that cells use their compiled code
from .machine.jit import OPTIONS, inner
from .machine.matrix import row_pointer
from .machine.registers import I64
from .machine.small import emit_flushed
from .means import mean_blocks_of, mean_of, parts_on_stack, sum_mean_blocks, terms_on_stack
from .stage_compiler import DoesNotFitError, GradientCompiler, StageCompiler, gradient_compiler


def mean_places(declaration):
    """Return name of a mean -> (is_gradient, number): the sums of its blocks follow the slots."""
    found = {name: (False, number) for number, name in enumerate(declaration.means)}
    return found | {name: (True, number) for number, name in enumerate(declaration.gradient_means)}


def operand_places(declaration):
    """Return name -> (is_gradient, field of `Operands` or `Gradients`, slot in its rows)."""
    own = {"h_prev": ("hidden_prev", 0), "h": ("units", 0)}
    gradients = {"dh": ("units", 0), "dh_prev": ("hidden", 0)}
    for slot, name in enumerate(declaration.slots):
        own[name] = gradients[f"d{name}"] = "gates", slot
    for slot, name in enumerate(declaration.states):
        own |= {name: ("states", slot), f"{name}_prev": ("states_prev", slot)}
        gradients |= {f"d{name}": ("states", slot), f"d{name}_prev": ("states", slot)}
    for slot, (name, *_) in enumerate(declaration.vectors):
        own[name] = gradients[f"d{name}"] = "vectors", slot
    for slot, (name,) in enumerate(declaration.inputs):
        own[name] = gradients[f"d{name}"] = "inputs", slot
    for per_step, field in ((False, "noises"), (True, "step_noises")):
        drawn = [noise.name for noise in declaration.noises if noise.per_step == per_step]
        own |= {name: (field, slot) for slot, name in enumerate(drawn)}
    found = {name: (False, *place) for name, place in own.items()}
    return found | {name: (True, *place) for name, place in gradients.items()}


_INLINED = {"forceinline": True}  # with a call per unit, a loop is not vectorised and takes 3 to 4 times as long
_HELPER = OPTIONS | _INLINED | {"pipeline_class": StageCompiler}
_COMPILED, _HELPERS = {}, set()


def _compiled(stage):
    """Return the Numba type of the stage's function, whose helpers are registered with Numba."""
    if stage.function not in _COMPILED:
        _register_helpers(stage.function)
        compiler = gradient_compiler(stage) if stage.is_gradient else StageCompiler
        _COMPILED[stage.function] = inner(stage.function, **_INLINED, pipeline_class=compiler)
    return types.Dispatcher(_COMPILED[stage.function])


def _register_helpers(function):
    for helper in helpers_of(function):
        if helper not in _HELPERS:
            _HELPERS.add(helper)
            _register_helpers(helper)
            overload(helper, jit_options=_HELPER, strict=False)(lambda *numbers, own=helper: own)


def _register_activation(function, compiler):
    """Let Numba resolve this function of an activation, a parameter of a cell, to the activation's own method."""

    @overload(function, jit_options=_HELPER | {"pipeline_class": compiler}, strict=False)
    def of(activation, number):
        kind = getattr(activation, "instance_class", None)
        own = getattr(kind, function.__name__, None)
        if own is not None:
            _check_unchanged(f"activation {kind.__mro__[1].__name__}", kind)
            _register_helpers(own)
        return own


_register_activation(value, StageCompiler)
_register_activation(slope, GradientCompiler)


def _check_unchanged(name, kind):
    """Raise CellError if the code to compile would not be that of the class as it was defined, whose digest is in the
    kernel cache and in saved files."""
    if changes := changes_of(kind):
        problem = f"{changes}, which its functions use, has changed since the class was defined"
        raise CellError(f"{name}: {problem}; define the class again")


def _call_type(typingctx, stage, cell, real):
    """Return a stage's function and the type of its call; raise CellError if results are not of its dtype."""
    declaration, function = cell.instance_class.declaration, _compiled(stage)
    try:
        found = function.get_call_type(typingctx, (cell, *[real] * len(stage.reads)), {})
    except DoesNotFitError as error:
        where, expected = describe_stage(stage.function), f"have constants that fit {real}"
        raise cell_error(declaration, where, expected, error.problem) from None
    except (NumbaError, UnsupportedBytecodeError) as error:
        where = getattr(error, "loc", None)
        line = where.line if where is not None else None
        text = " ".join(str(getattr(error, "msg", error)).split())[:400]
        cure = "import at the top of the file" if "IMPORT_NAME" in text else ""
        expected = "consist of equations of numbers that Numba compiles"
        raise cell_error(declaration, describe_stage(stage.function, line), expected, text, cure) from None
    results = found.return_type.types if isinstance(found.return_type, types.BaseTuple) else (found.return_type,)
    if len(results) != len(stage.writes):
        expected = f"return {len(stage.writes)} numbers ({', '.join(stage.writes)})"
        raise cell_error(declaration, describe_stage(stage.function), expected, len(results))
    for name, result in zip(stage.writes, results, strict=True):
        if result != real:
            expected = f"return {real} for {name}, as its arguments are"
            raise cell_error(declaration, describe_stage(stage.function), expected, result)
    return function, found


class _Distinct(llvm.MDValue):
    """A metadata node that is equal to no other one, and may reference itself."""

    __eq__, __hash__ = object.__eq__, object.__hash__  # llvmlite's nodes are equal if their operands are

    def descr(self, buffer):
        buffer += "distinct !{", ", ".join(one.get_reference() for one in self.operands), "}\n"


@contextmanager
def _parallel_range(builder, count):
    """Emit a loop whose iterations are independent, and tell LLVM so: else it compares the addresses of all arrays
    before the loop, and gives up with many arrays. Yields the index, and the access group of its loads and stores."""
    module, function = builder.module, builder.function
    group = _Distinct(module, [], name=str(len(module.metadata)))
    accesses = module.add_metadata([llvm.MetaDataString(module, "llvm.loop.parallel_accesses"), group])
    own = _Distinct(module, [], name=str(len(module.metadata)))
    own.operands = own, accesses
    body, end, before = function.append_basic_block("units"), function.append_basic_block("units.end"), builder.block
    builder.cbranch(builder.icmp_signed(">", count, I64(0)), body, end)
    builder.position_at_end(body)
    index = builder.phi(I64)
    index.add_incoming(I64(0), before)
    yield index, group
    after = builder.add(index, I64(1))
    index.add_incoming(after, builder.block)
    builder.cbranch(builder.icmp_signed("<", after, count), body, end).set_metadata("llvm.loop", own)
    builder.position_at_end(end)


class _Row:
    """LLVM values of a cell's variables in one row; `first` is the first unit."""

    def __init__(self, context, builder, signature, arguments, row, first):
        self.context, self.builder, self.row, self.first = context, builder, row, first
        self.cell_type, *self.kinds = signature.args[:3]
        self.cell, *self.bundles, self.hidden_size = arguments[:4]
        self.declaration = self.cell_type.instance_class.declaration
        self.operand_places, self.means = operand_places(self.declaration), mean_places(self.declaration)
        self.scalars = {one.name: number for number, one in enumerate(self.declaration.scalars)}
        self.noises = {one.name: one for one in self.declaration.noises}
        self.starts = {}

    def operand(self, is_gradient, field):
        """Return a matrix, and its type."""
        kind = self.kinds[is_gradient]
        number = kind.fields.index(field)
        return self.builder.extract_value(self.bundles[is_gradient], number), kind.types[number]

    def column(self, is_gradient, field, column):
        """Return a pointer to a column of the row in a matrix."""
        matrix, kind = self.operand(is_gradient, field)
        return row_pointer(self.context, self.builder, kind, matrix, self.row, column)

    def pointer(self, name):
        """Return a pointer to a variable's first unit: always the same one, or loops would not vectorise."""
        *operand, slot = self.operand_places[name]
        if (operand := tuple(operand)) not in self.starts:
            self.starts[operand] = self.column(*operand, self.first)
        if (operand, slot) not in self.starts:
            distance = self.builder.mul(self.hidden_size, I64(slot))
            self.starts[operand, slot] = self.builder.gep(self.starts[operand], [distance])
        return self.starts[operand, slot]

    def common(self, name):
        """Return the value shared by all units, or None."""
        if name in self.means:
            return mean_of(self.builder, self.sums(name), self.hidden_size)
        if name in self.scalars:  # after the vectors
            before = len(self.declaration.vectors) - len(self.scalars)
            column = self.builder.add(self.builder.mul(self.hidden_size, I64(before)), I64(self.scalars[name]))
            return self.builder.load(self.column(False, "vectors", column))
        if name in self.noises and self.operand(*self.operand_places[name][:2])[1] == types.none:  # no noise is drawn
            return self.expected(self.noises[name])
        return None

    def expected(self, noise):
        """Return the expectation of a noise."""
        if noise.choice:
            return self.builder.extract_value(self.cell, self.cell_type.fields.index(noise.rate))
        return self.context.get_value_type(self.cell_type.types[self.cell_type.fields.index(noise.rate)])(1.0)

    def sums(self, name):
        """Return a pointer to the sums of a mean's blocks, which follow the slots."""
        is_gradient, number = self.means[name]
        slots = self.builder.mul(self.hidden_size, I64(len(self.declaration.slots)))
        before = self.builder.mul(mean_blocks_of(self.builder, self.hidden_size), I64(number))
        return self.column(is_gradient, "gates", self.builder.add(slots, before))


class _Call(NamedTuple):
    """A stage of a row, ready to be called."""

    function: Any
    cell: Any
    fixed: dict  # name -> value shared by all units, or None
    read: list  # of (name, pointer to the first unit) of the others
    targets: list  # of (pointer, whether it is for terms of a mean, whether to add, whether small
    # numbers become 0), one for each result


def _emit_units(builder, call, start, size):
    """Emit the loop of a stage over `size` units."""
    with _parallel_range(builder, size) as (number, group):
        index = builder.add(start, number)
        loads = {name: builder.load(builder.gep(first, [index])) for name, first in call.read}
        numbers, accesses = call.fixed | loads, list(loads.values())
        result = call.function(builder, [call.cell, *numbers.values()])
        results = [result] if len(call.targets) == 1 else cgutils.unpack_tuple(builder, result)
        for (target, is_term, adds, is_flushed), value in zip(call.targets, results, strict=True):
            place, total = builder.gep(target, [number if is_term else index]), value
            if adds:
                accesses.append(builder.load(place))
                total = builder.fadd(accesses[-1], value)
            total = emit_flushed(builder, total) if is_flushed else total
            accesses.append(builder.store(total, place))
        for access in accesses:
            access.set_metadata("llvm.access.group", group)


def flushed_in(declaration, stage):
    """Return what a stage writes that becomes 0 where it is small: what products read or another step does. These are h
    and the states after the step, and all gradients but those of vectors, which are sums. The gradient by h is
    completed by products (`loop_gradient._add_output_gradient`)."""
    if stage.is_gradient:
        return set(stage.writes) - {f"d{one.name}" for one in declaration.vectors}
    forward = [one for one in declaration.stages if not one.is_gradient]
    later = {name for one in forward[forward.index(stage) + 1 :] for name in one.writes}
    return {"h", *declaration.states} - later


def _emit_stage(row, stage, function, count, terms):
    """Emit a stage over the units of a row; terms of means go to the stack, and the sums of their blocks to the row."""
    builder, summed = row.builder, {f"d{one.name}" for one in row.declaration.vectors}  # over the steps of a chunk
    fixed = {name: row.common(name) for name in stage.reads}  # in the order of the parameters
    read = [(name, row.pointer(name)) for name in stage.reads if fixed[name] is None]
    averaged = dict(zip((name for name in stage.writes if name in row.means), terms, strict=False))
    flushed = flushed_in(row.declaration, stage)
    targets = [
        (averaged.get(name) or row.pointer(name), name in averaged, name in summed, name in flushed)
        for name in stage.writes
    ]
    call = _Call(function, row.cell, fixed, read, targets)
    if not averaged:
        _emit_units(builder, call, I64(0), count)
        return
    block = builder.sdiv(row.first, I64(MEAN_BLOCK))
    sums = [builder.gep(row.sums(name), [block]) for name in averaged]
    with parts_on_stack(builder, count) as (start, size):
        _emit_units(builder, call, start, size)
        for own, target in zip(averaged.values(), sums, strict=True):
            sum_mean_blocks(builder, own, size, builder.gep(target, [builder.sdiv(start, I64(MEAN_BLOCK))]))


def runner(stages_of):
    """Make a kernel function that runs `stages_of(declaration)` of a cell, one after the other, for each row.

    Its arguments are the cell, its `Operands` and `Gradients` (None in forward), hidden_size, and the rows and units.
    """

    @intrinsic
    def run(typingctx, cell, operands, gradients, hidden_size, rows, units):
        declaration, real = cell.instance_class.declaration, operands.types[0].types[0].dtype
        _check_unchanged(f"cell {declaration.name}", cell.instance_class)
        calls = [(stage, *_call_type(typingctx, stage, cell, real)) for stage in stages_of(declaration)]
        signature = types.void(cell, operands, gradients, types.int64, rows, units)

        def generate(context, builder, signature, arguments):
            *_, rows, units = arguments
            start, stop = (builder.extract_value(units, field) for field in range(2))
            ends, count = (builder.extract_value(rows, field) for field in range(2)), builder.sub(stop, start)
            averaged = {*declaration.means, *declaration.gradient_means}
            most = max((len(averaged.intersection(stage.writes)) for stage, *_ in calls), default=0)
            terms = terms_on_stack(context, builder, real, most)
            with cgutils.for_range_slice(builder, *ends, I64(1), intp=I64) as (number, _):
                row = _Row(context, builder, signature, arguments, number, start)
                for stage, function, own in calls:
                    _emit_stage(row, stage, context.get_function(function, own), count, terms)
            return context.get_dummy_value()

        return signature, generate

    return run
