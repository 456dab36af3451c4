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
from training_runs import SMALL, command, flat, rows_of

from rnnkit.language_model import checkpoint

ENVIRONMENT = {**CLEAN, "NUMBA_NUM_THREADS": "1"}


@pytest.fixture
def start(tmp_path):
    """Start training on several ranks, in an empty folder; whatever the test leaves running is killed."""
    with contextlib.ExitStack() as stack:

        def start(ranks, *arguments, before="true", stderr=subprocess.DEVNULL):
            shell = f"{before} && exec {' '.join(command('train', *arguments))}"
            started = [MPIEXEC, "-n", str(ranks), "sh", "-c", shell]
            options = {"stdout": subprocess.PIPE, "stderr": stderr, "text": True, "cwd": tmp_path, "env": ENVIRONMENT}
            process = stack.enter_context(subprocess.Popen(started, **options))
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def finish(start):
    """Train on several ranks until they end; return the exit status and what they wrote."""

    def finish(*arguments, timeout=300, **options):
        process = start(*arguments, stderr=subprocess.PIPE, **options)
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err

    return finish


def bits_in(out):
    return float(re.search(r"^ +([\d.]+)  rnnkit$", out, re.MULTILINE)[1])


@mpi
def test_ranks_train_one_model(text, tmp_path, finish):
    """As one process does with the whole batch; twice to the same bits."""
    options = [*SMALL, *"--quiet --steps 50 --clip 0.5 --accumulate 1 --dropout 0.2 --log-every 1".split()]
    _, alone, _ = finish(1, text, *options, "--out", "one.npz", "--log", "one.csv")
    for name in ("several.npz", "again.npz"):
        status, out, err = finish(3, text, *options, "--out", name, "--log", "log.csv")
        assert (status, err) == (0, "")
        assert out.count("saved ") == 1 and "ranks     3\n" in out
        assert bits_in(out) == pytest.approx(bits_in(alone), rel=1e-3)
        for ours, theirs in zip(rows_of(tmp_path / "log.csv"), rows_of(tmp_path / "one.csv"), strict=True):
            for column in ("train_bits", "validation_bits", "gradient_norm"):
                assert not ours[column] or float(ours[column]) == pytest.approx(float(theirs[column]), rel=1e-2)
    assert flat(tmp_path / "several.npz") == flat(tmp_path / "again.npz") != flat(tmp_path / "one.npz")


@mpi
def test_killed_ranks_resume_bit_identically(text, tmp_path, start, finish):
    options = [*SMALL, "--quiet", "--steps", "200", "--save-every", "1"]
    assert finish(2, text, *options, "--out", "whole.npz")[0] == 0
    process = start(2, text, *options, "--out", "cut.npz")
    while not (tmp_path / "cut.npz").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait(timeout=60)
    status, _, err = finish(2, "--resume", "cut.npz", "--quiet")
    assert (status, err) == (0, "")
    assert flat(tmp_path / "cut.npz") == flat(tmp_path / "whole.npz")


@mpi
def test_refusal_is_one_line_of_one_rank(text, tmp_path, finish):
    for options, where, facts in (
        (["--batch", "1"], "shard: size", ["ranks=2", 1]),
        (["--lr", "1e38"], "train: the loss", ["finite", "step", "--lr"]),
    ):
        status, _, err = finish(2, text, *SMALL, "--quiet", *options)
        lines = [line for line in err.splitlines() if line.startswith("rnnkit: ")]
        assert status == 2 and len(lines) == 1, err
        assert re.search(says(f"rnnkit: {where}", *facts), lines[0])
        assert "Traceback" not in err and not list(tmp_path.glob("*.npz"))


@mpi
def test_signal_on_one_rank_ends_all(text, tmp_path, start):
    process = start(2, text, *SMALL, "--quiet", "--steps", "1000000", before="echo $$ > pid$PMI_RANK")
    assert any(line.startswith("training") for line in process.stdout)
    os.kill(int((tmp_path / "pid1").read_text()), signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert "saved     model.npz, after" in out
    assert process.returncode == 128 + signal.SIGTERM
    assert checkpoint.load(tmp_path / "model.npz").record.num_ranks == 2


REFUSED = [(None, "rank 1: t.txt:", ["No such file or directory"]), (1, "train:", ["text", "rank 0", "rank 1"])]


@mpi
@pytest.mark.parametrize(("second", "where", "facts"), REFUSED, ids=["missing", "different"])
def test_text_that_one_rank_lacks_or_has_otherwise_is_refused(text, tmp_path, finish, second, where, facts):
    """Each rank in a folder of its own, as on machines without a common file system."""
    for rank, begin in enumerate([0, second]):
        (tmp_path / str(rank)).mkdir()
        if begin is not None:
            (tmp_path / str(rank) / "t.txt").write_bytes(text.read_bytes()[begin:])
    status, _, err = finish(2, "t.txt", *SMALL, "--quiet", before="cd $PMI_RANK", timeout=120)
    assert status == 2
    expected = says(f"rnnkit: {where}", *facts)
    assert any(re.search(expected, line) for line in err.splitlines()), err
