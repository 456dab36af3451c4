"""What `rnnkit train` reads it never writes, by any of the names that it may write; nor a picture in another file."""

import os
from pathlib import Path

import pytest
from optional import needs
from training_runs import assert_refused, cut_off, flat

from rnnkit.language_model import checkpoint
from rnnkit.language_model import model as textmodel


@pytest.fixture
def folder(train, tmp_path):
    """A text under several names, a finished model, and a run on that text that a signal has ended after two steps."""
    text = Path("text.txt")
    for name in ("book.txt", "book-best.txt", "book-step7.txt", "book.png"):
        Path(name).write_bytes(text.read_bytes())
    os.link("book.txt", "hard.txt")
    os.symlink("book.txt", "soft.txt")
    Path("run.toml").write_text("steps = 1")
    train("--quiet", "--steps", 1, "--out", "m-best.npz")
    cut_off(train, 2, "--steps", 4, "--out", "run.npz", "--log", "run.csv", files=["book.txt"])
    os.mkdir("folder-best.npz")
    return tmp_path


RESUME, INIT = "--resume run.npz", "--init-from m-best.npz --steps 1"
REFUSED = [
    ("--out book.txt", "book.txt", "train: --out", "book.txt, FILE"),
    ("--out soft.txt", "book.txt", "train: --out", "soft.txt, FILE"),
    ("--out hard.txt", "text.txt book.txt", "train: --out", "hard.txt, FILE"),
    ("--out run.toml --config run.toml", "text.txt", "train: --out", "run.toml, --config"),
    ("--log book.txt", "book.txt", "train: --log", "book.txt, FILE"),
    ("--log model.npz", "text.txt", "train: --log", "model.npz, --out"),
    (f"{RESUME} --out book.txt", "", "train: --out", "book.txt, run, --resume"),
    (f"{RESUME} --out hard.txt", "text.txt", "train: --out", "hard.txt, run, --resume"),
    (f"{RESUME} --out run.csv", "", "train: --log", "PATH/run.csv, --out"),
    (f"{RESUME} --log run.npz", "", "train: --log", "run.npz, --resume"),
    (f"{INIT} --out m-best.npz", "text.txt", "train: --out", "m-best.npz, --init-from"),
    (f"{INIT} --out m.npz --keep 1", "text.txt", "train: --out", "m-best.npz, --keep, --init-from"),
    ("--out book.txt --keep 1", "book-best.txt", "train: --out", "book-best.txt, --keep, FILE"),
    ("--out book.txt --keep 1", "book-step7.txt", "train: --out", "book-step7.txt, --keep, FILE"),
    ("--out n.csv --keep 1 --log n-best.csv", "text.txt", "train: --log", "n-best.csv, --out, --keep"),
    ("--out n.csv --keep 1 --log n-step9.csv", "text.txt", "train: --out", "n-step9.csv, --keep, --log"),
    ("--out folder.npz --keep 1", "text.txt", "save: path 'folder-best.npz'", "regular file, folder"),
    ("--plot n.png", "text.txt", "train: --log", "--plot, none"),
    ("--log n.csv --plot n.svg", "text.txt", "train: --plot", ".png, n.svg"),
    ("--log n.csv --plot none/n.png", "text.txt", "none/n.png:", "No such file or directory"),
    ("--log n.png --plot n.png", "text.txt", "train: --plot", "n.png, --log"),
    ("--out n.png --log n.csv --plot n.png", "text.txt", "train: --plot", "n.png, --out"),
    ("--log n.csv --plot book.png", "book.png", "train: --plot", "book.png, FILE"),
]


@pytest.mark.parametrize(("options", "files", "where", "facts"), REFUSED)
def test_train_refuses_to_overwrite_what_it_reads(train, folder, options, files, where, facts):
    if "--plot" in options:
        needs("matplotlib")

    def contents():
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    before, facts = contents(), facts.replace("PATH", str(folder)).split(", ")
    assert_refused(train("--quiet", *options.split(), files=files.split()), where, *facts)
    assert contents() == before


def test_older_save_resumes_in_the_newest_and_stays(train):
    cut_off(train, 3, "--steps", 6, "--out", "m.npz", "--save-every", 1, "--keep", 2)
    older = Path("m-step2.npz").read_bytes()
    assert os.path.samefile("m.npz", "m-step3.npz")
    for step in (3, 2):
        assert train("--quiet", "--resume", f"m-step{step}.npz", "--out", "m.npz", files=())[0] == 0
    assert textmodel.load("m.npz").trained_with["steps"] == 6
    assert Path("m-step2.npz").read_bytes() == older and checkpoint.load("m-step5.npz").record.kept == [4, 5]


def test_saves_of_another_file_are_not_pruned(train):
    """`kept` are steps of files beside the one that the run was read from."""
    cut_off(train, 3, "--steps", 6, "--out", "m.npz", "--keep", 1)
    Path("n-step3.npz").write_bytes(b"another's")
    assert train("--quiet", "--resume", "m.npz", "--out", "n.npz", "--save-every", 1, files=())[0] == 0
    assert Path("n-step3.npz").read_bytes() == b"another's" and Path("n-step5.npz").exists()


def test_init_from_leaves_its_model_as_it_is(train, folder):
    before = flat("m-best.npz")
    assert train("--quiet", *INIT.split(), "--out", "n.npz", "--keep", 1)[0] == 0
    assert flat("m-best.npz") == before != flat("n.npz")
