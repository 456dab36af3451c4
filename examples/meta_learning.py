"""Meta-learning (MAML) of waves: a GRU whose weights learn a new wave in two steps; with and without rnnkit.

C. Finn, P. Abbeel, S. Levine, "Model-agnostic meta-learning for fast adaptation of deep networks", ICML 2017.
"""

import copy
import math
import warnings

import torch
from torch import nn
from torch.func import functional_call

import rnnkit.torch

warnings.simplefilter("ignore", rnnkit.torch.FallbackWarning)  # second derivatives run on PyTorch
STEPS, TASKS, ROWS, UPDATES = 20, 4, 8, 40


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(1, 24), nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


def task():
    """Two batches of waves of one frequency and height: to adapt to, and to test on."""
    frequency, height = 0.3 + torch.rand(2)
    phases, t = torch.rand(2, 1, ROWS, 1) * 2 * math.pi, torch.arange(STEPS + 1)[:, None, None]
    return height * torch.sin(frequency * t + phases)


def loss_of(model, weights, waves):
    return (functional_call(model, weights, (waves[:-1],)) - waves[1:]).square().mean()


def adapted_loss(model, waves):
    """The loss on new waves after two steps of gradient descent, a function of the weights before them."""
    weights = dict(model.named_parameters())
    for _ in range(2):
        gradients = torch.autograd.grad(loss_of(model, weights, waves[0]), list(weights.values()), create_graph=True)
        weights = {name: w - 0.1 * dw for (name, w), dw in zip(weights.items(), gradients, strict=True)}
    return loss_of(model, weights, waves[1])


def train(model):
    """Return the losses of the updates."""
    torch.manual_seed(1)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.2), []
    for _ in range(UPDATES):
        losses.append(torch.stack([adapted_loss(model, task()) for _ in range(TASKS)]).mean())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    return [one.item() for one in losses]


torch.manual_seed(0)
plain = Forecaster()
fast = copy.deepcopy(plain)
print("on rnnkit:", *rnnkit.torch.accelerate(fast).changed)
expected, found = train(plain), train(fast)
print(f"loss after adaptation: {expected[0]:.4f} before training, {found[-1]:.4f} after it")
print(f"largest difference of a loss: {max(abs(a - b) for a, b in zip(expected, found, strict=True)):.1e}")
