"""Programs for tests of the suite of programs, which sends them to a process by their names."""

import os
from functools import partial

import torch
from torch import nn

import rnnkit.torch
from perf.programs.program import Program

SIZES = "GRU t5 n2 i3 h4 l1"


class Own(nn.GRU):
    """Cannot be accelerated."""

    def forward(self, x):
        return x.sum(-1, keepdim=True).expand(-1, -1, self.hidden_size)


def fit(updates=2):
    """Two modules: one on the engine, one that is left."""
    model = nn.ModuleList([nn.GRU(3, 4), Own(4, 4)])
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    for _ in range(updates):
        optimizer.zero_grad()
        model[1](model[0](torch.ones(5, 2, 3))[0]).square().sum().backward()
        optimizer.step()
    return model


def predict(model, noise=0.0):
    """The outputs of the first; those of the engine have an error."""
    with torch.no_grad():
        y = model[0](torch.ones(5, 2, 3))[0].numpy()
    return y * (1 + noise * isinstance(model[0], rnnkit.torch.GRU))


def predict_loudly(model):
    """Writes to both streams."""
    for stream in (1, 2):
        os.write(stream, b"loud")
    return predict(model)


def fail(model):
    """Fails on the engine."""
    if isinstance(model[0], rnnkit.torch.GRU):
        raise ValueError("no such thing")
    return 0.0


def parameters():
    """Those of the module on the engine."""
    return {name: value.numpy() for name, value in fit(1)[0].state_dict().items()}


TINY = Program("tiny/gru", ("torch",), fit, predict)
WRONG = TINY._replace(name="tiny/wrong", predict=partial(predict, noise=0.5))
LOUD = TINY._replace(predict=predict_loudly)
CHAOTIC = WRONG._replace(name="tiny/chaotic", parameters=parameters)
FAILING = TINY._replace(name="tiny/failing", predict=fail)
MISSING = TINY._replace(name="tiny/missing", needs=("torch", "no_such_package", "nor_this_one"))
