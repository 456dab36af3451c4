"""PyTorch modules on the engine: drop-in RNN, LSTM and GRU, acceleration of models, and Recurrent for any cell.

It imports PyTorch, so ``import rnnkit`` does not import it: write ``import rnnkit.torch``.
"""

from rnnkit.torch.acceleration import Acceleration, accelerate, accelerated, restore
from rnnkit.torch.fallback import FallbackWarning
from rnnkit.torch.modules import GRU, LSTM, RNN, GRUCell, LSTMCell
from rnnkit.torch.recurrent import Recurrent

__all__ = [
    "GRU", "LSTM", "RNN", "Acceleration", "FallbackWarning", "GRUCell", "LSTMCell", "Recurrent", "accelerate",
    "accelerated", "restore",
]  # fmt: skip
