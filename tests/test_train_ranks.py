"""`mpiexec -n 2 python -m rnnkit train`: one model from several processes, and how they end together."""

import contextlib
import os
import re
import signal
import subprocess
import time

import pytest
from launched import CLEAN, MPIEXEC, mpi
from messages import says
from training_runs import SMALL, command, flat, rows_of, text_in

from rnnkit.language_model import checkpoint


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return text_in(tmp_path_factory.mktemp("text"))


def launch(ranks, *arguments, cwd, **environment):
    started = [MPIEXEC, "-n", str(ranks), *command("train", *arguments)]
    environment = {**CLEAN, "NUMBA_NUM_THREADS": "1", **environment}
    return subprocess.run(started, env=environment, cwd=cwd, capture_output=True, text=True, timeout=300)


def bits_in(out):
    return float(re.search(r"^ +([\d.]+)  rnnkit$", out, re.MULTILINE)[1])


@pytest.fixture
def start(tmp_path):
    """Start a program of several ranks, in an empty folder; whatever the test leaves running is killed."""
    with contextlib.ExitStack() as stack:

        def start(ranks, *arguments):
            environment = {**CLEAN, "NUMBA_NUM_THREADS": "1"}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
            command = [MPIEXEC, "-n", str(ranks), *arguments]
            process = stack.enter_context(subprocess.Popen(command, env=environment, cwd=tmp_path, **pipes))
            stack.callback(process.kill)
            return process

        yield start


@mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_train_one_model(text, tmp_path, ranks):
    """As one process does with the whole batch; twice to the same bits, also where a save came between."""
    options = [*SMALL, "--quiet", "--steps", "50", "--clip", "0.5", "--accumulate", "1", "--dropout", "0.2"]
    alone = launch(1, text, *options, "--out", "one.npz", "--log", "one.csv", "--log-every", "1", cwd=tmp_path)
    for name in ("several.npz", "again.npz"):
        done = launch(ranks, text, *options, "--out", name, "--log", "log.csv", "--log-every", "1", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("saved ") == 1 and f"ranks     {ranks}\n" in done.stdout
        assert bits_in(done.stdout) == pytest.approx(bits_in(alone.stdout), rel=1e-3)
        for ours, theirs in zip(rows_of(tmp_path / "log.csv"), rows_of(tmp_path / "one.csv"), strict=True):
            for column in ("train_bits", "validation_bits", "gradient_norm"):
                assert not ours[column] or float(ours[column]) == pytest.approx(float(theirs[column]), rel=1e-2)
    assert flat(tmp_path / "several.npz") == flat(tmp_path / "again.npz") != flat(tmp_path / "one.npz")


@mpi
def test_ranks_go_on_to_the_same_bits(text, tmp_path, start):
    options = [*SMALL, "--quiet", "--steps", "200", "--save-every", "1"]
    assert launch(2, text, *options, "--out", "whole.npz", cwd=tmp_path).returncode == 0
    process = start(2, *command("train", text, *options, "--out", "cut.npz"))
    wait_for(tmp_path / "cut.npz", process)
    process.kill()
    process.wait(timeout=60)
    done = launch(2, "--resume", "cut.npz", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert flat(tmp_path / "cut.npz") == flat(tmp_path / "whole.npz")


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.02)


@mpi
def test_a_rank_that_is_killed_ends_all_and_leaves_a_whole_file(text, tmp_path, start):
    options = [*SMALL, "--quiet", "--steps", "1000000", "--save-every", "1", "--out", "m.npz"]
    process = start(3, "sh", "-c", f"echo $$ > pid$PMI_RANK; exec {' '.join(command('train', text, *options))}")
    wait_for(tmp_path / "m.npz", process)
    begin = time.monotonic()
    os.kill(int((tmp_path / "pid1").read_text()), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0 and time.monotonic() - begin < 15
    assert checkpoint.load(tmp_path / "m.npz").record.step >= 1


@mpi
def test_a_refusal_is_one_line_of_one_rank(text, tmp_path):
    for options, where, facts in (
        (["--batch", "1"], "shard: size", ["ranks=2", 1]),
        (["--lr", "1e38"], "train: the loss", ["finite", "step", "--lr"]),
    ):
        done = launch(2, text, *SMALL, "--quiet", *options, cwd=tmp_path)
        lines = [line for line in done.stderr.splitlines() if line.startswith("rnnkit: ")]
        assert done.returncode == 2 and len(lines) == 1, done.stderr
        assert re.search(says(f"rnnkit: {where}", *facts), lines[0])
        assert "Traceback" not in done.stderr and not list(tmp_path.glob("*.npz"))


@mpi
def test_a_signal_on_one_rank_ends_all(text, tmp_path, start):
    options = [*SMALL, "--quiet", "--steps", "1000000"]
    process = start(2, "sh", "-c", f"echo $$ > pid$PMI_RANK; exec {' '.join(command('train', text, *options))}")
    assert any(line.startswith("training") for line in process.stdout)
    os.kill(int((tmp_path / "pid1").read_text()), signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert "saved     model.npz, after" in out
    assert process.returncode == 128 + signal.SIGTERM
    assert checkpoint.load(tmp_path / "model.npz").record.num_ranks == 2


@mpi
def test_a_text_that_only_one_rank_lacks_is_named_with_it(text, tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "t.txt").write_bytes(text.read_bytes())
    (tmp_path / "1").mkdir()
    shell = f"cd $PMI_RANK && exec {' '.join(command('train', 't.txt', *SMALL, '--quiet'))}"
    started = [MPIEXEC, "-n", "2", "sh", "-c", shell]
    done = subprocess.run(started, env=CLEAN, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    expected = says("rnnkit: rank 1: t.txt:", "No such file or directory")
    assert any(re.search(expected, line) for line in done.stderr.splitlines()), done.stderr


@mpi
def test_a_text_that_differs_between_ranks_is_refused(text, tmp_path):
    """Each rank in a folder of its own, as on machines without a common file system."""
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "t.txt").write_bytes(text.read_bytes()[rank:])
    shell = f"cd $PMI_RANK && exec {' '.join(command('train', 't.txt', *SMALL, '--quiet'))}"
    started = [MPIEXEC, "-n", "2", "sh", "-c", shell]
    done = subprocess.run(started, env=CLEAN, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    expected = says("rnnkit: train:", "text", "rank 0", "rank 1")
    assert any(re.search(expected, line) for line in done.stderr.splitlines()), done.stderr
