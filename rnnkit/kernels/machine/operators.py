"""Numba's answers to what an operator does with operands of some types, kept.

At each place in a source Numba asks up to four times all who implement the operator: those of lists, sets and strings,
too, what they make of the sum of two integers.
"""

from functools import cache

from numba import types
from numba.core.compiler import Flags
from numba.core.targetconfig import ConfigStack
from numba.core.typing import Context


class KeptFlags(Flags):
    """Flags of a compilation, of which equal ones are the same object: an answer holds for some flags."""

    __slots__ = ()
    __eq__, __hash__ = object.__eq__, object.__hash__
    _kept = {}

    def copy(self):
        return self._kept.setdefault(self.summary(), super().copy())


class _Operator(types.Function):
    """An operator as Numba has it, which asks once."""

    def __init__(self, function):
        super().__init__(function.templates)
        self._answers = {}

    def get_call_type(self, context, args, kws):
        question = ConfigStack.top_or_none(), tuple(args)
        if question not in self._answers:
            self._answers[question] = super().get_call_type(context, args, kws)
        return self._answers[question]


class _Context(Context):
    """The typing context of which it is made, with all that is registered there, but with these operators."""

    def __init__(self, context):
        vars(self).update(vars(context))
        self._operators = {}

    def resolve_value_type(self, val):
        found = super().resolve_value_type(val)
        if getattr(val, "__module__", None) != "_operator":
            return found
        if found not in self._operators:
            self._operators[found] = _Operator(found)
        return self._operators[found]


keeping_answers = cache(_Context)
