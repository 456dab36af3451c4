"""pytorch-forecasting: recurrent models of many series, trained by Lightning."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from perf.programs.data import waves
from perf.programs.lightning import TRAINER
from perf.programs.program import Program


@cache
def _data() -> Any:
    import pandas as pd
    from pytorch_forecasting import TimeSeriesDataSet

    y = waves(16, 80)
    ids, steps = np.indices(y.shape)
    table = pd.DataFrame({"id": ids.ravel().astype(str), "step": steps.ravel(), "y": y.ravel()})
    return TimeSeriesDataSet(
        table, time_idx="step", target="y", group_ids=["id"], max_encoder_length=24, max_prediction_length=12,
        time_varying_known_reals=["step"], time_varying_unknown_reals=["y"],
    )  # fmt: skip


def _loader(train: bool) -> Any:
    return _data().to_dataloader(train=train, batch_size=64, num_workers=0)


def _fit(kind: str, mode: str) -> Any:
    import pytorch_forecasting
    from lightning.pytorch import Trainer

    model = getattr(pytorch_forecasting, kind).from_dataset(
        _data(), cell_type=mode, hidden_size=32, rnn_layers=2, dropout=0.0, learning_rate=1e-3, log_interval=-1
    )
    Trainer(max_epochs=4, **TRAINER).fit(model, _loader(train=True))
    return model


def _predict(model: Any) -> Any:
    return model.predict(_loader(train=False), trainer_kwargs=dict(TRAINER)).numpy()  # it adds callbacks


_NEEDS = "pytorch_forecasting", "lightning"
PROGRAMS = (
    Program("pytorch-forecasting/gru", _NEEDS, partial(_fit, "RecurrentNetwork", "GRU"), _predict),
    Program("pytorch-forecasting/deepar-lstm", _NEEDS, partial(_fit, "DeepAR", "LSTM"), _predict),
)
