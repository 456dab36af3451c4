"""A training run: its schedule, its parts, and that it goes on to the same bits wherever it was cut."""

import errno
import os

import numpy as np
import pytest
from messages import says
from small_runs import TEXT, new_run, record_of
from tolerances import assert_close

from rnnkit.language_model import checkpoint
from rnnkit.language_model.checkpoint import Saver
from rnnkit.language_model.every import Every
from rnnkit.language_model.settings import Settings
from rnnkit.language_model.training import Run, learning_rate


def advanced(run, steps):
    return [run.advance() for _ in range(steps)]


def bits_of(run):
    return run.model.parameters.flat.tobytes()


def save(run, folder, keep=0, record=None):
    """Save a run; return the path of its file."""
    Saver(folder / "run.npz", keep).save(run, record or record_of(run), run.carried())
    return folder / "run.npz"


def reloaded(path):
    found = checkpoint.load(path)
    run = Run(found.model, found.optimizer, TEXT, found.record.settings)
    run.resume(found.record.step, found.record.seconds, found.record.first_seconds, found.state)
    return run


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mode": "gru", "layers": 2, "dropout": 0.3},
        {"accumulate": 3, "weight_decay": 0.1},
        {"precision": "bfloat16"},
        {"mode": "rnn_tanh"},
        {"recurrent_dropout": 0.2, "zoneout": 0.1},
    ],
)
@pytest.mark.parametrize("cut", [1, 7, 19])
def test_cut_run_resumes_bit_identically(tmp_path, changes, cut):
    whole, first = new_run(**changes), new_run(**changes)
    expected = advanced(whole, 20)
    advanced(first, cut)
    second = reloaded(save(first, tmp_path))
    assert [step[:3] for step in advanced(second, 20 - cut)] == [step[:3] for step in expected[cut:]]
    assert bits_of(second) == bits_of(whole) and second.progress == whole.progress == 1
    states = zip(second.carried(), whole.carried(), strict=True)
    assert all(one is other or np.array_equal(one, other) for one, other in states)


@pytest.mark.parametrize("changes", [{"layers": 2, "dropout": 0.4}, {"recurrent_dropout": 0.2, "zoneout": 0.1}])
def test_accumulated_parts_add_up_to_the_step(changes):
    """What is dropped of a row does not depend on the part that it is in."""
    whole, parts = new_run(**changes), new_run(**changes, accumulate=3)
    assert [part.stop - part.start for part in parts._parts] == [1, 1, 2]
    for run in (whole, parts):
        run.advance()
    assert_close("gradient", parts.model.gradient.flat, whole.model.gradient.flat, "float32")
    for ours, theirs in zip(advanced(parts, 19), advanced(whole, 19), strict=True):
        assert ours.bits == pytest.approx(theirs.bits, rel=1e-5)


def test_more_parts_than_rows_are_refused():
    with pytest.raises(ValueError, match=says("train: --accumulate", "4 rows", 5, "--batch")):
        new_run(accumulate=5)


def test_each_step_has_its_own_rate_and_dropout_seed(monkeypatch):
    """Learning rates and seeds as they are used, not as the functions beside them would give."""
    found = []
    for _ in range(2):
        run, seeds = new_run(accumulate=2, seed=5), []

        def record(*batch, seeds=seeds, add=run.model.add_gradient, **options):
            seeds.append((options["seed"], options["first_row"]))
            return add(*batch, **options)

        monkeypatch.setattr(run.model, "add_gradient", record)
        rates = [step.rate for step in advanced(run, 20)]
        assert rates == [learning_rate((step + 0.5) / 20, run.settings) for step in range(20)]
        found.append(seeds)
    assert found[0] == found[1] and len(set(found[0])) == 40
    assert len({seed for seed, _ in found[0]}) == 20 and {row for _, row in found[0]} == {0, 2}


def test_learning_rate_rises_and_falls_to_zero():
    settings = Settings.of({"lr": 2.0})
    rates = [learning_rate(progress, settings) for progress in np.linspace(0, 1, 101)]
    assert rates[0] == 0 and rates[1] == pytest.approx(1.0, rel=1e-3)
    assert rates[2] == max(rates) > 1.99
    assert rates[50] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.0)


