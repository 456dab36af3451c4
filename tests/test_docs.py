"""The guides: their code runs, from top to bottom."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
DOCS = README.parent / "docs"
NEEDS = {  # a page whose code needs more than NumPy
    "tutorials/pytorch": ["torch"], "tutorials/cell-from-a-paper": ["torch"],
    "tutorials/classifier": ["matplotlib"], "tutorials/streaming": ["matplotlib"],
    "how-to/episodes": ["torch"], "how-to/own-cells": ["torch"], "how-to/regularization": ["torch"],
    "how-to/scikit-learn": ["sklearn"],
    "how-to/other-libraries": ["torch", "keras", "onnx", "onnxruntime", "safetensors"],
}
# Pages whose code other tests run: test_readme.py, test_call_options.py, test_gallery.py.
ELSEWHERE = {"explanation/engine", "explanation/layouts", "how-to/gpu"}
PAGES = {str(path.relative_to(DOCS).with_suffix("")): path for path in sorted(DOCS.rglob("*.md"))}
GUIDES = [name for name, path in PAGES.items() if "\n```python\n" in path.read_text() and name not in ELSEWHERE]


def test_every_guide_that_needs_something_is_there():
    assert {*NEEDS} <= {*GUIDES}


def links_of(page):
    found = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text())
    return [page.parent / link for link in found if "://" not in link]


def test_every_link_leads_somewhere_and_to_every_page():
    seen, left = set(), {README}
    while left:
        seen |= left
        links = [link for page in left for link in links_of(page)]
        assert [link for link in links if not link.exists()] == []
        left = {link.resolve() for link in links if link.suffix == ".md"} - seen
    assert {README, *PAGES.values()} <= seen


def test_no_page_installs_what_has_no_release():
    for page in (README, *PAGES.values()):
        assert not re.search(r"pip install '?rnnkit", page.read_text()), page.name


def test_the_first_page_says_what_has_not_run_on_a_gpu():
    pages = README, PAGES["how-to/gpu"], PAGES["explanation/trust"]
    assert len({"has not run on a GPU yet" in page.read_text() for page in pages}) == 1


def test_pictures_are_small():
    pictures = list((DOCS / "pictures").iterdir())
    assert pictures and all(picture.stat().st_size < 100_000 for picture in pictures)


def blocks_of(name, kind):
    text = PAGES[name].read_text()
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", GUIDES)
def test_the_code_of_a_guide_runs(name, tmp_path):
    missing = [module for module in NEEDS.get(name, []) if find_spec(module) is None]
    if missing and os.environ.get("CI") != "true":  # in continuous integration these tests may not be skipped
        pytest.skip(f"needs {', '.join(missing)}")
    program = tmp_path / "guide.py"
    program.write_text("\n".join(blocks_of(name, "python")))
    environment = os.environ | {"KERAS_BACKEND": "torch", "KERAS_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Where a guide shows what is printed. The last digits are those of the machine's functions.
    shown, printed = (re.sub(r"(\.\d{4})\d+", r"\1", text) for text in ("".join(blocks_of(name, "text")), done.stdout))
    assert not shown or printed == shown


def test_the_commands_about_training_runs(tmp_path):
    """A run that was killed and went on is the same, file by file, as one that was not."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("matplotlib")
    text = PAGES["tutorials/language-model"].read_text()
    blocks = re.findall(r"^```(sh|toml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "text.txt").write_text(text * 20)
    (tmp_path / "other.txt").write_text(README.read_text())
    (tmp_path / "run.toml").write_text("".join(block for kind, block in blocks if kind == "toml"))
    commands = "set -e\n" + "".join(block for kind, block in blocks if kind == "sh")
    environment = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    done = subprocess.run(["bash", "-c", commands], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cut.npz").read_bytes() == (tmp_path / "model.npz").read_bytes()
    assert (tmp_path / "model.png").stat().st_size > 10_000
    assert len((tmp_path / "run.csv").read_text().splitlines()) > 10
