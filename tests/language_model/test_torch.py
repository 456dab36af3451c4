"""The language model trains as the same network in PyTorch does."""

import numpy as np
import pytest
from optional import needs

from perf import language_model
from rnnkit import RNNDescriptor
from rnnkit.language_model.settings import Settings

TEXT = b"".join(b"%d bottles of beer on the wall, %d bottles of beer.\n" % (i, i) for i in range(200))


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_losses_of_thirty_steps_equal_those_of_pytorch(mode, monkeypatch):
    """In float64, through the beginning of a second pass over the text. PyTorch adds 1e-6 to the norm that it clips by:
    hence the bound."""
    needs("torch")
    settings = Settings(
        mode=mode, hidden=24, embedding=8, layers=2, steps=30, batch=5, seq_len=90, lr=0.02, weight_decay=0.1, clip=0.2
    )
    monkeypatch.setattr(Settings, "desc", property(lambda self: desc))
    desc = RNNDescriptor(mode, 8, 24, 2, dtype="float64")
    run = language_model.started(settings, TEXT)
    advance = language_model.torch_advance(run, TEXT)
    expected = [advance() for _ in range(30)]
    steps = [run.advance() for _ in range(30)]
    assert np.allclose([step.bits for step in steps], expected, rtol=1e-5, atol=0)
    assert steps[0].bits > 4.5 > 4 > steps[-1].bits
    assert max(step.norm for step in steps) > 0.2 > 0  # clipping acts
