"""pypots: recurrent models of series with missing values."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from perf.programs.data import waves
from perf.programs.program import Program

_STEPS, _FEATURES = 24, 6


def _data() -> tuple[np.ndarray, np.ndarray]:
    """Series (N, T, I) with a fifth of the values missing, and a class of each (N,)."""
    x = waves(128 * _FEATURES, _STEPS).reshape(128, _FEATURES, _STEPS).swapaxes(1, 2).copy()
    y = (x.mean((1, 2)) > 0).astype(np.int64)
    x[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    return x, y


def _fit(task: str, kind: str, **options: Any) -> Any:
    import importlib

    made = getattr(importlib.import_module(f"pypots.{task}"), kind)
    model = made(n_steps=_STEPS, n_features=_FEATURES, rnn_hidden_size=64, epochs=6, device="cpu", **options)
    x, y = _data()
    model.fit({"X": x, "y": y})
    return model


def _impute(model: Any) -> Any:
    return model.predict({"X": _data()[0]})["imputation"]


def _classify(model: Any) -> Any:
    return model.predict({"X": _data()[0]})["classification_proba"]


PROGRAMS = (
    Program("pypots/mrnn", ("pypots",), partial(_fit, "imputation", "MRNN"), _impute),
    Program("pypots/brits", ("pypots",), partial(_fit, "imputation", "BRITS"), _impute),
    Program("pypots/grud", ("pypots",), partial(_fit, "classification", "GRUD", n_classes=2), _classify),
)
