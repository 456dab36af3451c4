"""RiboDetector: a bidirectional LSTM that finds ribosomal RNA among short reads, with its PyTorch weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from perf.programs.converted import Converted

_READS, _LONGEST = 256, 100


def _reads() -> Any:
    """Packed reads of unequal lengths, encoded by the package."""
    import torch
    from ribodetector.data_loader.seq_encoder import encode_read
    from torch.nn.utils.rnn import pack_sequence

    rng = np.random.default_rng(0)
    reads = ["".join(rng.choice([*"ACGTN"], length)) for length in rng.integers(50, _LONGEST + 1, _READS)]
    return pack_sequence([torch.tensor(encode_read(read), dtype=torch.float32) for read in reads], enforce_sorted=False)


def _calls() -> Any:
    import ribodetector
    import torch
    from ribodetector.model.model import SeqModel

    from rnnkit.torch import accelerate

    model = SeqModel(input_size=4, hidden_size=128, num_layers=1, num_classes=2)
    saved = Path(ribodetector.__file__).parent / "data" / "model_len70_101.pth"
    model.load_state_dict(torch.load(saved, map_location="cpu", weights_only=False)["state_dict"])
    own = SeqModel(input_size=4, hidden_size=128, num_layers=1, num_classes=2)
    own.load_state_dict(model.state_dict())
    accelerate(own)
    return tuple(partial(_classify, one.eval(), _reads()) for one in (model, own))


def _classify(model: Any, reads: Any) -> np.ndarray:
    import torch

    with torch.no_grad():
        return model(reads).numpy()


PROGRAMS = (Converted("ribodetector/lstm", ("ribodetector",), _calls),)
