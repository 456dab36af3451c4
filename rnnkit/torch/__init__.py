"""PyTorch's recurrent modules and cells on the engine, for new models and for those that there are, and modules of
any cell of this package or of a user's own.

Imports PyTorch, so import it by name: ``import rnnkit.torch``.
"""

from rnnkit.torch.acceleration import Acceleration, accelerate, accelerated, restore
from rnnkit.torch.modules import GRU, LSTM, RNN, GRUCell, LSTMCell
from rnnkit.torch.recurrent import Recurrent

__all__ = [
    "GRU", "LSTM", "RNN", "Acceleration", "GRUCell", "LSTMCell", "Recurrent", "accelerate", "accelerated", "restore"
]  # fmt: skip
