"""neuralforecast: recurrent models of many series."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from perf.programs.data import waves
from perf.programs.lightning import TRAINER
from perf.programs.program import Program

_NEEDS = ("neuralforecast",)
_HORIZON = 12


def _series() -> Any:
    import pandas as pd

    y = waves(16, 200)
    ids, steps = np.indices(y.shape)
    return pd.DataFrame({"unique_id": ids.ravel(), "ds": steps.ravel(), "y": y.ravel()})


def _fit(kind: str, **sizes: Any) -> Any:
    from neuralforecast import NeuralForecast, models

    model = getattr(models, kind)(h=_HORIZON, input_size=24, random_seed=0, **sizes, **TRAINER)
    forecast = NeuralForecast([model], freq=1)
    forecast.fit(_series())
    return forecast


def _predict(forecast: Any) -> Any:
    return forecast.predict().drop(columns=["unique_id", "ds"]).to_numpy()


PROGRAMS = (
    Program("neuralforecast/lstm", _NEEDS, partial(_fit, "LSTM", max_steps=40, encoder_hidden_size=64), _predict),
    Program("neuralforecast/gru", _NEEDS, partial(_fit, "GRU", max_steps=40, encoder_hidden_size=64), _predict),
    Program(
        "neuralforecast/deepar", _NEEDS, partial(_fit, "DeepAR", max_steps=15, lstm_hidden_size=64, lstm_dropout=0.0),
        _predict,
    ),
)  # fmt: skip
