"""The API reference has every public name of every part of the package."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from public_names import PUBLIC

ROOT = Path(__file__).resolve().parents[1]


def names_on(page):
    return set(re.findall(r'<section id="(\w+)"', page.read_text()))


def test_every_public_name_is_on_its_page(tmp_path):
    if os.environ.get("CI") != "true":
        pytest.importorskip("pdoc")
    command = [sys.executable, "-W", "error", ROOT / "scripts" / "api_reference.py", tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    *left_out, saved = run.stdout.splitlines()
    assert (run.returncode, run.stderr, saved) == (0, "", f"saved     {tmp_path / 'index.html'}")
    assert names_on(tmp_path / "rnnkit.html") == set(PUBLIC)
    pages = {page.stem for page in (tmp_path / "rnnkit").iterdir()}
    assert {"training", "cells", "compression", "interop", "distributed"} <= pages
    assert len(pages) + len(left_out) == 7
    for name in pages:
        assert names_on(tmp_path / "rnnkit" / f"{name}.html") == set(import_module(f"rnnkit.{name}").__all__), name
    for page, text in {"rnnkit/cells.html": "<p>Gers and Schmidhuber", "rnnkit.html": "\nn = tanh(Wn x + bWn"}.items():
        assert text in (tmp_path / page).read_text(), page


def test_what_docstrings_point_at_has_a_page():
    sources = "\n".join(path.read_text() for path in (ROOT / "rnnkit").rglob("*.py"))
    found = set(re.findall(r":\w+:`rnnkit\.(\w+)", sources))
    pages = {"training", "cells", "compression", "interop", "distributed", "sklearn", "torch"}
    assert {"forward", "training"} <= found <= pages | set(PUBLIC)
