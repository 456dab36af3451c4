"""gluonts: DeepAR on PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from perf.programs.data import waves
from perf.programs.lightning import TRAINER
from perf.programs.program import Program


def _data() -> Any:
    import pandas as pd
    from gluonts.dataset.common import ListDataset

    return ListDataset([{"start": pd.Period("2020-01-01", "D"), "target": one} for one in waves(10, 200)], freq="D")


def _fit() -> Any:
    from gluonts.torch import DeepAREstimator

    trainer = TRAINER | {"max_epochs": 2, "enable_checkpointing": True}
    estimator = DeepAREstimator(
        freq="D", prediction_length=12, context_length=24, hidden_size=40, dropout_rate=0.0, num_batches_per_epoch=20,
        trainer_kwargs=trainer,
    )  # fmt: skip
    return estimator.train(_data())


def _predict(predictor: Any) -> Any:
    return np.stack([forecast.samples for forecast in predictor.predict(_data())])


PROGRAMS = (Program("gluonts/deepar", ("gluonts", "lightning"), _fit, _predict),)
