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
    assert FACTS.keys() | TEXTS.keys() == PROGRAMS.keys()


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


# Program -> lines with such a text, and what holds for the other numbers in them.
FACTS = {
    "amplifier_waveform": {"error on another sound:": lambda error, *_: error < 0.2},
    "checkpointing": {
        r"truncated to +\d+ steps:|degrees off": lambda *a: list(a) == sorted(a, reverse=True) and a[-1] < 10
    },
    "compiled_loop": {"mean squared error of one step:": lambda error, *_: error < 0.005},
    "counter": {"of each: right at": lambda *found: found[:4] == (5, 100, 12, 100)},
    "forecast_spread": {"of the future lies within the 90 % band": lambda share, *_: share >= 75},
    "gate_over_time": {r"update \d+: mean squared error": lambda *errors: errors[-1] < 0.005},
    "generated_text": {r"update \d+:|bits a letter": lambda *bits: bits[-1] < 2.4 < bits[0]},
    "jax_memory": {"bias [01]: above a hundredth back to": lambda first, second, *_: first < second},
    "keras_model": {"accuracy on new waves:": lambda accuracy, *_: accuracy > 0.8},
    "onnx_file": {"largest difference to ONNX Runtime:": lambda deviation, *_: deviation < 1e-5},
    "own_cell_speeds": {r"update \d+: mean squared error": lambda *errors: errors[-1] < 0.005},
    "pytorch_model": {"largest difference of a loss:": lambda deviation, *_: deviation < 1e-3},
    "reduced_precision": {
        "(int8|bfloat16) *: .* error up to": lambda *errors: list(errors) == sorted(errors, reverse=True)
    },
    "scikit_learn_classifier": {"accuracy:": lambda accuracy, *_: accuracy > 0.75},
}
TEXTS = {
    "amplifier_waveform": r"amp_test\.c",
    "checkpointing": "(?s)(bit-identical: True.*){4}",
    "compressor": "decompressed the same: True",
    "jax_memory": "bias 4: above a hundredth back to the first step",
    "keras_model": "forward_lstm",
    "onnx_file": "read back, bit-identical: True",
    "pytorch_model": r"encoder \| on PyTorch still: -",
    "streams": r"\A\d\d,\d\d\d values, ",
}


def assert_facts(printed, facts):
    for text, holds in facts.items():
        lines = [re.sub(text, "", line) for line in printed.splitlines() if re.search(text, line)]
        assert lines and holds(*(float(number) for line in lines for number in re.findall(NUMBER, line))), text


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
    assert_facts(done.stdout, FACTS.get(name, {}))
    assert re.search(TEXTS.get(name, ""), done.stdout)
