"""mypy and pyright find the mistakes in programs, and nothing wrong in right ones."""

import dataclasses
import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest

import rnnkit
from rnnkit import cells, types
from rnnkit.kernels.cells.modes import MODES

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests" / "typed_programs.py"


def mypy(folder):
    """The lines with errors."""
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", folder, PROGRAMS]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return {int(line) for line in re.findall(r"typed_programs\.py:(\d+): error:", done.stdout)}, done.stdout


def pyright(folder):
    (folder / PROGRAMS.name).write_bytes(PROGRAMS.read_bytes())  # it looks at nothing outside of its folder
    (folder / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = json.loads(done.stdout[done.stdout.index("{") :])["generalDiagnostics"]
    return {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}, done.stdout


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_type_checker_finds_what_is_wrong_and_nothing_else(checker, tmp_path):
    if find_spec(checker.__name__) is None and os.environ.get("CI") != "true":
        pytest.skip(f"needs {checker.__name__}")
    wrong = {number for number, line in enumerate(PROGRAMS.read_text().splitlines(), 1) if "# wrong" in line}
    found, output = checker(tmp_path)
    assert found == wrong, output
    assert len(wrong) > 15


def test_the_types_say_what_the_tables_say():
    assert get_args(types.Mode) == tuple(MODES)
    common = set(types.RNNOptions.__annotations__)
    of_classes = {"RNN": types.RNNOptions, "GRU": types.GRUOptions, "LSTM": types.LSTMOptions}
    for mode in MODES.values():
        assert set(of_classes[mode.network[0]].__annotations__) - common == set(mode.options)
    fields = {field.name for field in dataclasses.fields(rnnkit.RNNDescriptor)}
    assert set(types.Options.__annotations__) - {"batch_first"} < fields


def called_with(thing):
    """The text of a signature without its types."""
    found = inspect.signature(thing)
    bare = [one.replace(annotation=one.empty) for one in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=found.empty))


def test_the_stub_of_the_cells_has_their_names_and_parameters():
    stub = runpy.run_path(str(ROOT / "rnnkit" / "cells.pyi"), run_name="stub")
    public = {name: thing for name, thing in stub.items() if getattr(thing, "__module__", "") == "stub"}
    assert {name for name in public if not name.startswith("_")} == set(cells.__all__)
    for name in cells.__all__:
        own, typed = getattr(cells, name), stub[name]
        assert hasattr(own, "value") == hasattr(typed, "value") or own is cells.Activation
        if inspect.isfunction(own) or issubclass(own, tuple):
            assert called_with(own) == called_with(typed), name
