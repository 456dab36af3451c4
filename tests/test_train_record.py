"""The record of a run in its file: every field is checked before the run goes on."""

import json

import numpy as np
import pytest
from messages import says
from test_train_run import TEXT, new_run, record_of
from training_runs import assert_refused, text_in, trainer

from rnnkit.language_model import checkpoint, job
from rnnkit.language_model.checkpoint import Saver


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.npz"
    run = new_run()
    run.advance()
    Saver(path, 0).save(run, record_of(run), run.carried())
    return path


def saved_with(tmp_path, run_file, change):
    """The file with another record."""
    with np.load(run_file) as file:
        contents = dict(file)
    record = json.loads(str(contents["run"]))
    change(record)
    np.savez(tmp_path / "run.npz", **contents | {"run": json.dumps(record)})
    return tmp_path / "run.npz"


NAN, INFINITE = float("nan"), float("inf")
BAD = {
    "files": ["text.txt", [1], [""], ["a\0b"], [None], None],
    "source": [1, None, ["x"]],
    "text": [1],
    "num_ranks": [0, -1, 1.5, True, "1", None, 2**63],
    "step": [-1, 1.0, "1", None, [1], 10**400],
    "seconds": [NAN, INFINITE, -1.0, "1", None, True],
    "first_seconds": [NAN, -INFINITE, {}],
    "best_bits": [NAN, INFINITE, "1", [1.0]],
    "best_step": [-1, None],
    "kept": [["abc"], [0], [1.5], [None], [True], [[1]], 1, "12", None],
    "log": ["", "a\0b", 1, ["x"]],
    "log_every": ["0", 1, "x", [1]],
    "save_every": ["5x"],
    "keep": [-1, "1", 1.5],
    "log_bits": [NAN, "1", None],
    "log_steps": [-1, 0.5, None],
    "log_digest": [1, ["x"]],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_field_that_no_run_has(tmp_path, run_file, name, value):
    path = saved_with(tmp_path, run_file, lambda record: record.update({name: value}))
    with pytest.raises(ValueError, match=says(f"load: path '{path}'", "run", name)) as caught:
        checkpoint.load(path)
    assert f" {value!r}"[:300] in str(caught.value)


def test_a_batch_that_no_memory_holds(tmp_path, run_file):
    path = saved_with(tmp_path, run_file, lambda record: record["settings"].update(batch=2**62))
    with pytest.raises(ValueError, match=says(f"load: path '{path}'", "state_hx", "float32", (1, 2**62, 6))):
        checkpoint.load(path)


def test_every_field_is_checked():
    known = checkpoint.fields(checkpoint.Record)
    assert [one.name for one in known if "type" not in one.metadata] == ["settings"]


@pytest.mark.parametrize("name", ["step", "keep"])
def test_a_missing_field(tmp_path, run_file, name):
    path = saved_with(tmp_path, run_file, lambda record: record.pop(name))
    with pytest.raises(ValueError, match=says(f"load: path '{path}'", "run", "settings", "files")):
        checkpoint.load(path)


def test_a_list_of_files_that_no_save_could_hold(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(job, "MAX_NAMES_CHARS", 100)
    monkeypatch.chdir(tmp_path)
    train = trainer(text_in(tmp_path), capsys)
    assert_refused(train("--quiet", "--steps", 2, files=["text.txt"] * 9), "train: FILE", "names", 100)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_bits_that_are_no_number_are_never_the_best(tmp_path, capsys, monkeypatch):
    bits = iter([NAN, INFINITE, 3.0, NAN, 2.0])
    monkeypatch.setattr("rnnkit.language_model.scoring.bits_per_byte", lambda *args: next(bits))
    monkeypatch.chdir(tmp_path)
    _, out, _ = trainer(text_in(tmp_path), capsys)("--quiet", "--steps", 4, "--validate-every", 1)
    assert "best      3.000 bits per byte on the validation text, in step 3\n" in out


def test_a_record_survives_whatever_the_text_is_called(tmp_path, run_file):
    record = checkpoint.load(run_file).record
    record.files, record.source = ["/a\udcff"], "a\udcff, ü"
    run = new_run(TEXT)
    run.advance()
    Saver(tmp_path / "run.npz", 0).save(run, record, run.carried())
    assert checkpoint.load(tmp_path / "run.npz").record.files == ["/a\udcff"]
