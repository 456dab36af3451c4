"""Binds the arguments of a call to the parameters of a function, as Python does."""

import inspect
from types import FunctionType

_STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


class Outside:
    """A value from outside the equations, for example a default: a number, or a function to call."""

    def __init__(self, value):
        self.value = value


def bound(function, given, named):
    """Return parameter -> argument, or its default as `Outside`, in the order of the parameters.

    Raises TypeError if the arguments do not match, ValueError if a built-in function does not tell its parameters.
    """
    signature = _signature(function)
    arguments = signature.bind(*given, **named).arguments
    return {
        name: arguments[name] if name in arguments else Outside(one.default)
        for name, one in signature.parameters.items()
        if name in arguments or one.kind not in _STARS
    }


def starred(function):
    """Return the parameters that take any number of arguments, as they are written: *args."""
    return [_STARS[one.kind] + name for name, one in _signature(function).parameters.items() if one.kind in _STARS]


def by_position(function):
    """Whether all parameters of a function may be given by position."""
    return all(one.kind != inspect.Parameter.KEYWORD_ONLY for one in _signature(function).parameters.values())


def _signature(function):
    if not isinstance(function, FunctionType):
        return inspect.signature(function)
    # The function's own code: `inspect.signature` of a decorated function would be that of the function it wraps.
    own = FunctionType(function.__code__, {}, function.__name__, function.__defaults__, function.__closure__)
    own.__kwdefaults__ = function.__kwdefaults__
    return inspect.signature(own)
