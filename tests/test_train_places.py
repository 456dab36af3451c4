"""What `rnnkit train` reads it never writes, by any of the names that it may write."""

import os
from pathlib import Path

import pytest
from training_runs import assert_refused, cut_off, flat, text_in, trainer

from rnnkit.language_model import checkpoint
from rnnkit.language_model import model as textmodel


@pytest.fixture
def train(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return trainer(text_in(tmp_path), capsys)


@pytest.fixture
def folder(train, tmp_path):
    """A text under several names, a finished model, and a run on that text that a signal has ended after two steps."""
    text = Path("text.txt")
    for name in ("book.txt", "book-best.txt", "book-step7.txt"):
        Path(name).write_bytes(text.read_bytes())
    os.link("book.txt", "hard.txt")
    os.symlink("book.txt", "soft.txt")
    Path("run.toml").write_text("steps = 1")
    train("--quiet", "--steps", 1, "--out", "m-best.npz")
    cut_off(train, 2, "--steps", 4, "--out", "run.npz", "--log", "run.csv", files=["book.txt"])
    os.mkdir("folder-best.npz")
    return tmp_path


OWN = "must name a file of its own, got"
RESUME, INIT = ["--resume", "run.npz"], ["--init-from", "m-best.npz", "--steps", 1]


@pytest.mark.parametrize(("options", "files", "because"), [
    (["--out", "book.txt"], ["book.txt"], f"--out {OWN} book.txt, as FILE does"),
    (["--out", "soft.txt"], ["book.txt"], f"--out {OWN} soft.txt, as FILE does"),
    (["--out", "hard.txt"], ["text.txt", "book.txt"], f"--out {OWN} hard.txt, as FILE does"),
    (["--out", "run.toml", "--config", "run.toml"], ["text.txt"], f"--out {OWN} run.toml, as --config does"),
    (["--log", "book.txt"], ["book.txt"], f"--log {OWN} book.txt, as FILE does"),
    (["--log", "model.npz"], ["text.txt"], f"--log {OWN} model.npz, as --out does"),
    ([*RESUME, "--out", "book.txt"], [], f"--out {OWN} book.txt, as the run of --resume does"),
    ([*RESUME, "--out", "hard.txt"], ["text.txt"], f"--out {OWN} hard.txt, as the run of --resume does"),
    ([*RESUME, "--out", "run.csv"], [], f"--log {OWN} PATH/run.csv, as --out does"),
    ([*RESUME, "--log", "run.npz"], [], f"--log {OWN} run.npz, as --resume does"),
    ([*INIT, "--out", "m-best.npz"], ["text.txt"], f"--out {OWN} m-best.npz, as --init-from does"),
    ([*INIT, "--out", "m.npz", "--keep", 1], ["text.txt"], f"--out with --keep {OWN} m-best.npz, as --init-from does"),
    (["--out", "book.txt", "--keep", 1], ["book-best.txt"], f"--out with --keep {OWN} book-best.txt, as FILE does"),
    (["--out", "book.txt", "--keep", 1], ["book-step7.txt"], f"--out with --keep {OWN} book-step7.txt, as FILE does"),
    (["--out", "n.csv", "--keep", 1, "--log", "n-best.csv"], ["text.txt"],
     f"--log {OWN} n-best.csv, as --out with --keep does"),
    (["--out", "n.csv", "--keep", 1, "--log", "n-step9.csv"], ["text.txt"],
     f"--out with --keep {OWN} n-step9.csv, as --log does"),
    (["--out", "folder.npz", "--keep", 1], ["text.txt"],
     r"save: path 'folder-best\.npz' must name a regular file, got a folder"),
])  # fmt: skip
def test_nothing_is_written_over_what_is_read(train, folder, options, files, because):
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    because = because.replace("PATH", str(folder))
    because = because if because.startswith("save") else f"train: {because}"
    assert_refused(train("--quiet", *options, files=files), because)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_an_older_save_goes_on_in_the_newest_and_stays(train):
    cut_off(train, 3, "--steps", 6, "--out", "m.npz", "--save-every", 1, "--keep", 2)
    older = Path("m-step2.npz").read_bytes()
    assert os.path.samefile("m.npz", "m-step3.npz")
    for step in (3, 2):
        assert train("--quiet", "--resume", f"m-step{step}.npz", "--out", "m.npz", files=())[0] == 0
    assert textmodel.load("m.npz").trained_with["steps"] == 6
    assert Path("m-step2.npz").read_bytes() == older and checkpoint.load("m-step5.npz").record.kept == [4, 5]


def test_saves_that_another_file_has_are_not_counted(train):
    """`kept` are steps of files beside the one that the run was read from."""
    cut_off(train, 3, "--steps", 6, "--out", "m.npz", "--keep", 1)
    Path("n-step3.npz").write_bytes(b"another's")
    assert train("--quiet", "--resume", "m.npz", "--out", "n.npz", "--save-every", 1, files=())[0] == 0
    assert Path("n-step3.npz").read_bytes() == b"another's" and Path("n-step5.npz").exists()


def test_a_model_may_be_the_beginning_of_another_file(train, folder):
    before = flat("m-best.npz")
    assert train("--quiet", *INIT, "--out", "n.npz", "--keep", 1)[0] == 0
    assert flat("m-best.npz") == before != flat("n.npz")
