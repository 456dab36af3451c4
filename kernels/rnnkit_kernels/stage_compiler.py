"""Compiles the functions of a cell's stages: what their Python means in a dtype, and products with gradients.

`stages` calls them for the units of a row.
"""

import operator
from types import ModuleType

import numpy as np
from numba import types
from numba.core import ir
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.ir_utils import get_definition, guard
from numba.core.untyped_passes import IRProcessing
from numba.np.numpy_support import as_dtype

from .cells.functions import fma
from .machine.compiler import COMPILER
from .machine.small import lifted_fma, lifted_product

_NUMBERS = int, float, np.float32, np.float64


@register_pass(mutates_CFG=False, analysis_only=False)
class _RealLiterals(FunctionPass):
    """Converts the literals in a stage, and constants of modules (math.pi), to the dtype of its arguments: 1 - z of a
    float32 z is then float32."""

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
            is_power = type(known) is int and one.target.name in exponents  # x ** 2 is a product
            if numbers and all(type(number) in _NUMBERS for number in numbers) and not is_power:
                typed = tuple(_converted(number, reals[0]) for number in numbers)
                one.value = ir.Const(typed if known is numbers else typed[0], one.value.loc)
        return True


class DoesNotFitError(Exception):
    """A constant rounds to 0 or infinity in the dtype: the equations may divide by it, or multiply it by 0."""

    def __init__(self, problem):
        super().__init__(problem)
        self.problem = problem  # Numba adds to the text


def _converted(number, real):
    try:
        with np.errstate(over="ignore"):
            found = real(number)
    except OverflowError:
        raise DoesNotFitError("an int beyond float64") from None
    if float(found) != number and (found == 0 or np.isinf(found)):
        raise DoesNotFitError(f"{number:g}, which rounds to {found:g}")
    return found


def _known(state, value):
    """Return the constant that a value is known to be before typing: a default, a literal, a global of a module."""
    if isinstance(value, (ir.Const, ir.Global, ir.FreeVar)):
        return value.value
    if isinstance(value, ir.Arg):
        return getattr(state.args[value.index], "value", None)  # of an omitted argument
    if isinstance(value, ir.Expr) and value.op == "getattr":
        owner = _known(state, guard(get_definition, state.func_ir, value.value))
        return getattr(owner, value.attr, None) if isinstance(owner, ModuleType) else None
    return None


class StageCompiler(COMPILER):
    """Compiles a stage, or a function that it calls."""

    def define_pipelines(self):
        [pipeline] = super().define_pipelines()
        pipeline.add_pass_after(_RealLiterals, IRProcessing)
        pipeline.finalize()
        return [pipeline]


_GRADIENTS = {}
"""Function of a stage -> the names of the gradients that it reads."""


def gradient_compiler(stage):
    """Return the compiler of a gradient stage's function."""
    _GRADIENTS[stage.function] = {name for name in stage.reads if name.startswith("d")}
    return GradientCompiler


@register_pass(mutates_CFG=False, analysis_only=False)
class _LiftedProducts(FunctionPass):
    """Replaces what may underflow, as both of two factors may be small: a square, and a product or `fma` with a number
    that depends on a gradient."""

    _name = "rnnkit_lifted_products"

    def __init__(self):
        FunctionPass.__init__(self)

    def run_pass(self, state):
        names = _GRADIENTS.get(state.func_id.func, ())
        assigned = [one for block in state.func_ir.blocks.values() for one in block.find_insts(ir.Assign)]
        found, count = set(), -1  # variables that depend on a gradient
        while count < len(found):
            count = len(found)
            found |= {one.target.name for one in assigned if _depends(one.value, names, found)}
        for one in (one.value for one in assigned if isinstance(one.value, ir.Expr)):
            if one.op == "binop" and one.fn is operator.mul:
                if one.lhs.name == one.rhs.name or _depends(one, names, found):
                    one.fn = lifted_product
            elif one.op == "call" and _depends(one, names, found):
                function = guard(get_definition, state.func_ir, one.func)
                if _known(state, function) is fma:
                    function.value = lifted_fma  # loaded for this call alone
        return True


def _depends(value, names, variables):
    """Return whether a value is one of these arguments, or computed from one of these variables."""
    if isinstance(value, ir.Arg):
        return value.name in names
    read = value.list_vars() if isinstance(value, ir.Expr) else [value] if isinstance(value, ir.Var) else []
    return not variables.isdisjoint(one.name for one in read)


class GradientCompiler(StageCompiler):
    """Compiles a gradient stage, or the slope of an activation."""

    def define_pipelines(self):
        [pipeline] = super().define_pipelines()
        pipeline.add_pass_after(_LiftedProducts, _RealLiterals)
        pipeline.finalize()
        return [pipeline]
