"""The guides: their code runs, from top to bottom."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from guides import DOCS, GUIDES, NEEDS, PAGES, README, blocks_of
from installed import needs_installed
from optional import OPTIONAL, needs


@pytest.mark.parametrize("name", GUIDES)
def test_guides_need_what_they_import(name):
    """Else they fail on a machine without it."""
    code = "\n".join(blocks_of(name, "python"))
    imported = set(re.findall(r"^(?:import|from) (?:rnnkit\.)?(\w+)", code, re.MULTILINE))
    assert imported & {*OPTIONAL} <= {*NEEDS.get(name, [])} and {*NEEDS} <= {*GUIDES}


def links_of(page):
    found = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text())
    return [page.parent / link for link in found if "://" not in link]


def test_links_exist_and_reach_every_page():
    seen, left = set(), {README}
    while left:
        seen |= left
        links = [link for page in left for link in links_of(page)]
        assert [link for link in links if not link.exists()] == []
        left = {link.resolve() for link in links if link.suffix == ".md"} - seen
    assert {README, *PAGES.values()} <= seen


def test_pages_install_no_unreleased_package():
    for page in (README, *PAGES.values()):
        assert not re.search(r"pip install '?rnnkit", page.read_text()), page.name


def test_pages_agree_on_runs_on_a_gpu():
    pages = README, PAGES["how-to/gpu"], PAGES["explanation/trust"]
    assert len({"has not run on a GPU yet" in page.read_text() for page in pages}) == 1


def test_pictures_are_small():
    pictures = list((DOCS / "pictures").iterdir())
    assert pictures and all(picture.stat().st_size < 100_000 for picture in pictures)


@pytest.mark.parametrize("name", GUIDES)
def test_code_of_guides_runs(name, tmp_path):
    needs_installed(*NEEDS.get(name, []))
    program = tmp_path / "guide.py"
    program.write_text("\n".join(blocks_of(name, "python")))
    environment = os.environ | {"KERAS_BACKEND": "torch", "KERAS_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # The last digits are those of the machine's functions.
    shown, printed = (re.sub(r"(\.\d{4})\d+", r"\1", text) for text in ("".join(blocks_of(name, "text")), done.stdout))
    assert not shown or printed == shown


@pytest.mark.nightly
def test_resumed_run_of_the_tutorial_is_bit_identical(tmp_path):
    needs("matplotlib")
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


def test_page_of_the_browser_is_that_of_the_example():
    own, example = DOCS / "_static" / "browser", DOCS.parent / "examples" / "browser"
    for name in ("index.html", "app.js"):
        assert (own / name).read_text() == (example / name).read_text()
