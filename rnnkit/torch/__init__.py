"""The engine inside of PyTorch: `nn.RNN`, `nn.LSTM` and `nn.GRU` that run on it, and a model's own made to.

Imports PyTorch, so import it by name: ``import rnnkit.torch``.
"""

from rnnkit.torch.acceleration import Acceleration, accelerate, accelerated, restore
from rnnkit.torch.modules import GRU, LSTM, RNN

__all__ = ["GRU", "LSTM", "RNN", "Acceleration", "accelerate", "accelerated", "restore"]
