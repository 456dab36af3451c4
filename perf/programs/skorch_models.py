"""skorch: a recurrent regressor of series, in scikit-learn's way."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from perf.programs.program import Program


@cache
def _data() -> tuple[np.ndarray, np.ndarray]:
    """Series (N, T, I) and what follows each (N, 1)."""
    rng = np.random.default_rng(0)
    steps = np.arange(31) * rng.uniform(0.1, 0.5, (512, 1)) + rng.uniform(0, 6, (512, 1))
    series = np.sin(steps).astype(np.float32)[..., None]
    return series[:, :-1], series[:, -1]


def _fit(mode: str) -> Any:
    import skorch
    from torch import nn

    class Regressor(nn.Module):
        def __init__(self, hidden_size: int = 64) -> None:
            super().__init__()
            self.rnn = getattr(nn, mode)(1, hidden_size, batch_first=True)
            self.readout = nn.Linear(hidden_size, 1)

        def forward(self, x: Any) -> Any:
            return self.readout(self.rnn(x)[0][:, -1])

    net = skorch.NeuralNetRegressor(Regressor, max_epochs=20, lr=0.05, batch_size=32, verbose=0)
    return net.fit(*_data())


def _predict(net: Any) -> Any:
    return net.predict(_data()[0])


PROGRAMS = tuple(
    Program(f"skorch/{mode.lower()}", ("skorch",), partial(_fit, mode), _predict) for mode in ("GRU", "LSTM")
)
