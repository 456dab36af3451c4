"""Time other derivatives than the first one of a batch, beside PyTorch: a gradient penalty, which takes second ones,
and the gradient of each sample, by `torch.vmap` (both on PyTorch's operations) and as Opacus collects it.

PyTorch cannot map its own modules over samples: there each sample has a call and a backward of its own. Opacus has
recurrent layers of its own for it. All run in one process in turn, in many short windows; the minimum of each counts.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from typing import Any, NamedTuple

from perf.call_suite import check_close, least_seconds, timed

_INPUT = 16


class Derivative(NamedTuple):
    """A derivative of a network: `penalty`, `samples` or `private`."""

    what: str
    kind: str
    seq_len: int
    batch_size: int
    hidden_size: int

    @property
    def name(self) -> str:
        """Return the name for patterns and the report."""
        return f"{self.what}-{self.kind.lower()}-t{self.seq_len}-n{self.batch_size}-h{self.hidden_size}"


SIZES = (20, 8, 32), (50, 16, 128)
KINDS = "RNN", "LSTM", "GRU"
CASES = tuple(Derivative(*one, *n) for *one, n in product(("penalty", "samples"), KINDS, SIZES))
CASES += tuple(Derivative("private", kind, 50, 32, 64) for kind in KINDS)


class Row(NamedTuple):
    """Seconds of PyTorch, or Opacus, and of rnnkit."""

    case: Derivative
    threads: int
    torch: float
    own: float

    def __str__(self) -> str:
        other = "opacus" if self.case.what == "private" else "torch"
        times = f"{other:6} {self.torch * 1e3:8.2f} ms  rnnkit {self.own * 1e3:8.2f} ms"
        return f"{self.case.name:28} {self.threads} threads  {times}  {self.torch / self.own:5.2f}x"


def run(pattern: str, threads: list[int], seconds: float) -> list[Row]:
    """Time the cases whose names match one of the patterns, and print each; without Opacus not those that need it."""
    has_opacus = find_spec("opacus") is not None
    cases = {case.name: case for case in CASES if case.what != "private" or has_opacus}
    return timed(cases, pattern, threads, lambda case, n: measure(case, n, seconds))


def measure(case: Derivative, threads: int, seconds: float) -> Row:
    """Time a case in both, which must have the same results."""
    import torch
    from torch import nn

    from rnnkit.torch import FallbackWarning, accelerate

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    plain = getattr(nn, case.kind)(_INPUT, case.hidden_size)
    own = copy.deepcopy(plain)
    accelerate(own)
    x = torch.randn(case.seq_len, case.batch_size, _INPUT)
    if case.what == "private":
        calls = [_private(module, x) for module in (_layer_of_opacus(plain), own)]
    elif case.what == "penalty":
        calls = [_penalty(module, x) for module in (plain, own)]
    else:
        calls = [_loop_over_samples(plain, x), _mapped_over_samples(own, x)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        expected, found = (call() for call in calls)
        for one, other in zip(found, expected, strict=True):
            check_close(one, other, own, plain)
        return Row(case, threads, *least_seconds(calls, seconds))


def _penalty(module: Any, x: Any) -> Callable[[], Any]:
    import torch

    def step() -> Any:
        leaf = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(module(leaf)[0].sum(), leaf, create_graph=True)
        penalty = (slope.square().sum((0, 2)).sqrt() - 1).square().mean()
        return torch.autograd.grad(penalty, [module.weight_ih_l0, module.weight_hh_l0])

    return step


def _layer_of_opacus(plain: Any) -> Any:
    from opacus import layers

    layer = getattr(layers, f"DP{type(plain).__name__}")(plain.input_size, plain.hidden_size)
    layer.load_state_dict(plain.state_dict())
    return layer


def _private(module: Any, x: Any) -> Callable[[], Any]:
    """Return a step whose result is the squared norm of each sample's gradient, to which Opacus clips it."""
    from opacus.grad_sample import GradSampleModule

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, about hooks on a module whose input has no gradient
        wrapped = GradSampleModule(module.train(), batch_first=False, loss_reduction="sum")

    def step() -> Any:
        wrapped.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrapped(x)[0].square().sum().backward()
        return [sum(one.grad_sample.flatten(1).square().sum(1) for one in wrapped.parameters())]

    return step


def _loop_over_samples(module: Any, x: Any) -> Callable[[], Any]:
    import torch

    def step() -> Any:
        weights = list(module.parameters())
        each = [torch.autograd.grad(module(one[:, None])[0].square().sum(), weights) for one in x.unbind(1)]
        return [torch.stack(one) for one in zip(*each, strict=True)]

    return step


def _mapped_over_samples(module: Any, x: Any) -> Callable[[], Any]:
    from torch.func import functional_call, grad, vmap

    weights = {name: one.detach() for name, one in module.named_parameters()}

    def loss(weights: Any, sample: Any) -> Any:
        return functional_call(module, weights, (sample[:, None],))[0].square().sum()

    gradients = vmap(grad(loss), (None, 1))
    return lambda: list(gradients(weights, x).values())
