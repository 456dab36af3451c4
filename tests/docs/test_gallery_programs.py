"""The programs of the gallery with pictures: all are listed, and each runs, prints what is true, and draws."""

import os
import re
import subprocess
import sys

import pytest
from installed import needs_installed
from repository import ROOT

from docs.tools.gallery import LINK, described, missing_of, needs_of, programs

PROGRAMS = {path.stem: path for path in programs()}
NUMBER = r"\d+(?:\.\d+)?(?:e[+-]\d+)?"
RUN = """
import runpy, sys
import matplotlib.pyplot as plt
drawn = []
plt.show = lambda: drawn.extend(plt.get_fignums())
runpy.run_path(sys.argv[1], run_name="__main__")
assert drawn, "draws nothing"
"""


def test_gallery_lists_every_program():
    page = ROOT / "docs" / "examples.md"
    links = [(title, (page.parent / link).resolve()) for title, link in LINK.findall(page.read_text())]
    assert sorted(path for _, path in links if path.suffix == ".py") == sorted(PROGRAMS.values())
    assert [(title, described(path)[0]) for title, path in links if title != described(path)[0]] == []
    assert len(PROGRAMS) >= 12


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_short_and_described(name):
    lines = PROGRAMS[name].read_text().splitlines()
    assert len(lines) <= 110
    title, text = described(PROGRAMS[name])
    assert lines[2] == "=" * len(title) and 80 < len(text) < 200


def test_programs_need_what_they_import(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import os\nimport torch.nn\nimport rnnkit.keras\nfrom rnnkit.sklearn import RNNRegressor\n")
    assert needs_of(program) == ["keras", "sklearn", "torch"]
    program.write_text("import numpy as np\n")
    assert missing_of(program) == needs_of(program) == []


def numbers_of(printed, pattern):
    """The numbers of the lines in which a pattern is, without the pattern."""
    lines = [re.sub(pattern, "", line) for line in printed.splitlines() if re.search(pattern, line)]
    assert lines, pattern
    return [float(number) for line in lines for number in re.findall(NUMBER, line)]


def assert_gate_over_time(printed):
    assert numbers_of(printed, r"update \d+: mean squared error")[-1] < 0.005


def assert_counter(printed):
    assert numbers_of(printed, r"of each: right at")[:4] == [5, 100, 12, 100]


def assert_forecast_spread(printed):
    assert numbers_of(printed, r"of the future lies within the 90 % band")[0] >= 75


def assert_amplifier_waveform(printed):
    assert "amp_test.c" in printed
    assert numbers_of(printed, "error on another sound:")[0] < 0.2


def assert_generated_text(printed):
    first, *_, last = numbers_of(printed, r"update \d+:|bits a letter")
    assert last < 2.4 < first


def assert_pytorch_model(printed):
    assert "encoder | on PyTorch still: -" in printed
    assert numbers_of(printed, "largest difference of a loss:")[0] < 1e-3


def assert_jax_memory(printed):
    reach = numbers_of(printed, r"bias [01]: above a hundredth back to")
    assert reach[0] < reach[1]
    assert "bias 4: above a hundredth back to the first step" in printed


def assert_keras_model(printed):
    assert "forward_lstm" in printed
    assert numbers_of(printed, "accuracy on new waves:")[0] > 0.8


def assert_scikit_learn_classifier(printed):
    assert numbers_of(printed, "accuracy:")[0] > 0.75


def assert_own_cell_speeds(printed):
    assert numbers_of(printed, r"update \d+: mean squared error")[-1] < 0.005


def assert_onnx_file(printed):
    assert "read back, bit-identical: True" in printed
    assert numbers_of(printed, "largest difference to ONNX Runtime:")[0] < 1e-5


def assert_compiled_loop(printed):
    assert numbers_of(printed, "mean squared error of one step:")[0] < 0.005


def assert_streams(printed):
    assert re.match(r"\d\d,\d\d\d values, ", printed)


def assert_reduced_precision(printed):
    assert numbers_of(printed, r"(int8|bfloat16) *: .* error up to") == sorted(
        numbers_of(printed, r"(int8|bfloat16) *: .* error up to"), reverse=True
    )


def assert_checkpointing(printed):
    assert printed.count("bit-identical: True") == 4
    angles = numbers_of(printed, r"truncated to +\d+ steps:|degrees off")
    assert angles == sorted(angles, reverse=True) and angles[-1] < 10


def assert_compressor(printed):
    assert "decompressed the same: True" in printed


@pytest.mark.weekly
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_and_draw(name, tmp_path):
    needs_installed("matplotlib", *needs_of(PROGRAMS[name]))
    environment = os.environ | {"MPLBACKEND": "agg", "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "torch"}
    environment |= {"KERAS_HOME": str(tmp_path), "MPLCONFIGDIR": str(tmp_path)}
    command = [sys.executable, "-c", RUN, PROGRAMS[name]]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    globals()[f"assert_{name}"](done.stdout)
