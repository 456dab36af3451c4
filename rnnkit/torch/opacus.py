"""Opacus: gradients of single samples of accelerated modules, for differentially private training.

Opacus puts two hooks on a layer: one keeps its input, the other takes the gradient of its first output and asks the
layer's grad sampler for the gradients of samples. A recurrent module takes and returns states, too. So the first hook
is given a placeholder with the batch's size, and the module's own backward calls the second, once it has the gradient
of each sequence; the grad sampler hands that on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.hooks import RemovableHandle

_KEEPS, _TAKES = "capture_activations_hook", "capture_backprops_hook"  # methods of its GradSampleModule


def _is(hook: Any, name: str) -> bool:
    """Whether a hook is a method of this name of Opacus, or a partial of it."""
    method = getattr(getattr(hook, "func", hook), "__func__", None)
    return getattr(method, "__name__", "") == name and str(method.__module__).partition(".")[0] == "opacus"


def adapted(module: Any, hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return what to register as a forward hook; of Opacus, one that passes it a placeholder for the input."""
    if not _is(hook, _KEEPS):
        return hook

    def keep(module: Any, arguments: tuple[Any, ...], output: Any) -> None:
        samples = module.__dict__.get("_rnnkit_samples")
        if samples is not None:
            hook(module, [samples.placeholder(module, arguments[0])], output)

    return keep


def taken(module: Any, hook: Callable[..., Any]) -> RemovableHandle | None:
    """Keep a full backward hook of Opacus, which the module's own backward calls; None: it is another's."""
    if not _is(hook, _TAKES):
        return None
    from opacus.grad_sample.utils import register_grad_sampler

    register_grad_sampler(type(module))(_grad_samples)
    hooks: OrderedDict[int, Any] = OrderedDict()  # dicts have no weak references
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    module.__dict__["_rnnkit_samples"] = Samples(hooks, hook.keywords["batch_first"])
    return handle


class Samples:
    """What a module's backward does with the gradients of single sequences; none if Opacus has removed its hook."""

    def __init__(self, hooks: Mapping[int, Callable[..., Any]], batch_first: bool) -> None:
        self._hooks, self._batch_first = hooks, batch_first

    def __deepcopy__(self, memo: Any) -> None:
        return None  # the hooks are another module's

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    @property
    def is_wanted(self) -> bool:
        """Whether gradients of single sequences are wanted."""
        return bool(self._hooks)

    def _ones(self, count: int, like: Tensor) -> Tensor:
        return like.new_ones((count, 1) if self._batch_first else (1, count))

    def placeholder(self, module: Any, input: Any) -> Tensor:
        """Return a tensor with the batch's size where Opacus looks for it."""
        if isinstance(input, PackedSequence):
            return self._ones(int(input.batch_sizes[0]), input.data)
        one_sequence = 1 if isinstance(module, nn.RNNCellBase) else 2
        axis = 0 if isinstance(module, nn.RNNCellBase) or module._rnnkit_batch_first else 1
        return self._ones(1 if input.dim() == one_sequence else input.shape[axis], input)

    def hand_on(self, module: Any, gradients: Mapping[Any, Tensor]) -> None:
        """Give Opacus the gradients of single sequences, (N, ...), by parameter."""
        found = [*gradients.values()]
        for hook in self._hooks.values():
            module.__dict__["_rnnkit_found"] = gradients
            try:
                hook(module, None, (self._ones(len(found[0]), found[0]),))
            finally:
                del module.__dict__["_rnnkit_found"]


def _grad_samples(module: Any, activations: list[Tensor], backprops: Tensor) -> dict[Any, Tensor]:
    """The grad sampler: the module's backward has computed them. Opacus multiplies the placeholder by the batch's size,
    if the loss is a mean."""
    scale = backprops.reshape(-1)[0] if backprops.numel() else 1  # Poisson sampling may draw no sample
    return {parameter: gradient * scale for parameter, gradient in module.__dict__["_rnnkit_found"].items()}
