"""Meta-learning (MAML): a GRU whose weights learn a new wave in two steps.

With and without rnnkit. C. Finn, P. Abbeel, S. Levine, "Model-agnostic
meta-learning for fast adaptation of deep networks", ICML 2017.
"""

import copy
import math
import warnings

import torch
from torch import nn
from torch.func import functional_call

import rnnkit.torch

# second derivatives run on PyTorch
warnings.simplefilter("ignore", rnnkit.torch.FallbackWarning)
STEPS, TASKS, ROWS, UPDATES = 20, 4, 8, 40


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(1, 24), nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


def task():
    """Two batches of waves of one kind: to adapt to, and to test on."""
    frequency, height = 0.3 + torch.rand(2)
    phases = torch.rand(2, 1, ROWS, 1) * 2 * math.pi
    t = torch.arange(STEPS + 1)[:, None, None]
    return height * torch.sin(frequency * t + phases)


def loss_of(model, weights, waves):
    found = functional_call(model, weights, (waves[:-1],))
    return (found - waves[1:]).square().mean()


def adapted_loss(model, waves):
    """The loss on new waves after two steps of gradient descent.

    It is a function of the weights before these steps.
    """
    weights = dict(model.named_parameters())
    for _ in range(2):
        loss, w = loss_of(model, weights, waves[0]), [*weights.values()]
        dw = torch.autograd.grad(loss, w, create_graph=True)
        w = [one - 0.1 * done for one, done in zip(w, dw, strict=True)]
        weights = dict(zip(weights, w, strict=True))
    return loss_of(model, weights, waves[1])


def train(model):
    """Return the losses of the updates."""
    torch.manual_seed(1)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.2), []
    for _ in range(UPDATES):
        of_tasks = [adapted_loss(model, task()) for _ in range(TASKS)]
        losses.append(torch.stack(of_tasks).mean())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    return [one.item() for one in losses]


torch.manual_seed(0)
plain = Forecaster()
fast = copy.deepcopy(plain)
print("on rnnkit:", *rnnkit.torch.accelerate(fast).changed)
expected, found = train(plain), train(fast)
print(
    f"loss after adaptation: {expected[0]:.4f} before training, "
    f"{found[-1]:.4f} after it"
)
largest = max(abs(a - b) for a, b in zip(expected, found, strict=True))
print(f"largest difference of a loss: {largest:.1e}")
