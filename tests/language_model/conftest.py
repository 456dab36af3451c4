"""`rnnkit train` in the process of a test."""

import pytest
from training_runs import cut_off, text_in, trainer


@pytest.fixture
def text(tmp_path):
    return text_in(tmp_path)


@pytest.fixture
def train(text, tmp_path, capsys, monkeypatch):
    """Run the command in the folder of the text; return its exit status and what it printed."""
    monkeypatch.chdir(tmp_path)
    return trainer(text, capsys)


@pytest.fixture
def cut(train):
    """A run of ten steps that a signal has ended after three, with a row each in its log."""
    cut_off(train, 3, "--steps", 10, "--log", "log.csv", "--log-every", 1)
    return "model.npz"
