"""neural-amp-modeler: an LSTM that turns the samples of a guitar into those of an amplifier.

The package has no weights, so they are random. Its PyTorch Lightning must be older than that of neuralforecast, so it
needs an environment of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from perf.programs.converted import Converted
from perf.programs.data import waves

_SAMPLES = 48_000  # a second


def _calls(hidden_size: int) -> Any:
    import torch
    from nam.models.recurrent import LSTM

    from rnnkit.interop import from_torch

    model = LSTM(hidden_size).eval()
    plan = from_torch(model, "_core").prepare()
    head, bias = (one.detach().numpy() for one in model._head.parameters())
    hx, cx = (one.detach().numpy()[:, np.newaxis] for one in (model._initial_hidden, model._initial_cell))
    x = waves(1, _SAMPLES)

    def package() -> np.ndarray:
        with torch.no_grad():
            return model(torch.from_numpy(x[0])).numpy()

    def own() -> np.ndarray:
        return plan.infer(x[0, :, np.newaxis, np.newaxis], hx, cx).y[:, 0] @ head[0] + bias

    return package, own


PROGRAMS = (Converted("neural-amp-modeler/lstm", ("nam",), partial(_calls, 16)),)
