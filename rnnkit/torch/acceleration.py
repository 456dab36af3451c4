"""Switch a model's recurrent modules to the engine, and back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch import nn

from rnnkit.common.acceleration import Acceleration
from rnnkit.errors import message, wrong_type
from rnnkit.torch.classes import NAMES, NotSupported, accelerated_class, is_accelerated, plain_class
from rnnkit.torch.modules import release


def accelerate(model: nn.Module) -> Acceleration:
    """Make every `nn.RNN`, `nn.LSTM`, `nn.GRU`, `nn.LSTMCell` and `nn.GRUCell` of a model run on the engine.

    It includes subclasses whose forward calls `super().forward`, and parametrized and pruned modules.

    The modules and their parameters stay the same objects: references, hooks, names, values and optimizer state stay
    valid. Only the class changes, to a subclass. The values move into one block of memory, in which each parameter
    still has its own storage object, so a model is saved as before. Existing views (`.data`, `.numpy()`, an earlier
    `state_dict()`) no longer track the parameters. Parameters in shared memory are not moved.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place; it may itself be such a module.

    Returns
    -------
    Acceleration
        Names of the changed modules, and of the others with the reason.

    Raises
    ------
    TypeError
        `model` is not a module.

    Examples
    --------
    >>> from torch import nn
    >>> model = nn.ModuleDict({"encoder": nn.GRU(8, 16, bidirectional=True), "last": nn.GRUCell(8, 16).half()})
    >>> accelerate(model)
    Acceleration(changed=('encoder',), left={'last': 'its parameters are torch.float16, not float32 or float64'})
    """
    changed, left = [], {}
    for name, module in _recurrent("accelerate", model):
        reason = _why_not(module)
        if reason is not None:
            left[name] = reason
        elif not is_accelerated(type(module)):
            module.__class__ = accelerated_class(type(module))
            module.flatten_parameters()
            changed.append(name)
    return Acceleration(tuple(changed), left)


@contextmanager
def accelerated() -> Iterator[None]:
    """Accelerate every recurrent module that this thread creates in the `with` block.

    For models that a library creates in its `fit`. The modules pass `isinstance` checks for PyTorch's classes. Their
    pickles contain PyTorch's modules and load without rnnkit. Modules that `accelerate` does not support are created as
    usual.

    Examples
    --------
    >>> from torch import nn
    >>> with accelerated():
    ...     module = nn.LSTM(8, 16)
    >>> type(module), isinstance(module, nn.LSTM)
    (<class 'rnnkit.torch.modules.LSTM'>, True)
    """
    _hook_constructors()
    before, _construction.watched = getattr(_construction, "watched", False), True
    try:
        yield
    finally:
        _construction.watched = before


_construction = threading.local()


@cache
def _hook_constructors() -> None:
    """Patch the constructors of PyTorch's recurrent modules to check whether they run in `accelerated`."""
    for base in nn.RNNBase, nn.RNNCellBase:
        base.__init__ = _accelerating(base.__init__)  # type: ignore[method-assign]


def _accelerating(make: Callable[..., None]) -> Callable[..., None]:
    @wraps(make)
    def make_and_accelerate(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        kind = type(self)
        if getattr(_construction, "watched", False) and not is_accelerated(kind) and _why_not(self) is None:
            self.__class__ = accelerated_class(kind)
            self.__dict__["_born_as"] = kind
            self.flatten_parameters()

    return make_and_accelerate


def restore(model: nn.Module) -> tuple[str, ...]:
    """Switch all modules that run on the engine back to PyTorch's classes.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place, as by :func:`accelerate`.

    Returns
    -------
    tuple of str
        Names of the modules that were changed.

    Raises
    ------
    TypeError
        `model` is not a module.
    ValueError
        A module has `learned_initial_state`, which PyTorch's lack. Nothing has been changed.
    """
    found = [(name, module, plain_class(type(module))) for name, module in _recurrent("restore", model)]
    for name, module, kind in found:
        if kind is not None and getattr(module, "learned_initial_state", False):
            expected = f"be False in module {name!r}: PyTorch's {kind.__name__} has no initial states of its own"
            raise ValueError(message("restore", "learned_initial_state", expected, True))
    changed = []
    for name, module, kind in found:
        if kind is not None:
            module.__class__ = kind
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()
            release(module)
            changed.append(name)
    return tuple(changed)


def _recurrent(function: str, model: nn.Module):
    """Yield the recurrent modules of a model, with their names."""
    if not isinstance(model, nn.Module):
        raise wrong_type(function, "model", "a torch.nn.Module", model)
    for name, module in model.named_modules():
        kinds = [kind.__name__ for kind in type(module).__mro__]
        scripted = isinstance(module, torch.jit.ScriptModule) and module.original_name in NAMES
        if scripted or isinstance(module, nn.RNNCellBase) or any("RNNBase" in kind for kind in kinds):
            yield name, module


def _why_not(module: nn.Module) -> str | None:
    """Return why a module cannot run on the engine; None if it can, or already does."""
    kind = type(module)
    if is_accelerated(kind):
        return None
    if isinstance(module, torch.jit.ScriptModule):
        return f"it is a {module.original_name} compiled by TorchScript"
    try:
        accelerated_class(kind)
    except NotSupported as reason:
        return str(reason)
    if "forward" in vars(module):
        return "its forward is overridden on the instance"
    dtypes = {parameter.dtype for parameter in module.parameters()}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        return f"its parameters are {', '.join(sorted(map(str, dtypes)))}, not float32 or float64"
    devices = {parameter.device.type for parameter in module.parameters()}
    return None if devices == {"cpu"} else f"its parameters are on {', '.join(sorted(devices))}, not on the CPU"
