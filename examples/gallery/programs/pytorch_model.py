"""
A PyTorch model on this engine
==============================

`rnnkit.torch.accelerate` changes the recurrent layers of a model in place.
The losses stay the same, and an update takes less time.
"""

import time

import matplotlib.pyplot as plt
import torch
from torch import nn

import rnnkit.torch


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTM(8, 64, num_layers=2)
        self.output = nn.Linear(64, 1)

    def forward(self, x):
        return self.output(self.encoder(x)[0])[..., 0]  # (T, N)


def train(model, updates=60):
    """The losses, and milliseconds of each update."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    losses, times = [], []
    for _ in range(updates):
        start = time.perf_counter()
        x = torch.randn(50, 16, 8, generator=generator)  # (T, N, I)
        target = (x[..., 0].cumsum(0) > 0).float()
        loss = nn.functional.binary_cross_entropy_with_logits(
            model(x), target
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(1000 * (time.perf_counter() - start))
    return losses, times


torch.manual_seed(0)
model = Tagger()
weights = {name: one.clone() for name, one in model.state_dict().items()}
before, slow = train(model)
model.load_state_dict(weights)
changed, left = rnnkit.torch.accelerate(model)
print("on this engine:", *changed, "| on PyTorch still:", *(left or ["-"]))
after, fast = train(model)
largest = max(abs(a - b) for a, b in zip(before, after, strict=True))
print(f"largest difference of a loss: {largest:.1e}")

# %%
figure, (ax, times) = plt.subplots(1, 2, figsize=(8, 3.5))
ax.plot(before, linewidth=4, color="silver", label="PyTorch")
ax.plot(after, label="rnnkit", color="tab:red")
ax.set(xlabel="update", ylabel="loss")
ax.legend()
times.boxplot([slow[10:], fast[10:]], showfliers=False)
times.set_xticklabels(["PyTorch", "rnnkit"])
times.set(ylabel="ms an update", ylim=(0, None))
plt.tight_layout()
plt.show()
