"""A model's own recurrent modules made to run on the engine, and back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from rnnkit.errors import wrong_type
from rnnkit.torch.modules import GRU, LSTM, RNN, release

_FUSED = {nn.RNN: RNN, nn.LSTM: LSTM, nn.GRU: GRU}
_NAMES = tuple(plain.__name__ for plain in _FUSED)
_PLAIN = {fused: plain for plain, fused in _FUSED.items()}


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
    """Make every `nn.RNN`, `nn.LSTM` and `nn.GRU` of a model run on the engine.

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
    >>> model = nn.ModuleDict({"encoder": nn.GRU(8, 16, bidirectional=True), "cell": nn.GRUCell(8, 16)})
    >>> accelerate(model)
    Acceleration(changed=('encoder',), left={'cell': 'a GRUCell runs one step at a time'})
    """
    changed, left = [], {}
    for name, module in _recurrent("accelerate", model):
        obstacle = _obstacle(module)
        if obstacle is not None:
            left[name] = obstacle
        elif type(module) in _FUSED:
            module.__class__ = _FUSED[type(module)]
            module.flatten_parameters()
            changed.append(name)
    return Acceleration(tuple(changed), left)


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
        if type(module) in _PLAIN:
            module.__class__ = _PLAIN[type(module)]
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
        scripted = isinstance(module, torch.jit.ScriptModule) and module.original_name in _NAMES
        if scripted or isinstance(module, nn.RNNCellBase) or any("RNNBase" in kind for kind in kinds):
            yield name, module


def _obstacle(module: nn.Module) -> str | None:
    """Why a module cannot run on the engine; None where it can, or does."""
    kind = type(module)
    if kind in _PLAIN:
        return None
    if isinstance(module, nn.RNNCellBase):
        return f"a {kind.__name__} runs one step at a time"
    if isinstance(module, torch.jit.ScriptModule):
        return f"a {module.original_name} of TorchScript is compiled already"
    if kind not in _FUSED:
        return f"{kind.__module__}.{kind.__qualname__} is a class of its own, not torch.nn's"
    if "forward" in vars(module):
        return "it has a forward of its own"
    dtypes = {one.dtype for one in module.parameters()}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        return f"its parameters are {', '.join(sorted(map(str, dtypes)))}, not float32 or float64"
    devices = {one.device.type for one in module.parameters()}
    return None if devices == {"cpu"} else f"its parameters are on {', '.join(sorted(devices))}, not on the CPU"
