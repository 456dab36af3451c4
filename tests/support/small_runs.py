"""Training runs without a command, of a few steps on a short text."""

import numpy as np

from rnnkit.language_model import checkpoint, corpus
from rnnkit.language_model.checkpoint import Record
from rnnkit.language_model.model import TextModel
from rnnkit.language_model.settings import Settings
from rnnkit.language_model.training import Run, optimizer_of

WORDS = b"the quick brown fox jumps over the lazy dog".split()
TEXT = b" ".join(np.random.default_rng(0).choice(WORDS, 400))  # each row another
SMALL = {"hidden": 6, "embedding": 4, "batch": 4, "seq_len": 16, "lr": 5e-2, "steps": 20}


def new_run(text=TEXT, **changes):
    settings = Settings.of(SMALL | changes)
    model = TextModel.random(settings.desc, settings.seed, corpus.alphabet(text))
    return Run(model, optimizer_of(model, settings), text, settings)


def record_of(run):
    return Record(run.settings, [], "some text", checkpoint.digest(TEXT))
