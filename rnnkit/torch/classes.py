"""Which class a recurrent module gets to run on the engine, and which it had: of PyTorch's own modules, of subclasses
that hand their calls on to these, and of both with parametrizations."""

from __future__ import annotations

from functools import lru_cache
from types import CodeType
from typing import Any

from torch import nn

from rnnkit.torch.modules import GRU, LSTM, RNN

_FUSED: dict[type, type] = {nn.RNN: RNN, nn.LSTM: LSTM, nn.GRU: GRU}
_PLAIN: dict[type, type] = {fused: plain for plain, fused in _FUSED.items()}
NAMES = tuple(plain.__name__ for plain in _FUSED)


class NotOurs(Exception):
    """A class has no counterpart, for this reason."""


def is_fused(kind: type) -> bool:
    """Whether modules of this class run on the engine."""
    return any(one in _PLAIN for one in kind.__mro__)


def fused_class(kind: type) -> type:
    """The class for modules of this one that run on the engine: its subclass, but of a parametrized one the same again.

    Raises
    ------
    NotOurs
        Its forward may not be PyTorch's.
    """
    if kind in _FUSED:
        return _FUSED[kind]
    if _is_parametrized(kind):
        return _anew(kind, fused_class(kind.__bases__[0]))
    return _subclass(kind)


def plain_class(kind: type) -> type:
    """The class that the modules had before."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    return _anew(kind, plain_class(kind.__bases__[0])) if _is_parametrized(kind) else kind.__bases__[0]


@lru_cache(256)
def _subclass(kind: type) -> type:
    """One whose forward is the engine's, which `kind.forward`, if there is one, calls as that of its base class."""
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

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__reduce_ex__": reduce}
    fused = type(kind.__name__, (kind, _FUSED[base]), names)
    return fused


def _obstacle(code: CodeType | None) -> str | None:
    """Why a forward is not one that hands its call on; None where it is."""
    if code is None or "__class__" not in code.co_freevars or not {"super", "forward"} <= set(code.co_names):
        return "does not call super().forward"
    inside = {"_VF", "_flat_weights"} & set(code.co_names)  # past the forward that it calls
    return f"uses {', '.join(sorted(inside))}" if inside else None


def _is_parametrized(kind: type) -> bool:
    """Whether `torch.nn.utils.parametrize` has made this class, for one module, with properties for its tensors."""
    return "__getstate__" in vars(kind) and kind.__name__ == f"Parametrized{kind.__bases__[0].__name__}"


def _anew(kind: type, base: type) -> type:
    """The class that `parametrize` makes, of another base."""
    own = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return type(kind.__name__, (base,), own)


def _new(kind: type) -> Any:
    fused = fused_class(kind)
    return fused.__new__(fused)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
