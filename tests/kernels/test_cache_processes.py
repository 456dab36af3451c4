"""The cache of compiled kernels in processes of their own: where it stands, and several at once."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from rnnkit_kernels.machine import cache

SERVE = """
import numpy as np
from rnnkit_kernels.machine.sync import serve, sync_size
print(serve(np.zeros(sync_size(1), np.int64), 3, 0), sum(serve.stats.cache_hits.values()))
"""
NO_ACCOUNT = """
import pwd
def nobody(uid):
    raise KeyError(uid)
pwd.getpwuid = nobody
"""


def serve(program=SERVE, cwd=None, **environment):
    """Run the program in a process of its own; what it prints, and the warnings."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": "", **environment}
    environment = {name: value for name, value in environment.items() if value is not None}
    options = dict(env=environment, cwd=cwd, capture_output=True, text=True, check=True)
    run = subprocess.run([sys.executable, "-c", program], **options)
    return run.stdout, run.stderr


def test_kernels_run_without_account_and_home(tmp_path):
    said, warned = serve(NO_ACCOUNT + SERVE, cwd=tmp_path, XDG_CACHE_HOME=None, HOME=None)
    assert said == "3 0\n"
    assert len(re.findall("kernel cache: .* absolute .*''", warned)) == 1
    assert list(tmp_path.iterdir()) == []


def test_code_for_two_cpus_is_kept_apart(tmp_path):
    cpus = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}, {"NUMBA_CPU_NAME": "generic"}
    for expected in ("3 0\n", "3 1\n"):
        for cpu in cpus:
            assert serve(NUMBA_CACHE_DIR=str(tmp_path), **cpu) == (expected, "")


CROWD = """
import os
from rnnkit_kernels.machine.cache import Folder
folder = Folder(os.environ["NUMBA_CACHE_DIR"], "rnnkit", "digest")
for turn in range(150):
    folder.write("entry", bytes([turn % 256]) * (1 + 50_000 * (turn % 3)))
    data = folder.read("entry")
    assert data and len(set(data)) == 1
"""


def test_processes_that_write_at_once_leave_whole_entries(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    crowd = [subprocess.Popen([sys.executable, "-c", CROWD], env=environment) for _ in range(4)]
    assert [process.wait() for process in crowd] == [0] * 4
    assert [path.name for path in Path(tmp_path, "rnnkit", "digest").iterdir()] == ["entry"]


WARM = """
import sys
import numpy as np
import rnnkit
from rnnkit_kernels import stack
desc = rnnkit.RNNDescriptor("rnn_tanh", 2, 3)
y = rnnkit.infer(desc, rnnkit.init_weights(desc, seed=0), np.ones((2, 1, 2), np.float32)).y
print(sum(stack.run_stack.stats.cache_hits.values()), len(y), "numba.np.linalg" in sys.modules)
"""
ADDRESS = """
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from rnnkit_kernels.machine.jit import kernel

@intrinsic
def address(typingctx):
    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [])
        return builder.ptrtoint(cgutils.get_or_insert_function(builder.module, kind, "NRT_get_api"), ir.IntType(64))

    return types.int64(), generate

@kernel
def found():
    return address()

print(found() != 0, sum(found.stats.cache_hits.values()))
"""
PROGRAMS = [
    pytest.param(WARM, "0 2 True\n", "1 2 False\n", id="without Numba's compiler"),
    pytest.param(ADDRESS, "True 0\n", "True 1\n", id="with Numba's symbols"),
]


@pytest.mark.parametrize(("text", "cold", "warm"), PROGRAMS)
def test_warm_code_loads_only_what_it_calls(tmp_path, text, cold, warm):
    """Without the symbols of a call LLVM would end the process."""
    script = tmp_path / "script.py"
    script.write_text(text)
    run = f"import runpy\nrunpy.run_path({str(script)!r})"
    for expected in (cold, warm):
        assert serve(run, NUMBA_CACHE_DIR=str(tmp_path)) == (expected, "")


# NUMBA_CACHE_DIR, XDG_CACHE_HOME, HOME (None: unset) -> the folder of caches; the account's home is /account.
ROOTS = [("/n", "/x", "/h", "/n"), ("n", "/x", "/h", "n"), ("", "/x", "/h", "/x"), ("", "/x", "", "/x")]
ROOTS += [("", xdg, "/h", "/h/.cache") for xdg in (None, "", "x", "~/x")]
ROOTS += [("", None, "h", ""), ("", "x", "h", ""), ("", None, "", ""), ("", None, None, "/account/.cache")]


@pytest.mark.parametrize(("numba_dir", "xdg", "home", "expected"), ROOTS)
def test_root_is_the_first_absolute_folder(monkeypatch, numba_dir, xdg, home, expected):
    pwd = pytest.importorskip("pwd")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(("", "", uid, 0, "", "/account", "")))
    monkeypatch.setattr(numba.config, "CACHE_DIR", numba_dir)
    for name, value in (("XDG_CACHE_HOME", xdg), ("HOME", home)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert cache.root() == expected
