"""`rnnkit train --plot`: the curves of the log, with each save and at the end."""

import logging
import sys
from pathlib import Path

import pytest
from optional import needs
from training_runs import assert_refused, cut_off, rows_of

from rnnkit.language_model import train_command

needs("matplotlib")
LOGGED = "--quiet", "--log", "run.csv", "--log-every", 2


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are written, in order, and the paths."""
    found, write = [], train_command.write_picture

    def noted(command, path, figure):
        found.append((str(path), figure))
        write(command, path, figure)

    monkeypatch.setattr(train_command, "write_picture", noted)
    return found


def steps_of(figure):
    (axes,) = figure.axes
    return [len(line.get_xdata()) for line in axes.get_lines() if line.get_label() == "run, training"]


def test_picture_is_drawn_at_each_save_and_at_the_end(train, drawn):
    assert train(*LOGGED, "--steps", 7, "--save-every", 3, "--plot", "run.png")[0] == 0
    paths, figures = zip(*drawn, strict=True)
    assert paths == ("run.png",) * 3  # after steps 3 and 6, and at the end
    assert [steps_of(figure) for figure in figures] == [[rows_until(step)] for step in (3, 6, 7)]
    assert Path("run.png").read_bytes().startswith(b"\x89PNG")


def rows_until(step):
    """The number of rows of the log up to this step."""
    return sum(int(row["step"]) <= step for row in rows_of("run.csv"))


def test_interrupted_run_draws_once_it_has_a_row(train, drawn, caplog):
    cut_off(train, 1, *LOGGED[1:3], "--log-every", 5, "--validate-every", 5, "--steps", 9, "--plot", "run.png")
    assert drawn == caplog.messages == [] and not Path("run.png").exists()
    assert train("--quiet", "--resume", "model.npz", files=())[0] == 0
    assert drawn == []  # the picture is no part of the run
    cut_off(train, 6, *LOGGED[1:], "--steps", 9, "--plot", "run.png")
    (before,) = drawn
    assert train("--quiet", "--resume", "model.npz", "--plot", "other.png", files=())[0] == 0
    assert drawn[1][0] == "other.png" and steps_of(drawn[1][1]) > steps_of(before[1])


def test_picture_that_fails_ends_no_run(train, monkeypatch, caplog):
    def fails(*arguments):
        raise OSError(28, "No space left on device", "run.png")

    monkeypatch.setattr(train_command, "write_picture", fails)
    with caplog.at_level(logging.WARNING, "rnnkit"):
        assert train(*LOGGED, "--steps", 4, "--save-every", 2, "--plot", "run.png")[0] == 0
    assert caplog.messages == ["--plot run.png failed: run.png: No space left on device"] * 2
    assert len(rows_of("run.csv")) == 4 and Path("model.npz").exists()


def test_missing_matplotlib_is_noticed_before_the_first_step(train, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused = train(*LOGGED, "--plot", "run.png")
    assert_refused(refused, "train: matplotlib", "none", "pip install 'rnnkit[plot]'")
