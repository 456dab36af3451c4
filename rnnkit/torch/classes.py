"""The class that makes a recurrent module run on the engine, and the one that it had before.

There is one for PyTorch's modules, for subclasses whose forward calls `super().forward`, and for both with
parametrizations.
"""

from __future__ import annotations

from functools import lru_cache
from types import CodeType
from typing import Any

from torch import nn

from rnnkit.torch.modules import GRU, LSTM, RNN, Fused, GRUCell, LSTMCell

_FUSED: dict[type, type] = {
    nn.RNN: RNN, nn.LSTM: LSTM, nn.GRU: GRU, nn.LSTMCell: LSTMCell, nn.GRUCell: GRUCell
}  # fmt: skip
_PLAIN: dict[type, type] = {fused: plain for plain, fused in _FUSED.items()}
_MADE_FROM = "_rnnkit_made_from"
NAMES = *(plain.__name__ for plain in _FUSED), "RNNCell"


class NotOurs(Exception):
    """Modules of a class cannot run on the engine; the text is the reason."""


def is_fused(kind: type) -> bool:
    """Whether modules of this class run on the engine."""
    return issubclass(kind, Fused)


def fused_class(kind: type) -> type:
    """The class that makes modules of this one run on the engine: a subclass of it, unless it is parametrized.

    Raises
    ------
    NotOurs
        It has a forward of its own that does not call `super().forward`.
    """
    if kind in _FUSED:
        return _FUSED[kind]
    if _is_parametrized(kind):
        return _anew(kind, fused_class(kind.__bases__[0]))
    return _subclass(kind)


def plain_class(kind: type) -> type | None:
    """The class from which `fused_class` made this one; None if it did not, as for a user's subclass of ours."""
    if _is_parametrized(kind):
        base = plain_class(kind.__bases__[0])
        return None if base is None else _anew(kind, base)
    return _PLAIN.get(kind) or vars(kind).get(_MADE_FROM)


@lru_cache(256)
def _subclass(kind: type) -> type:
    """A subclass in which `super().forward` is the engine's."""
    # Its training step of a few rows takes 45 us. Autograd alone takes 26 for any gradient that is written in Python.
    if issubclass(kind, nn.RNNCell):
        raise NotOurs("PyTorch's own RNNCell is faster")
    base = next((plain for plain in _FUSED if issubclass(kind, plain)), None)
    if base is None:
        raise NotOurs(f"{_name(kind)} is a class of its own, not torch.nn's")
    for owner in kind.__mro__[: kind.__mro__.index(base)]:
        forward = vars(owner).get("forward")
        if forward is not None and (obstacle := _obstacle(getattr(forward, "__code__", None))):
            raise NotOurs(f"{_name(owner)}.forward {obstacle}")

    def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
        """A pickle names the user's class: `fused` has no name to be found by."""
        make, given, *state = super(fused, self).__reduce_ex__(protocol)
        return (_new, (kind,), *state) if given[0] is fused else (make, given, *state)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    own = names | {"__reduce_ex__": reduce, _MADE_FROM: kind}
    fused = type(kind.__name__, (kind, _FUSED[base]), own)
    return fused


def _obstacle(code: CodeType | None) -> str | None:
    """Why a forward may do something else than call `super().forward`; None if it only does that."""
    if code is None or "__class__" not in code.co_freevars or not {"super", "forward"} <= set(code.co_names):
        return "does not call super().forward"
    inside = {"_VF", "_flat_weights"} & set(code.co_names)  # PyTorch's own function, and its weights
    return f"uses {', '.join(sorted(inside))}" if inside else None


def _is_parametrized(kind: type) -> bool:
    """Whether `torch.nn.utils.parametrize` has made this class, for one module, with properties for its tensors."""
    return "__getstate__" in vars(kind) and kind.__name__ == f"Parametrized{kind.__bases__[0].__name__}"


def _anew(kind: type, base: type) -> type:
    """The class that `parametrize` made, on another base."""
    own = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return type(kind.__name__, (base,), own)


def _new(kind: type) -> Any:
    fused = fused_class(kind)
    return fused.__new__(fused)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
