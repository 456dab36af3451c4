"""Switch a model's recurrent modules to the engine, and back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, Self

import torch
from torch import nn
from torch._compile import _disable_dynamo

from rnnkit.call.options import checked_precision
from rnnkit.common.acceleration import Acceleration
from rnnkit.errors import message, wrong_type
from rnnkit.network.engine import cpu_module
from rnnkit.torch.classes import NAMES, NotSupported, accelerated_class, is_accelerated, plain_class
from rnnkit.torch.loops import WAY, loop_over_steps
from rnnkit.torch.modules import release
from rnnkit.types import Precision


def accelerate(model: nn.Module, *, precision: Precision | None = None) -> Acceleration:
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
    precision : {"bfloat16", "bfloat16-native", "int8"}, optional
        Quantize the weights in evaluation mode, as :func:`rnnkit.prepare` does, also of modules that are rnnkit's
        already. They are packed at the first call, and anew when they have been changed. None: full precision.

    Returns
    -------
    Acceleration
        Names of the changed modules, and of the others with the reason. The others include modules whose source shows
        that forward steps a state through a Python loop; cells in such a loop are changed all the same.

    Raises
    ------
    TypeError
        `model` is not a module.
    ValueError
        `precision` is unknown, or the CPU lacks the instruction of "bfloat16-native".

    Notes
    -----
    With `precision`, calls in training mode stay in full precision. In evaluation mode backward raises a BackendError.
    Changes of weights by PyTorch's operations are noticed, as by optimizers and `load_state_dict`; those through
    `.data` or NumPy arrays only when the module goes from training to evaluation mode.

    Under ``torch.autocast("cpu", torch.bfloat16)``, and with parameters of bfloat16, forward and backward have the
    ``precision="bfloat16"`` of :func:`rnnkit.forward`.

    Examples
    --------
    >>> from torch import nn
    >>> model = nn.ModuleDict({"encoder": nn.GRU(8, 16, bidirectional=True), "last": nn.GRUCell(8, 16).half()})
    >>> changed, left = accelerate(model)
    >>> changed
    ('encoder',)
    >>> left
    {'last': 'its parameters are torch.float16, not float32, float64 or bfloat16'}
    """
    if checked_precision("accelerate", precision) is not None:
        cpu_module("reduced").check_instruction("accelerate", precision)
    changed, left = [], {}
    for name, module in _recurrent("accelerate", model):
        reason = _why_not(module) or _why_not_quantized(module, precision)
        if reason is not None:
            left[name] = reason
        elif _change(module, precision):
            changed.append(name)
    for name, module in model.named_modules():
        has_parameters = next(module.parameters(), None) is not None
        where = loop_over_steps(module) if has_parameters and name not in left else None
        if where is not None:
            left[name] = f"{where}: {WAY}"
    return Acceleration(tuple(changed), left)


def _change(module: Any, precision: Precision | None) -> bool:
    """Make a module run on the engine, with this precision; return whether it did not before."""
    is_new = not is_accelerated(type(module))
    if is_new:
        module.__dict__.pop("_rnnkit_waits", None)
        module.__class__ = accelerated_class(type(module))
        module.flatten_parameters()
    if module._rnnkit_precision == precision:
        return is_new
    module._rnnkit_precision = precision
    return True


@contextmanager
def accelerated() -> Iterator[None]:
    """Accelerate every recurrent module that this thread creates in the `with` block, when it is first called.

    For models that a library creates in its `fit`. Until its first call a module has PyTorch's class, so code that
    initialises modules by ``type(module)`` finds it; afterwards it still passes `isinstance` checks. Pickles contain
    PyTorch's modules and load without rnnkit. Modules that `accelerate` does not support stay PyTorch's.

    Examples
    --------
    >>> from torch import nn
    >>> with accelerated():
    ...     module = nn.LSTM(8, 16)
    >>> type(module)
    <class 'torch.nn.modules.rnn.LSTM'>
    >>> y, _ = module(torch.ones(5, 3, 8))
    >>> type(module), isinstance(module, nn.LSTM)
    (<class 'rnnkit.torch.modules.LSTM'>, True)
    """
    _hook_classes()
    before, _construction.watched = getattr(_construction, "watched", False), True
    try:
        yield
    finally:
        _construction.watched = before


_construction = threading.local()


class _Waiting:
    """Mark of a module that its first call accelerates: true. Copies have it, too; a pickle has False in its place."""

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, ()


_WAITING = _Waiting()


@cache
def _hook_classes() -> None:
    """Patch PyTorch's modules: constructors mark those made in `accelerated`, the first call changes their class."""
    for base in nn.RNNBase, nn.RNNCellBase:
        base._rnnkit_waits = False  # type: ignore[attr-defined]
        base.__init__ = _marking(base.__init__)  # type: ignore[method-assign]
        base.__call__ = _accelerating  # type: ignore[method-assign]


def _marking(make: Callable[..., None]) -> Callable[..., None]:
    @wraps(make)
    def make_and_mark(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        if getattr(_construction, "watched", False) and not is_accelerated(type(self)) and _why_not(self) is None:
            self._rnnkit_waits = _WAITING

    return make_and_mark


def _accelerating(self: Any, *arguments: Any, **options: Any) -> Any:
    """Call a module; the first time, if it was created in `accelerated`, it changes its class."""
    if self._rnnkit_waits:
        _start(self)
    return nn.Module.__call__(self, *arguments, **options)


@_disable_dynamo
def _start(module: Any) -> None:
    """Accelerate a module that waits for its first call, unless it has become one that cannot be."""
    waits, born_as = module.__dict__.pop("_rnnkit_waits", False), type(module)  # another thread may come first
    if waits and not is_accelerated(born_as) and _why_not(module) is None:
        _change(module, None)
        module.__dict__["_born_as"] = born_as


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
        elif module.__dict__.pop("_rnnkit_waits", False):
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
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64, torch.bfloat16}:
        return f"its parameters are {', '.join(sorted(map(str, dtypes)))}, not float32, float64 or bfloat16"
    devices = {parameter.device.type for parameter in module.parameters()}
    return None if devices == {"cpu"} else f"its parameters are on {', '.join(sorted(devices))}, not on the CPU"


def _why_not_quantized(module: nn.Module, precision: Precision | None) -> str | None:
    """Return why a module cannot run with quantized weights; None if it can, or shall not."""
    parameters = [] if precision is None else [*module.parameters()]
    if any(one.dtype is not torch.float32 for one in parameters):
        return f"its parameters are {parameters[0].dtype}, but precision={precision!r} needs torch.float32"
    if any(one.device.type != "cpu" for one in parameters):
        return f"its parameters are on {parameters[0].device}, but precision={precision!r} needs the CPU"
    if any(one.is_inference() for one in parameters):
        return "its parameters were made in inference mode, where their changes are not counted"
    return None
