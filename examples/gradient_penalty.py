"""A Wasserstein GAN of sine waves with a gradient penalty, which needs
second derivatives; with and without rnnkit."""

import copy
import math
import warnings

import torch
from torch import nn

import rnnkit.torch

# second derivatives run on PyTorch
warnings.simplefilter("ignore", rnnkit.torch.FallbackWarning)
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
        self.rnn = nn.LSTM(1, 24, bidirectional=True)
        self.out = nn.Linear(48, 1)

    def forward(self, waves):
        return self.out(self.rnn(waves)[0].mean(0))


def waves():
    phase = torch.rand(1, ROWS, 1) * 2 * math.pi
    t = torch.arange(STEPS)[:, None, None]
    return torch.sin(t * math.pi / 6 + phase)


def train(generator, critic):
    """Train both by turns; return the last gradient penalty."""
    torch.manual_seed(1)
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.02)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.02)
    for _ in range(UPDATES):
        real, fake = waves(), generator(torch.randn(STEPS, ROWS, NOISE))
        mix = torch.lerp(real, fake, torch.rand(1, ROWS, 1))
        mix = mix.detach().requires_grad_()
        (slope,) = torch.autograd.grad(
            critic(mix).sum(), mix, create_graph=True
        )
        penalty = (slope.square().sum((0, 2)).sqrt() - 1).square().mean()
        loss = critic(fake.detach()).mean() - critic(real).mean()
        loss = loss + 10 * penalty
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
expected, found = train(*plain), train(*fast)
print(
    f"penalty after {UPDATES} updates: "
    f"{expected:.5f} by PyTorch, {found:.5f} by rnnkit"
)
pairs = zip(plain.parameters(), fast.parameters(), strict=True)
largest = max((a - b).abs().max().item() for a, b in pairs)
print(f"largest difference of a parameter: {largest:.1e}")
