"""The record of a run in its file: every field is checked before the run goes on."""

import json

import numpy as np
import pytest
from messages import says
from small_runs import TEXT, new_run, record_of
from training_runs import assert_refused

from rnnkit.language_model import checkpoint, job
from rnnkit.language_model.checkpoint import Saver


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.npz"
    run = new_run()
    run.advance()
    Saver(path, 0).save(run, record_of(run), run.carried())
    return path


def assert_refused_with(tmp_path, run_file, change, *facts):
    """Raise unless the file with another record is refused with these facts; return the error."""
    with np.load(run_file) as file:
        contents = dict(file)
    record, path = json.loads(str(contents["run"])), tmp_path / "run.npz"
    change(record)
    np.savez(path, **contents | {"run": json.dumps(record)})
    with pytest.raises(ValueError, match=says(f"load: path '{path}'", *facts)) as caught:
        checkpoint.load(path)
    return str(caught.value)


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
def test_bad_value_of_a_field_is_refused(tmp_path, run_file, name, value):
    error = assert_refused_with(tmp_path, run_file, lambda record: record.update({name: value}), "run", name)
    assert f" {value!r}"[:300] in error


def test_batch_size_that_no_memory_holds_is_refused(tmp_path, run_file):
    facts = "state_hx", "float32", (1, 2**62, 6)
    assert_refused_with(tmp_path, run_file, lambda record: record["settings"].update(batch=2**62), *facts)


def test_every_field_has_a_type_to_check():
    known = checkpoint.fields(checkpoint.Record)
    assert [one.name for one in known if "type" not in one.metadata] == ["settings"]


def test_list_of_files_too_long_for_a_save_is_refused(tmp_path, train, monkeypatch):
    monkeypatch.setattr(job, "MAX_NAMES_CHARS", 100)
    assert_refused(train("--quiet", "--steps", 2, files=["text.txt"] * 9), "train: FILE", "names", 100)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_nan_and_inf_bits_are_never_the_best(train, monkeypatch):
    bits = iter([NAN, INFINITE, 3.0, NAN, 2.0])
    monkeypatch.setattr("rnnkit.language_model.scoring.bits_per_byte", lambda *args: next(bits))
    _, out, _ = train("--quiet", "--steps", 4, "--validate-every", 1)
    assert "best      3.000 bits per byte on the validation text, in step 3\n" in out


def test_record_keeps_file_names_that_are_not_utf8(tmp_path, run_file):
    record = checkpoint.load(run_file).record
    record.files, record.source = ["/a\udcff"], "a\udcff, ü"
    run = new_run(TEXT)
    run.advance()
    Saver(tmp_path / "run.npz", 0).save(run, record, run.carried())
    assert checkpoint.load(tmp_path / "run.npz").record.files == ["/a\udcff"]
