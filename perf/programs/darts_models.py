"""darts: recurrent models of a univariate series."""

from __future__ import annotations

from functools import partial
from typing import Any

from perf.programs.data import waves
from perf.programs.lightning import TRAINER
from perf.programs.program import Program

_NEEDS = "darts", "pytorch_lightning"


def _series() -> Any:
    from darts import TimeSeries

    return [TimeSeries.from_values(one) for one in waves(4, 240)]


def _fit(kind: str, mode: str, **sizes: int) -> Any:
    from darts import models

    options = dict(hidden_dim=32, batch_size=32, random_state=0, pl_trainer_kwargs=TRAINER)
    model = getattr(models, kind)(model=mode, input_chunk_length=24, n_epochs=10, **options, **sizes)
    return model.fit(_series())


def _predict(model: Any) -> Any:
    return [one.values() for one in model.predict(36, series=_series())]


PROGRAMS = (
    Program("darts/rnn-gru", _NEEDS, partial(_fit, "RNNModel", "GRU", training_length=36), _predict),
    Program("darts/block-rnn-lstm", _NEEDS, partial(_fit, "BlockRNNModel", "LSTM", output_chunk_length=12), _predict),
)
