"""What is trained or compressed for one kind of CPU, on two threads, is the same file for another, on one."""

import os
import subprocess
import sys

import pytest

TEXT = b"".join(b"%d green bottles hanging on the wall, %d\n" % (n, n * n) for n in range(400))
SMALL = ["--steps", "40", "--hidden", "33", "--embedding", "9", "--batch", "5", "--seq-len", "17", "--quiet"]
CPUS = {
    "here": {"NUMBA_NUM_THREADS": "2"},
    "haswell": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma", "NUMBA_NUM_THREADS": "1"},
}


def run(folder, cpu, *arguments):
    command = [sys.executable, "-m", "rnnkit", *arguments]
    done = subprocess.run(command, cwd=folder, env=os.environ | CPUS[cpu], capture_output=True, timeout=900)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="compiles for another x86-64")
def test_files_of_one_cpu_are_those_of_another(tmp_path):
    (tmp_path / "text").write_bytes(TEXT)
    found = []
    for cpu in CPUS:
        run(tmp_path, cpu, "train", "text", "--out", f"{cpu}.npz", *SMALL)
        run(tmp_path, cpu, "compress", "text", "--hidden", "33", "-o", f"{cpu}.rnk")
        run(tmp_path, cpu, "compress", "text", "--model", f"{cpu}.npz", "-o", f"{cpu}-model.rnk")
        found.append([(tmp_path / f"{cpu}{end}").read_bytes() for end in (".npz", ".rnk", "-model.rnk")])
    assert found[0] == found[1]
    run(tmp_path, "haswell", "decompress", "here.rnk", "-o", "again")
    run(tmp_path, "haswell", "decompress", "here-model.rnk", "--model", "here.npz", "-o", "again-model")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "again-model").read_bytes() == TEXT
