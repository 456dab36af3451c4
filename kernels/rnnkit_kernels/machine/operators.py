"""Operators in kernels: as in Numba, but with cached typing, and with less code for int64 operands.

At each use of an operator Numba tries all overloads, those of lists, sets and strings included, up to four times. Its
quotient of two integers has eight blocks, and their minimum is a function that may raise; here both are a few
instructions.
"""

import operator
from functools import cache

from llvmlite import ir
from numba import types
from numba.core.compiler import Flags
from numba.core.datamodel import models, register_default
from numba.core.targetconfig import ConfigStack
from numba.core.typing import Context, signature
from numba.extending import lower_builtin

_INT64S = types.int64, types.int64


class InternedFlags(Flags):
    """Flags of a compilation, interned: equal flags are the same object, so they can be part of a cache key."""

    __slots__ = ()
    __eq__, __hash__ = object.__eq__, object.__hash__
    _kept = {}

    def copy(self):
        return self._kept.setdefault(self.summary(), super().copy())


def _quotient(a, b):
    """a // b, 0 where b is 0."""


@lower_builtin(_quotient, *_INT64S)
def _lower_quotient(context, builder, signature, arguments):
    a, b = arguments
    zero, one = b.type(0), b.type(1)
    if isinstance(b, ir.Constant) and b.constant > 0 and b.constant & (b.constant - 1) == 0:
        return builder.ashr(a, b.type(b.constant.bit_length() - 1))
    is_zero = builder.icmp_signed("==", b, zero)
    divisor = builder.select(is_zero, one, b)
    quotient, rest = builder.sdiv(a, divisor), builder.srem(a, divisor)
    differ = builder.icmp_signed("<", builder.xor(rest, divisor), zero)
    is_below = builder.and_(builder.icmp_signed("!=", rest, zero), differ)
    return builder.select(is_zero, zero, builder.sub(quotient, builder.zext(is_below, b.type)))


def _least(a, b):
    """min(a, b)."""


def _largest(a, b):
    """max(a, b)."""


def _lower_choice(function, order):
    @lower_builtin(function, *_INT64S)
    def lower(context, builder, signature, arguments):
        a, b = arguments
        return builder.select(builder.icmp_signed(order, b, a), b, a)


_lower_choice(_least, "<")
_lower_choice(_largest, ">")
_OWN = {operator.floordiv: _quotient, min: _least, max: _largest}
"""Replacements of functions of two int64."""


class _Operator(types.Function):
    """An operator of Numba with memoised typing."""

    def __init__(self, function, own):
        super().__init__(function.templates)
        self._answers, self._own = {}, own

    def get_call_type(self, context, args, kws):
        question = ConfigStack.top_or_none(), tuple(args)
        if question not in self._answers:
            is_own = self._own is not None and tuple(map(types.unliteral, args)) == _INT64S
            found = signature(types.int64, *_INT64S) if is_own else super().get_call_type(context, args, kws)
            self._answers[question] = found
        return self._answers[question]

    def get_impl_key(self, sig):
        return self._own if self._own is not None and sig.args == _INT64S else super().get_impl_key(sig)


register_default(_Operator)(models.OpaqueModel)  # as of Numba's functions: `min` of a conditional is kept in a variable


class _Context(Context):
    """A copy of a typing context, with all that is registered there, but with these operators."""

    def __init__(self, context):
        vars(self).update(vars(context))
        self._operators = {}

    def resolve_value_type(self, val):
        found = super().resolve_value_type(val)
        if getattr(val, "__module__", None) != "_operator" and val is not min and val is not max:
            return found
        if found not in self._operators:
            self._operators[found] = _Operator(found, _OWN.get(val))
        return self._operators[found]


cached_context = cache(_Context)
