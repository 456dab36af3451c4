"""The log of a training run: what it holds after a cut, on a full disk, and where another run writes it."""

import errno
import io
import re
import resource
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import tqdm
from messages import says
from training_runs import assert_refused, cut_off, rows_of

from rnnkit.language_model import checkpoint, report
from rnnkit.language_model.report import Log, LogState, read_log
from rnnkit.language_model.training import Run


@contextmanager
def room(size):
    """A file may have so many bytes: of what is written, as on a full disk, the beginning has room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def steps_in(path):
    return [int(row["step"]) for row in rows_of(path)]


def without_times(path):
    lines = Path(path).read_bytes().splitlines(keepends=True)
    return [line.split(b",")[:2] + line.split(b",")[3:] for line in lines]


def test_row_of_the_log_is_the_mean_of_its_steps(train):
    for every in (1, 3):
        train("--quiet", "--steps", 6, "--log", f"{every}.csv", "--log-every", every, "--validate-every", 6)
    each, some = rows_of("1.csv"), rows_of("3.csv")
    assert steps_in("3.csv") == [3, 6] and [int(row["bytes"]) for row in some] == [3 * 64, 6 * 64]
    mean = sum(float(row["train_bits"]) for row in each[3:]) / 3
    assert float(some[1]["train_bits"]) == pytest.approx(mean, rel=1e-5)
    assert some[1]["learning_rate"] == each[5]["learning_rate"]
    train("--quiet", "--steps", 3, "--log", "1.csv", "--log-every", 2)  # a new run begins a new log
    assert steps_in("1.csv") == [1, 2, 3]


@pytest.mark.parametrize("stop", [5, 6, 7])
def test_log_of_a_resumed_run_equals_that_of_a_whole_one(train, stop, monkeypatch, tmp_path):
    """With nothing given again, in another folder."""
    options = ["--steps", 20, "--log-every", 3, "--validate-every", 7]
    train("--quiet", *options, "--log", "whole.csv")
    cut_off(train, stop, *options, "--log", "cut.csv")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert train("--quiet", "--resume", "../model.npz", files=())[0] == 0
    assert without_times("../cut.csv") == without_times("../whole.csv")
    assert list(Path().iterdir()) == []


def test_run_keeps_its_options_until_others_are_given(train):
    given = {"log_every": "2", "validate_every": "50%", "sample_every": "1h", "save_every": "1", "keep": 2}
    options = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    cut_off(train, 3, "--steps", 9, *options)
    assert checkpoint.load("model.npz").record.options == given
    cut_off(train, 5, "--resume", "model.npz", "--save-every", "3", "--log", "log.csv", files=())
    record = checkpoint.load("model.npz").record
    assert record.options == given | {"save_every": "3", "log": str(Path("log.csv").absolute())}
    assert record.kept == [3, 5]


def test_plain_progress_line_comes_every_ten_seconds():
    run = SimpleNamespace(progress=0.0, step=1, seconds=1.0, step_bytes=64)
    clock, lines, seen = [0.0], io.StringIO(), []
    with report.Progress(run, tqdm, lines, lambda: clock[0]) as progress:
        for clock[0] in (0.0, 9.9, 10.0, 19.9, 25.0, 34.9, 35.0):
            progress.update(SimpleNamespace(seconds=1.0, bits=2.0))
            seen.append(lines.getvalue().count("\n"))
    assert seen == [1, 1, 2, 2, 3, 3, 4]


def test_file_that_is_no_log_is_refused(train, cut, tmp_path):
    (tmp_path / "log.csv").write_text("a,b\n1,2\n")
    for given, path in (
        (train("--quiet", "--resume", cut, files=()), tmp_path / "log.csv"),
        (train("--quiet", "--log", "log.csv"), "log.csv"),
    ):
        assert_refused(given, f"read_log: path '{path}'", "step,bytes,", "a,b")
    assert_refused(train("--quiet", "--log", "none/log.csv"), "train: --log", "folder", "none/log.csv")
    assert (tmp_path / "log.csv").read_text() == "a,b\n1,2\n"


def test_open_log_of_another_run_is_refused(train, cut):
    before = Path("log.csv").read_bytes()
    with Log("log.csv", 3, LogState()):
        for options, files in ((["--resume", cut], ()), (["--log", "log.csv"], ["text.txt"])):
            refused = train("--quiet", *options, files=files)
            assert_refused(refused, "train: --log", "log.csv", "open", "another --log")
    assert Path("log.csv").read_bytes() == before
    assert train("--quiet", "--resume", cut, files=())[0] == 0


def test_log_that_another_run_has_begun_anew_is_refused(train, cut):
    train("--quiet", "--steps", 5, "--log", "log.csv", "--log-every", 1, "--out", "other.npz")
    before = Path("log.csv").read_bytes()
    for options in ([], ["--log", "log.csv"]):
        refused = train("--quiet", "--resume", cut, *options, files=())
        assert_refused(refused, "train: --log", "log.csv", "another --log")
    assert Path("log.csv").read_bytes() == before
    assert train("--quiet", "--resume", cut, "--log", "new.csv", files=())[0] == 0
    assert steps_in("new.csv") == list(range(4, 11))


def test_log_of_a_killed_run_equals_that_of_a_whole_one(train, monkeypatch):
    """With rows of steps that it had not saved; and a log that is gone begins anew."""
    options = ["--quiet", "--steps", 20, "--log-every", 3, "--validate-every", 8, "--save-every", 4]
    train(*options, "--log", "whole.csv")
    advance = Run.advance
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(Run, "advance", lambda run, stop: advance(run) if run.step < 7 else 1 / 0)
        train(*options, "--log", "killed.csv")
    assert steps_in("killed.csv") == [3, 6]
    assert checkpoint.load("model.npz").record.step == 4
    Path("saved.npz").write_bytes(Path("model.npz").read_bytes())
    assert train("--quiet", "--resume", "model.npz", files=())[0] == 0
    assert without_times("killed.csv") == without_times("whole.csv")
    Path("killed.csv").unlink()
    assert train("--quiet", "--resume", "saved.npz", files=())[0] == 0
    assert without_times("killed.csv") == [line for line in without_times("whole.csv") if line[0] != b"3"]


def test_full_disk_loses_no_row_of_the_log(train, cut, monkeypatch, caplog):
    """Nor leaves half a row; those without room are written with the next."""
    before, write = Path("log.csv").read_bytes(), Log.write

    def watched(log, run, *arguments):
        assert run.step > 7 or Path("log.csv").read_bytes() == before
        with room(len(before) + 20 if run.step < 7 else 1 << 20):
            write(log, run, *arguments)

    monkeypatch.setattr(Log, "write", watched)
    assert train("--quiet", "--resume", cut, files=())[0] == 0
    assert steps_in("log.csv") == list(range(1, 11)) and Path("log.csv").read_bytes().startswith(before)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3 and all(re.search(says("the log", "log.csv: File too large"), line) for line in said), said


def test_full_disk_does_not_end_a_run(train, tmp_path, monkeypatch, caplog):
    """Neither a save, nor the log, nor what is shown; the last save is another thing."""
    save, failing = checkpoint.Saver.save, {5, 10}

    def full(saver, run, *others):
        if run.step in failing:
            raise OSError(errno.ENOSPC, "No space left on device", "model.npz")
        save(saver, run, *others)

    def no_room(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    stream = SimpleNamespace(write=no_room, flush=no_room, isatty=lambda: False)
    monkeypatch.setattr(checkpoint.Saver, "save", full)
    monkeypatch.setattr("rnnkit.language_model.report.Log.write", lambda *args: (tmp_path / "none" / "x").touch())
    monkeypatch.setattr("rnnkit.language_model.report.LINE_SECONDS", 0.0)
    monkeypatch.setattr("sys.stderr", stream)
    assert train("--steps", 12, "--save-every", 5)[0] == 0
    said = [record.getMessage() for record in caplog.records]
    for count, *expected in (2, "a save", "model.npz: No space left on device"), (12, "the log"), (12, "the progress"):
        assert sum(re.search(says(*expected), line) is not None for line in said) == count


@pytest.mark.parametrize("torn", ["4", "2,128,1.5,0.01,2.5,4.2", "4,256,1.5,0.01,2.5,4.2,"])
def test_torn_last_row_is_dropped(train, cut, torn):
    whole = Path("log.csv").read_bytes()
    Path("log.csv").write_bytes(whole + torn.encode())
    assert [int(row["step"]) for row in read_log("log.csv")] == [1, 2, 3]
    assert train("--quiet", "--resume", cut, files=())[0] == 0
    assert Path("log.csv").read_bytes().startswith(whole + b"4,256,")
    assert [int(row["step"]) for row in read_log("log.csv")] == list(range(1, 11))


def test_log_is_not_changed_before_the_first_row(train, cut, monkeypatch):
    before = Path("log.csv").read_bytes()
    monkeypatch.setattr(report.Progress, "update", lambda *arguments: 1 / 0)
    for options, files in ((["--resume", cut], ()), (["--log", "log.csv"], ["text.txt"])):
        with pytest.raises(ZeroDivisionError):
            train("--quiet", *options, files=files)
        assert Path("log.csv").read_bytes() == before
