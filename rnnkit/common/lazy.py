"""Attributes that are computed on first access."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class lazy:
    """`functools.cached_property` without its lock, which a fork could leave locked in the child (Python 3.11).

    Two threads may both compute the value; the results are equal.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function, self._name, self.__doc__ = function, function.__name__, function.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value
