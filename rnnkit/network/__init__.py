"""What users hold and call: networks, plans and streams, and the functions forward, backward and infer below them."""

from rnnkit.network.networks import GRU, LSTM, RNN, Network

__all__ = ["GRU", "LSTM", "RNN", "Network"]
