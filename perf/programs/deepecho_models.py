"""deepecho: a probabilistic autoregressive model of tables of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from perf.programs.data import waves
from perf.programs.program import Program


def _table() -> Any:
    import pandas as pd

    y = waves(40, 50)
    ids, steps = np.indices(y.shape)
    table = pd.DataFrame({"id": ids.ravel(), "y": y.ravel(), "up": y.ravel() > 0})
    return table[steps.ravel() < 20 + ids.ravel() % 30]  # sequences of unequal lengths


def _fit() -> Any:
    from deepecho import PARModel

    model = PARModel(epochs=32, cuda=False, verbose=False)
    model.fit(_table(), entity_columns=["id"], data_types={"y": "continuous", "up": "categorical"})
    return model


def _predict(model: Any) -> Any:
    return model.sample(num_entities=3, sequence_length=20)["y"].to_numpy(np.float64)


PROGRAMS = (Program("deepecho/par", ("deepecho",), _fit, _predict),)
