"""A Wasserstein GAN of sine waves with a gradient penalty, which needs second derivatives; with and without rnnkit."""

import copy
import math
import warnings

import torch
from torch import nn

import rnnkit.torch

warnings.simplefilter("ignore", rnnkit.torch.FallbackWarning)  # second derivatives run on PyTorch
STEPS, ROWS, UPDATES, NOISE = 24, 32, 30, 4


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(NOISE, 24), nn.Linear(24, 1)

    def forward(self, noise):
        return self.out(self.rnn(noise)[0])


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(1, 24, bidirectional=True), nn.Linear(48, 1)

    def forward(self, waves):
        return self.out(self.rnn(waves)[0].mean(0))


def waves():
    phase, t = torch.rand(1, ROWS, 1) * 2 * math.pi, torch.arange(STEPS)[:, None, None]
    return torch.sin(t * math.pi / 6 + phase)


def train(generator, critic):
    """Train both by turns; return the last gradient penalty."""
    torch.manual_seed(1)
    of_generator, of_critic = (torch.optim.SGD(one.parameters(), lr=0.02) for one in (generator, critic))
    for _ in range(UPDATES):
        real, fake = waves(), generator(torch.randn(STEPS, ROWS, NOISE))
        mix = torch.lerp(real, fake, torch.rand(1, ROWS, 1)).detach().requires_grad_()
        (slope,) = torch.autograd.grad(critic(mix).sum(), mix, create_graph=True)
        penalty = (slope.square().sum((0, 2)).sqrt() - 1).square().mean()
        loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(fake).mean()).backward()
        of_generator.step()
    return penalty.item()


torch.manual_seed(0)
plain = nn.ModuleList([Generator(), Critic()])
fast = copy.deepcopy(plain)
print("on rnnkit:", *rnnkit.torch.accelerate(fast).changed)
print(f"penalty after {UPDATES} updates: {train(*plain):.5f} by PyTorch, {train(*fast):.5f} by rnnkit")
pairs = zip(plain.parameters(), fast.parameters(), strict=True)
print(f"largest difference of a parameter: {max((a - b).abs().max().item() for a, b in pairs):.1e}")
