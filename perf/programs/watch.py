"""What recurrent modules do in a program: which there are, how they are called, and what time they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.nn.utils.rnn import PackedSequence

_RECURRENT = nn.RNNBase, nn.RNNCellBase


@contextmanager
def modules_that_run() -> Iterator[dict[nn.Module, None]]:
    """Gather every recurrent module that is called, in the order of their first calls."""
    found: dict[nn.Module, None] = {}

    def note(module: nn.Module, arguments: Any) -> None:
        if isinstance(module, _RECURRENT):
            found[module] = None

    with hooks.register_module_forward_pre_hook(note):
        yield found


class Watch:
    """Counts the calls of recurrent modules by their sizes, and adds up the seconds of their forward and backward.

    Forward is timed from a hook before a call to one after it. Backward begins when the gradient of one of the module's
    outputs arrives (`register_prehook` of its `grad_fn`), and ends when those of its inputs and parameters are there.
    So that the former are noticed at once, the inputs are replaced by views of themselves, whose `grad_fn` autograd
    runs next; the latter are noticed by `register_post_accumulate_grad_hook`.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.seconds = 0.0
        self._since = 0.0  # when what is being timed began, or was last added to the sum
        self._backward = False  # whether autograd is inside a module
        self._parameters: set[nn.Parameter] = set()
        self._handles = ExitStack()

    def __enter__(self) -> Watch:
        self._handles.enter_context(hooks.register_module_forward_pre_hook(self._before))
        self._handles.enter_context(hooks.register_module_forward_hook(self._after))
        return self

    def __exit__(self, *error: Any) -> None:
        self._handles.close()

    def _before(self, module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not isinstance(module, _RECURRENT):
            return None
        self.calls[_sizes(module, arguments)] += 1
        if torch.is_grad_enabled():
            arguments = _of_tensors(arguments, self._viewed)
            for parameter in set(module.parameters()) - self._parameters:
                if parameter.requires_grad:
                    self._parameters.add(parameter)
                    self._handles.enter_context(parameter.register_post_accumulate_grad_hook(self._end))
        self._since = perf_counter()
        return arguments

    def _after(self, module: nn.Module, arguments: Any, output: Any) -> Any:
        if not isinstance(module, _RECURRENT):
            return None
        self.seconds += perf_counter() - self._since
        return _of_tensors(output, self._output)

    def _viewed(self, x: torch.Tensor) -> torch.Tensor:
        if not x.requires_grad:
            return x
        view = x.view_as(x)
        view.grad_fn.register_prehook(self._end)
        return view

    def _output(self, y: torch.Tensor) -> torch.Tensor:
        if y.grad_fn is not None:
            y.grad_fn.register_prehook(self._begin)
        return y

    def _begin(self, gradients: Any) -> None:
        if self._backward:  # the gradient of another output of the same call
            self._add()
        self._since, self._backward = perf_counter(), True

    def _end(self, gradients: Any) -> None:
        self._add()
        self._backward = False

    def _add(self) -> None:
        now = perf_counter()
        self.seconds += now - self._since
        self._since = now


def _of_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same arguments or outputs, with every tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, PackedSequence):
        return value._replace(data=change(value.data))
    return tuple(_of_tensors(one, change) for one in value) if isinstance(value, tuple) else value


def _sizes(module: Any, arguments: tuple[Any, ...]) -> str:
    """A call as the report has it: `GRU t20 n32 i5 h64 l1 train`; a cell has no steps and layers."""
    x = arguments[0]
    if isinstance(x, PackedSequence):
        steps = f"t{len(x.batch_sizes)} n{int(x.batch_sizes[0])} (packed) "
    else:
        letters = "n" if isinstance(module, nn.RNNCellBase) else "nt" if module.batch_first and x.dim() == 3 else "tn"
        sizes = dict(zip(letters, x.shape[:-1], strict=False))
        steps = "".join(f"{letter}{sizes[letter]} " for letter in "tn" if letter in sizes)
    layers = f" l{module.num_layers}{' bi' * module.bidirectional}" if isinstance(module, nn.RNNBase) else ""
    kind = next(name for name in ("LSTMCell", "GRUCell", "RNNCell", "LSTM", "GRU", "RNN") if _is(module, name))
    use = "train" if torch.is_grad_enabled() and any(one.requires_grad for one in module.parameters()) else "infer"
    return f"{kind} {steps}i{module.input_size} h{module.hidden_size}{layers} {use}"


def _is(module: nn.Module, name: str) -> bool:
    return isinstance(module, getattr(nn, name))
