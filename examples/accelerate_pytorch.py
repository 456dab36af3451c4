"""Make a PyTorch model faster: the same training, before and after
`rnnkit.torch.accelerate`. Needs PyTorch.

The model labels every step of sequences of different lengths: is the
running sum of the first feature above 0?
"""

import time

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import rnnkit.torch


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTM(8, 64, num_layers=2)
        self.output = nn.Linear(64, 1)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        packed, _ = self.encoder(packed)
        y, _ = pad_packed_sequence(packed, total_length=len(x))
        return self.output(y)[..., 0]  # (T, N)


def train(model, updates):
    """Return the losses, and how many milliseconds an update took."""
    generator, losses = torch.Generator().manual_seed(1), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for update in range(updates + 5):
        # do not time the first updates: they compile and allocate memory
        if update == 5:
            start = time.perf_counter()
        x = torch.randn(50, 16, 8, generator=generator)  # (T, N, I)
        lengths = torch.randint(10, 51, (16,), generator=generator)
        valid = torch.arange(50)[:, None] < lengths
        target = (x[..., 0].cumsum(0) > 0).float()
        scores = model(x, lengths)
        loss = nn.functional.binary_cross_entropy_with_logits(
            scores[valid], target[valid]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (time.perf_counter() - start) / updates * 1000


torch.manual_seed(0)
model = Tagger()
weights = {name: one.clone() for name, one in model.state_dict().items()}
before, slow = train(model, 60)

model.load_state_dict(weights)  # start again from the same weights
changed, left = rnnkit.torch.accelerate(model)
print("on rnnkit now:", *changed, "| still PyTorch:", *(left or ["none"]))
after, fast = train(model, 60)

print(f"loss of the first update {before[0]:.5f} and {after[0]:.5f}")
print(f"loss of the last update {before[-1]:.5f} and {after[-1]:.5f}")
largest = max(abs(a - b) for a, b in zip(before, after, strict=True))
print(f"largest difference {largest:.1e}")
speedup, threads = slow / fast, torch.get_num_threads()
print(
    f"an update took {slow:.1f} ms and takes {fast:.1f} ms: "
    f"{speedup:.1f}x on {threads} threads"
)
