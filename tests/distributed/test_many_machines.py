"""The guide to many machines: its program on two ranks, its estimate, and the script behind its figures."""

import re
import shutil
import subprocess
import sys
from importlib import import_module

import pytest
from guides import DOCS
from launched import CLEAN, HANG, MPIEXEC, mpi

ROOT = DOCS.parent
GUIDE = (DOCS / "how-to" / "many-machines.md").read_text()


@pytest.fixture
def estimate(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return import_module("allreduce_estimate")


@pytest.mark.skipif(shutil.which("sh") is None, reason="the guide's commands are those of a shell")
@mpi
def test_program_of_the_guide_equals_itself_on_two_ranks(tmp_path):
    (code,) = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    (commands,) = re.findall(r"^```sh\n(python .*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    (tmp_path / "program.py").write_text(code)
    environment = CLEAN | {"PATH": f"{MPIEXEC.rpartition('/')[0]}:{CLEAN['PATH']}"}
    found = []
    for command in commands.splitlines():
        command = command.replace("python ", f"{sys.executable} ")
        run = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, timeout=HANG)
        assert run.returncode == 0, run.stderr.decode()
        found.append(re.fullmatch(r"loss (\d\.\d+), (\d) processes\n", run.stdout.decode()).groups())
    (one, *ranks), (two, *others) = found
    assert (one, ranks, others) == (two, ["1"], ["2"])


def test_table_is_the_output_of_the_script():
    printed = subprocess.check_output([sys.executable, ROOT / "scripts" / "allreduce_estimate.py"], text=True)
    assert printed.count("\n") == 14
    assert printed in GUIDE


def test_estimate_follows_the_formulas(estimate):
    network = estimate.Network("", bytes_per_second=1e9, latency=1e-3)
    adding = 8e6 * 3 / 4 * estimate.ADD_SECONDS
    # Four hosts send 3/4 of 8 MB twice: 12 ms, in 6 messages around the ring and 4 in the tree.
    assert estimate.ring(network, 4, 8e6) == pytest.approx(12e-3 + 6e-3 + adding)
    assert estimate.tree(network, 4, 8e6) == pytest.approx(12e-3 + 4e-3 + adding)
    assert estimate.sequence_seconds(1e6) == pytest.approx(6e6 * estimate.SEQ_LEN / estimate.HOST_FLOPS)
    assert [estimate.short(number) for number in (1128, 150.3, 3.04, 0.689)] == ["1100", "150", "3", "0.69"]


@mpi
def test_script_measures_ranks_and_threads():
    command = [sys.executable, ROOT / "scripts" / "ranks_and_threads.py", "--pairs=2", "--steps=2", "--case=tiny"]
    printed = subprocess.check_output(command, env=CLEAN, text=True, timeout=HANG)
    time, ratio = r"\d+\.\d ms", r"\d+\.\d\d"
    shape = rf"tiny: 2 ranks {time}, 2 threads {time} a step; ranks / threads ({ratio}) ({ratio}) ({ratio}); "
    found = re.fullmatch(shape + r"Allreduce (\d+\.\d)% of a step\n", printed)
    assert found, printed
    low, middle, high, share = map(float, found.groups())
    assert low <= middle <= high and 0 < share < 100


@mpi
def test_script_measures_overlap():
    command = [MPIEXEC, "-n", "2", sys.executable, ROOT / "scripts" / "overlap.py", "2000", "10000"]
    printed = subprocess.check_output(command, env=CLEAN, text=True, timeout=HANG)
    time = r"\d+\.\d\d ms"
    line = rf"{{}} floats: Allreduce {time}, Wait {time}; computing alone {time}, after Iallreduce {time}\n"
    assert re.fullmatch(line.format(2000) + line.format(10000), printed), printed
