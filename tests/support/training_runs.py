"""`rnnkit train` in the process of a test, on a text of random words."""

import csv
import signal
import sys

import numpy as np
import pytest
from messages import one_line_says

from rnnkit.commands import command_line
from rnnkit.language_model import model as textmodel
from rnnkit.language_model.training import Run

SMALL = ["--mode", "gru", "--hidden", "8", "--embedding", "4", "--batch", "4", "--seq-len", "16", "--lr", "0.03"]
WORDS = ("forward", "backward", "gate", "cell", "state", "layer", "batch", "weight", "bias", "tanh")


def text_in(folder):
    path = folder / "text.txt"
    path.write_text(" ".join(np.random.default_rng(0).choice(WORDS, 4000)))
    return path


def trainer(text, capsys):
    """What runs the command on a text, and returns its exit status and what it printed."""

    def train(*options, files=(text,)):
        small = [] if {"--resume", "--init-from"} & {*options} else SMALL
        status = command_line.main([str(argument) for argument in ("train", *files, *small, *options)])
        return status, *capsys.readouterr()

    return train


def cut_off(train, step, *options, **files):
    """Begin a run that a signal ends after so many steps."""
    advance = Run.advance
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "advance", lambda run, stop: advance(run, run.step == step - 1))
        assert train("--quiet", *options, **files)[0] == 128 + signal.SIGTERM


def assert_refused(result, where, *facts):
    """Raise unless a command ended with status 2 and one line on stderr that begins so and has the facts."""
    status, out, err = result
    assert (status, out) == (2, "") and one_line_says(err, f"rnnkit: {where}", *facts)


def flat(path):
    return textmodel.load(path).parameters.flat.tobytes()


def command(*arguments):
    return [sys.executable, "-m", "rnnkit", *map(str, arguments)]


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))
