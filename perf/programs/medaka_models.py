"""medaka: a bidirectional GRU that polishes assemblies of nanopore reads, with one of the models in the package."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from perf.programs.converted import Converted

_CHUNKS, _COLUMNS = 10, 1000  # of counts; medaka's default for consensus is 100 chunks of 10,000


def _counts() -> np.ndarray:
    """Shares of each base and of gaps by strand, (N, T, 10): 40 reads of a column, a tenth of them wrong."""
    rng = np.random.default_rng(0)
    bases = rng.integers(4, size=(_CHUNKS, _COLUMNS))
    likely = np.full((_CHUNKS, _COLUMNS, 5), 0.025)
    np.put_along_axis(likely, bases[..., np.newaxis], 0.9, -1)
    forward, reverse = (rng.multinomial(20, likely) / 40 for _ in range(2))
    parts = forward[..., :4], reverse[..., :4], forward[..., 4:], reverse[..., 4:]
    return np.concatenate(parts, -1).astype(np.float32)


def _calls() -> Any:
    import torch
    from medaka.models import open_model
    from medaka.torch_ext import Batch

    from rnnkit.torch import accelerate

    package, own = (open_model("r1041_e82_400bps_sup_v5.2.0").load_model() for _ in range(2))
    accelerate(own)
    batch = Batch(counts_matrix=torch.from_numpy(_counts()))
    return partial(_predict, package, batch), partial(_predict, own, batch)


def _predict(model: Any, batch: Any) -> np.ndarray:
    return model.predict_on_batch(batch).numpy()


PROGRAMS = (Converted("medaka/gru", ("medaka", "tensordict"), _calls),)
