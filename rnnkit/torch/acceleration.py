"""A model's own recurrent modules made to run on the engine, and back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, NamedTuple

import torch
from torch import nn

from rnnkit.errors import wrong_type
from rnnkit.torch.classes import NAMES, NotOurs, fused_class, is_fused, plain_class
from rnnkit.torch.modules import release


class Acceleration(NamedTuple):
    """What `accelerate` did.

    Attributes
    ----------
    changed : tuple of str
        Names of the modules that run on the engine now.
    left : dict of str to str
        Name of every other recurrent module -> why it stays as it was.
    """

    changed: tuple[str, ...]
    left: dict[str, str]


def accelerate(model: nn.Module) -> Acceleration:
    """Make every `nn.RNN`, `nn.LSTM`, `nn.GRU`, `nn.LSTMCell` and `nn.GRUCell` of a model run on the engine.

    Subclasses do too, if their forward calls `super().forward`, and so do parametrized and pruned modules.

    The modules and their parameters stay the same objects: references to them, hooks, names, values and an
    optimizer's state all hold. Only their class is another one, which is a subclass of theirs. Each parameter has a
    storage of its own, so a model is saved as before. The values move into neighbouring memory, though, so what views
    the old memory (`.data`, `.numpy()`, an earlier `state_dict()`) follows no more; parameters in memory that processes
    share stay there.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place; it may itself be such a module.

    Returns
    -------
    Acceleration
        Names of the modules that were changed, and of those that were not with the reason.

    Raises
    ------
    TypeError
        `model` is no module.

    Examples
    --------
    >>> from torch import nn
    >>> model = nn.ModuleDict({"encoder": nn.GRU(8, 16, bidirectional=True), "last": nn.GRUCell(8, 16).half()})
    >>> accelerate(model)
    Acceleration(changed=('encoder',), left={'last': 'its parameters are torch.float16, not float32 or float64'})
    """
    changed, left = [], {}
    for name, module in _recurrent("accelerate", model):
        obstacle = _obstacle(module)
        if obstacle is not None:
            left[name] = obstacle
        elif not is_fused(type(module)):
            module.__class__ = fused_class(type(module))
            module.flatten_parameters()
            changed.append(name)
    return Acceleration(tuple(changed), left)


@contextmanager
def accelerated() -> Iterator[None]:
    """Accelerate every recurrent module that this thread creates in the `with` block.

    For models that a library creates in its `fit`. `isinstance` takes the modules for PyTorch's. Their pickles contain
    PyTorch's modules, which load without rnnkit. Modules that `accelerate` would leave are created as usual.

    Examples
    --------
    >>> from torch import nn
    >>> with accelerated():
    ...     module = nn.LSTM(8, 16)
    >>> type(module), isinstance(module, nn.LSTM)
    (<class 'rnnkit.torch.modules.LSTM'>, True)
    """
    _watch_births()
    before, _births.watched = getattr(_births, "watched", False), True
    try:
        yield
    finally:
        _births.watched = before


_births = threading.local()


@cache
def _watch_births() -> None:
    """Make the constructor of PyTorch's recurrent modules look, from now on, whether it is called in `accelerated`."""
    for base in nn.RNNBase, nn.RNNCellBase:
        base.__init__ = _and_accelerated(base.__init__)  # type: ignore[method-assign]


def _and_accelerated(make: Callable[..., None]) -> Callable[..., None]:
    @wraps(make)
    def make_and_accelerate(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        kind = type(self)
        if getattr(_births, "watched", False) and not is_fused(kind) and _obstacle(self) is None:
            self.__class__ = fused_class(kind)
            self.__dict__["_born_as"] = kind
            self.flatten_parameters()

    return make_and_accelerate


def restore(model: nn.Module) -> tuple[str, ...]:
    """Make the modules that run on the engine PyTorch's own again.

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
        `model` is no module.
    """
    changed = []
    for name, module in _recurrent("restore", model):
        kind = plain_class(type(module))
        if kind is not None:
            module.__class__ = kind
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()
            release(module)
            changed.append(name)
    return tuple(changed)


def _recurrent(function: str, model: nn.Module):
    """The modules of a model that run through time, by name."""
    if not isinstance(model, nn.Module):
        raise wrong_type(function, "model", "a torch.nn.Module", model)
    for name, module in model.named_modules():
        kinds = [kind.__name__ for kind in type(module).__mro__]
        scripted = isinstance(module, torch.jit.ScriptModule) and module.original_name in NAMES
        if scripted or isinstance(module, nn.RNNCellBase) or any("RNNBase" in kind for kind in kinds):
            yield name, module


def _obstacle(module: nn.Module) -> str | None:
    """Why a module cannot run on the engine; None where it can, or does."""
    kind = type(module)
    if is_fused(kind):
        return None
    if isinstance(module, torch.jit.ScriptModule):
        return f"a {module.original_name} of TorchScript is compiled already"
    try:
        fused_class(kind)
    except NotOurs as reason:
        return str(reason)
    if "forward" in vars(module):
        return "it has a forward of its own"
    dtypes = {one.dtype for one in module.parameters()}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        return f"its parameters are {', '.join(sorted(map(str, dtypes)))}, not float32 or float64"
    devices = {one.device.type for one in module.parameters()}
    return None if devices == {"cpu"} else f"its parameters are on {', '.join(sorted(devices))}, not on the CPU"
