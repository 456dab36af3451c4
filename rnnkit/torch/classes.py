"""Map classes of recurrent modules to accelerated subclasses, and back.

This covers PyTorch's classes, subclasses whose forward calls `super().forward`, and both with parametrizations.
"""

from __future__ import annotations

from functools import lru_cache
from types import CodeType
from typing import Any

from torch import nn

from rnnkit.torch.modules import GRU, LSTM, RNN, Accelerated, GRUCell, LSTMCell

_ACCELERATED: dict[type, type] = {
    nn.RNN: RNN, nn.LSTM: LSTM, nn.GRU: GRU, nn.LSTMCell: LSTMCell, nn.GRUCell: GRUCell
}  # fmt: skip
_PLAIN: dict[type, type] = {accelerated: plain for plain, accelerated in _ACCELERATED.items()}
_MADE_FROM = "_rnnkit_made_from"
NAMES = *(plain.__name__ for plain in _ACCELERATED), "RNNCell"


class NotSupported(Exception):
    """Modules of this class cannot run on the engine; the text is the reason."""


def is_accelerated(kind: type) -> bool:
    """Whether modules of this class run on the engine."""
    return issubclass(kind, Accelerated)


def accelerated_class(kind: type) -> type:
    """Return the class that makes modules of this class run on the engine: a subclass, unless it is parametrized.

    Raises
    ------
    NotSupported
        Its forward does not call `super().forward`.
    """
    if kind in _ACCELERATED:
        return _ACCELERATED[kind]
    if _is_parametrized(kind):
        return _with_base(kind, accelerated_class(kind.__bases__[0]))
    return _subclass(kind)


def plain_class(kind: type) -> type | None:
    """Return the class that `accelerated_class` made this one from; None for others, as a user's subclass of ours."""
    if _is_parametrized(kind):
        base = plain_class(kind.__bases__[0])
        return None if base is None else _with_base(kind, base)
    return _PLAIN.get(kind) or vars(kind).get(_MADE_FROM)


@lru_cache(256)
def _subclass(kind: type) -> type:
    """Return a subclass in which `super().forward` is the engine's."""
    # A training step of a few rows takes 45 us in PyTorch. Autograd alone takes 26 us for a gradient in Python.
    if issubclass(kind, nn.RNNCell):
        raise NotSupported("PyTorch's own RNNCell is faster")
    base = next((plain for plain in _ACCELERATED if issubclass(kind, plain)), None)
    if base is None:
        raise NotSupported(f"{_name(kind)} is not a class of torch.nn")
    for owner in kind.__mro__[: kind.__mro__.index(base)]:
        forward = vars(owner).get("forward")
        if forward is not None and (reason := _why_not(getattr(forward, "__code__", None))):
            raise NotSupported(f"{_name(owner)}.forward {reason}")

    def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
        """Pickle the user's class: `accelerated` cannot be imported by name."""
        make, arguments, *state = super(accelerated, self).__reduce_ex__(protocol)
        return (_new, (kind,), *state) if arguments[0] is accelerated else (make, arguments, *state)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    members = names | {"__reduce_ex__": reduce, _MADE_FROM: kind}
    accelerated = type(kind.__name__, (kind, _ACCELERATED[base]), members)
    return accelerated


def _why_not(code: CodeType | None) -> str | None:
    """Return why a forward cannot be accelerated; None if it only uses `super().forward`."""
    if code is None or "__class__" not in code.co_freevars or not {"super", "forward"} <= set(code.co_names):
        return "does not call super().forward"
    inside = {"_VF", "_flat_weights"} & set(code.co_names)  # PyTorch's function, and the weights that it takes
    return f"uses {', '.join(sorted(inside))}" if inside else None


def _is_parametrized(kind: type) -> bool:
    """Whether `torch.nn.utils.parametrize` made this class, for one module, with properties for its tensors."""
    return "__getstate__" in vars(kind) and kind.__name__ == f"Parametrized{kind.__bases__[0].__name__}"


def _with_base(kind: type, base: type) -> type:
    """Return a class that `parametrize` made, with another base."""
    members = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return type(kind.__name__, (base,), members)


def _new(kind: type) -> Any:
    accelerated = accelerated_class(kind)
    return accelerated.__new__(accelerated)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