def test_steps_epochs_and_minutes_end_a_run():
    assert new_run(steps=7).num_steps == 7
    batches = (len(TEXT) // 4 - 1) // 16
    assert new_run(steps=None, epochs=2 + 0.9 / batches).num_steps == 2 * batches + 1
    assert new_run(steps=None, epochs=1e-9).num_steps == 1
    run = new_run(steps=None, minutes=1.0)
    run.first_seconds, run.seconds = 10.0, 35.0
    assert run.num_steps is None and run.progress == 0.5
    run.seconds = 61.0
    assert run.progress == 1.0
    run.first_seconds = 61.0
    assert run.progress == 1.0


def test_clock_of_a_run_is_saved(tmp_path):
    run = new_run(steps=None, minutes=1.0)
    advanced(run, 3)
    run.seconds, run.first_seconds = 50.0, 2.0
    again = reloaded(save(run, tmp_path))
    assert again.progress == pytest.approx(48 / 58)
    again.advance()
    assert 50 < again.seconds < 55 and again.first_seconds == 2.0


def test_older_saves_are_kept_and_pruned(tmp_path):
    run = new_run()
    record = record_of(run)
    for _ in range(4):
        run.advance()
        save(run, tmp_path, 2, record)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-step3.npz", "run-step4.npz", "run.npz"]
    assert [reloaded(tmp_path / f"run-step{step}.npz").step for step in (3, 4)] == [3, 4]
    # A run that goes on from the older one makes the newer one anew.
    run, record = reloaded(tmp_path / "run-step3.npz"), checkpoint.load(tmp_path / "run-step3.npz").record
    run.advance()
    before = bits_of(run)
    save(run, tmp_path, 2, record)
    assert record.kept == [3, 4] and bits_of(reloaded(tmp_path / "run-step4.npz")) == before
    assert (tmp_path / "run-step4.npz").samefile(tmp_path / "run.npz")  # a second name takes no room


def test_older_saves_stand_beside_a_symbolic_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run.npz").symlink_to(tmp_path / "elsewhere" / "newest.npz")
    run = new_run()
    record = record_of(run)
    for _ in range(2):
        run.advance()
        save(run, tmp_path, 2, record)
    assert [reloaded(tmp_path / f"run-step{step}.npz").step for step in (1, 2)] == [1, 2]


def no_room(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_failed_save_keeps_those_before_it(tmp_path, monkeypatch):
    """They are still in the list, and go when there are newer ones."""
    run = new_run()
    record = record_of(run)
    for fails in (False, True, False):
        run.advance()
        with monkeypatch.context() as patch:
            if fails:
                patch.setattr("os.fsync", no_room)
                with pytest.raises(OSError, match="No space left on device"):
                    save(run, tmp_path, 1, record)
            else:
                save(run, tmp_path, 1, record)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-step3.npz", "run.npz"]


@pytest.fixture
def run():
    """One that has made a step."""
    run = new_run()
    run.advance()
    return run


def test_half_a_copy_is_removed(run, tmp_path, monkeypatch):
    monkeypatch.setattr("os.link", no_room)
    monkeypatch.setattr("shutil.copyfileobj", lambda file, copy: (copy.write(file.read(10)), no_room()))
    with pytest.raises(OSError, match="No space left on device") as caught:
        save(run, tmp_path, 1)
    assert caught.value.filename == os.fspath(tmp_path / "run-step1.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["run.npz"]


def test_older_saves_are_copies_where_links_cannot_be_made(run, tmp_path, monkeypatch):
    monkeypatch.setattr("os.link", no_room)
    path = save(run, tmp_path, 1)
    assert (tmp_path / "run-step1.npz").read_bytes() == path.read_bytes()


NETWORK = "RNNDescriptor('lstm', 4, {}, dropout=0.1)"


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"run": None}, ["run", "--init-from"]),
        ({"run": "[]"}, ["run", "JSON object", "list"]),
        ({"run": "{}"}, ["run", "settings", "files"]),
        ({"run": ['"batch": 4', '"batch": 0']}, ["settings", "batch=0"]),
        ({"run": ['"steps": 20', '"steps": null']}, ["settings", "steps=None"]),
        ({"run": ['"mode": "lstm"', '"mode": "lstn"']}, ["settings", "mode=lstn"]),
        ({"run": ['"hidden": 6', '"hidden": 7']}, ["run", NETWORK.format(6), NETWORK.format(7)]),
        ({"state_hx": np.zeros((1, 4, 7), "f4")}, ["state_hx", "float32", (1, 4, 6), (1, 4, 7)]),
        ({"state_cx": None}, ["state_hx", "no state_cx"]),
        ({"optimizer_mean": np.zeros(3, "f4")}, ["optimizer_mean", "float32", (3,)]),
        ({"optimizer_steps": None}, ["state_hx", "no optimizer_steps"]),
    ],
)
def test_load_refuses_damaged_and_contradictory_members(run, tmp_path, changes, facts):
    with np.load(path := save(run, tmp_path)) as file:
        contents = dict(file)
    for name, change in changes.items():
        contents[name] = str(contents[name]).replace(*change) if isinstance(change, list) else change
    np.savez(path, **{name: value for name, value in contents.items() if value is not None})
    with pytest.raises(ValueError, match=says(f"load: path '{path}'", *facts)):
        checkpoint.load(path)


def test_intervals_of_steps_shares_and_time():
    run = new_run(steps=40)
    steps, share = Every("3").start(run), Every("25%").start(run)
    found = []
    for _ in range(10):
        run.step += 1
        found.append((steps.due(run), share.due(run)))
    assert [number for number, (due, _) in enumerate(found, 1) if due] == [3, 6, 9]
    assert [number for number, (_, due) in enumerate(found, 1) if due] == [10]
    seconds, minutes = Every("90s").start(run), Every("1.5m").start(run)
    for run.seconds, due in ((89.0, False), (90.0, True), (91.0, False), (400.0, True), (449.0, False), (450.0, True)):
        assert seconds.due(run) == minutes.due(run) == due
    assert str(Every("2h")) == "2h" and not Every("2h").start(run).due(run)
    late = Every("3").start(run)  # a run that goes on counts from where it is
    assert not late.due(run)
