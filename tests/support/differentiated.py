"""Modules whose calls are transformed and differentiated again, small and in float64, and what they take."""

from functools import partial

import pytest
import torch
from torch.func import functional_call
from torch_tensors import flat

import rnnkit.torch
from rnnkit.cells import SLSTM, MinGRU
from rnnkit.torch import Recurrent

T, N, F, H = 4, 3, 2, 3
CLOSE = dict(rtol=1e-10, atol=1e-12)
MODULES = {
    "RNN": partial(rnnkit.torch.RNN, F, H, nonlinearity="tanh", bias=False),
    "RNN of ReLU": partial(rnnkit.torch.RNN, F, H, 2, nonlinearity="relu", batch_first=True),
    "GRU": partial(rnnkit.torch.GRU, F, H, batch_first=True),
    "LSTM": partial(rnnkit.torch.LSTM, F, H, 2, bidirectional=True),
    "projected": partial(rnnkit.torch.LSTM, F, H, proj_size=2),
    "learned": partial(rnnkit.torch.GRU, F, H, learned_initial_state=True),
    "LSTMCell": partial(rnnkit.torch.LSTMCell, F, H),
    "GRUCell": partial(rnnkit.torch.GRUCell, F, H),
    "several states": partial(Recurrent, SLSTM, F, H),
    "own cell": partial(Recurrent, MinGRU, F, H, 2, bidirectional=True),
}
EACH = pytest.mark.parametrize("kind", MODULES)


def module(kind):
    torch.manual_seed(0)
    return MODULES[kind](dtype=torch.float64)


def drawn(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def inputs(kind, *several):
    return drawn(*several, *([N, F] if "Cell" in kind else [T, N, F]))


def weights_of(own):
    return {name: one.detach() for name, one in own.named_parameters()}


def total(own, weights, x, *options, **named):
    results = flat(functional_call(own, weights, (x, *options), named))
    return sum((one * (1 + number)).sin().sum() for number, one in enumerate(results))
