"""The pictures of the documentation are what their script draws from the package."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
NAMES = {f"{name}.svg" for name in ("flat-buffer", "data-flow", "threads", "packed-rows")}


def version_in(path):
    return re.search(r"Matplotlib ([\w.]+)", path.read_text(encoding="utf-8"))[1]


def test_the_pictures_are_what_is_drawn(tmp_path):
    if os.environ.get("CI") != "true":
        pytest.importorskip("matplotlib")
    command = [sys.executable, "-W", "error", "-m", "scripts.pictures", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == NAMES == {path.name for path in PICTURES.glob("*.svg")}
    for name in sorted(NAMES):
        drawn, kept = tmp_path / name, PICTURES / name
        assert texts_of(drawn) == texts_of(kept), name
        if version_in(drawn) == version_in(kept):  # others write the same picture in other ways
            assert drawn.read_bytes() == kept.read_bytes(), name


def texts_of(path):
    """All that a picture says, in its order; a file that is no XML raises."""
    root = ElementTree.parse(path).getroot()
    assert (root.tag, root.get("width")) == ("{http://www.w3.org/2000/svg}svg", root.get("viewBox").split()[2])
    return [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
