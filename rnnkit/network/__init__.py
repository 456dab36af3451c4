"""Public objects and functions: networks, plans and streams; forward, backward and infer."""

from rnnkit.network.networks import GRU, LSTM, RNN, Network

__all__ = ["GRU", "LSTM", "RNN", "Network"]
