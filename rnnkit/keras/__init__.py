"""Keras's recurrent layers on this engine, with the backends torch, jax and numpy; needs Keras 3.

`accelerate` switches the layers of a model, `LSTM`, `GRU` and `SimpleRNN` take the place of Keras's in new ones.
"""

from rnnkit.keras.acceleration import accelerate, restore
from rnnkit.keras.bidirectional import Bidirectional
from rnnkit.keras.layers import GRU, LSTM, RNN, SimpleRNN

__all__ = ["GRU", "LSTM", "RNN", "Bidirectional", "SimpleRNN", "accelerate", "restore"]
