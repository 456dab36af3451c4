"""`rnnkit.plot.training`: the files that it takes, and what it refuses. `language_model/test_score_and_plot.py` has the
curves themselves, and malformed logs."""

import numpy as np
import pytest
from messages import raises
from optional import needs

import rnnkit.plot
from rnnkit.common.training_log import COLUMNS

needs("matplotlib")


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text(",".join(COLUMNS) + "\n2,64,0.5,0.01,1.5,7,\n4,128,1.5,0.01,1.5,6,6.5\n5,1")  # and goes on
    return path


@pytest.mark.parametrize("form", [lambda path: path, str, lambda path: [path], lambda path: iter([str(path)])])
def test_logs_are_a_path_or_several(log, form):
    (axes,) = rnnkit.plot.training(form(log), "steps").axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert lines == {"run, training": [[2, 7], [4, 6]], "run, validation": [[4, 6.5]]}


@pytest.mark.parametrize(
    ("given", "label", "points"),
    [((), "training text read (MB)", [64e-6, 128e-6]), (("minutes",), "time (min)", [0.5 / 60, 1.5 / 60])],
)
def test_horizontal_axis_is_bytes_unless_said(log, given, label, points):
    (axes,) = rnnkit.plot.training(log, *given).axes
    assert axes.get_xlabel() == label and axes.get_ylim()[0] == 0
    np.testing.assert_allclose(axes.get_lines()[0].get_xdata(), points)


@pytest.mark.parametrize(
    ("logs", "x", "error", "text"),
    [
        ([], "steps", ValueError, "training: logs | at least one | none"),
        ([3], "steps", TypeError, "training: logs | path | int"),
        ("run.csv", "epochs", ValueError, "training: x | bytes or steps or minutes | 'epochs'"),
        ("none.csv", "steps", FileNotFoundError, ""),
    ],
)
def test_wrong_arguments_are_refused(logs, x, error, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with raises(error, text):
        rnnkit.plot.training(logs, x)
