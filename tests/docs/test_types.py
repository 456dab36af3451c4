"""mypy and pyright find the mistakes in programs, and nothing wrong in right ones."""

import dataclasses
import inspect
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from installed import needs_installed
from optional import needs
from repository import ROOT, SUPPORT

import rnnkit
from rnnkit import cells, types
from rnnkit.network.classes import class_of
from rnnkit_kernels.cells.modes import MODES

PROGRAMS = SUPPORT / "typed_programs.py"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment into which `pip install -e` has put the package, and NumPy."""
    needs("hatchling")
    folder = tmp_path_factory.mktemp("editable")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("rnnkit", "kernels"):
        (folder / name).symlink_to(ROOT / name)
    build = "from hatchling.build import build_editable; build_editable('.')"
    subprocess.run([sys.executable, "-c", build], cwd=folder, capture_output=True, check=True)
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv" / "lib").glob("*/site-packages")
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "numpy.pth").write_text(str(Path(np.__file__).parents[1]))
    return folder / "venv" / "bin" / "python"


def mypy(folder, python):
    command = [sys.executable, "-m", "mypy", "--strict", f"--python-executable={python}", "--cache-dir", folder]
    done = subprocess.run([*command, PROGRAMS], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return {int(line) for line in re.findall(r"typed_programs\.py:(\d+): error:", done.stdout)}, done.stdout


def pyright(folder, python):
    (folder / PROGRAMS.name).write_bytes(PROGRAMS.read_bytes())  # it looks at nothing outside of its folder
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard"}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", python, "-p", folder]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = json.loads(done.stdout[done.stdout.index("{") :])["generalDiagnostics"]
    return {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}, done.stdout


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_type_checkers_find_exactly_the_wrong_lines(checker, tmp_path, python):
    needs_installed(checker.__name__)
    wrong = {number for number, line in enumerate(PROGRAMS.read_text().splitlines(), 1) if "# wrong" in line}
    found, output = checker(tmp_path, python)
    assert found == wrong, output
    assert len(wrong) > 15


def test_types_match_the_tables_of_modes():
    assert get_args(types.Mode) == tuple(MODES)
    common = set(types.RNNOptions.__annotations__)
    of_classes = {"RNN": types.RNNOptions, "GRU": types.GRUOptions, "LSTM": types.LSTMOptions}
    for name, mode in MODES.items():
        assert set(of_classes[class_of(name)].__annotations__) - common == set(mode.options)
    fields = {field.name for field in dataclasses.fields(rnnkit.RNNDescriptor)}
    assert set(types.Options.__annotations__) - {"batch_first"} < fields


def called_with(thing):
    found = inspect.signature(thing)
    bare = [one.replace(annotation=one.empty) for one in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=found.empty))


def test_stub_of_the_cells_has_their_names_and_parameters():
    stub = runpy.run_path(str(ROOT / "rnnkit" / "cells.pyi"), run_name="stub")
    public = {name: thing for name, thing in stub.items() if getattr(thing, "__module__", "") == "stub"}
    assert {name for name in public if not name.startswith("_")} == set(cells.__all__)
    for name in cells.__all__:
        own, typed = getattr(cells, name), stub[name]
        assert hasattr(own, "value") == hasattr(typed, "value") or own is cells.Activation
        if inspect.isfunction(own) or issubclass(own, tuple):
            assert called_with(own) == called_with(typed), name
