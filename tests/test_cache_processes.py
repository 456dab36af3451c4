"""The cache of compiled kernels in processes of their own: where it stands, and several at once."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from combinations import nightly

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
SMALL_FILES = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"


def serve(program=SERVE, cwd=None, **environment):
    """Run the program in a process of its own; what it prints, and the warnings."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": "", **environment}
    environment = {name: value for name, value in environment.items() if value is not None}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=cwd, capture_output=True, text=True, check=True
    )
    return run.stdout, run.stderr


@pytest.mark.parametrize("place", [nightly("NUMBA_CACHE_DIR"), "XDG_CACHE_HOME"])
def test_the_environment_says_where(place, tmp_path):
    assert serve(**{place: str(tmp_path)}) == ("3 0\n", "")
    assert serve(**{place: str(tmp_path)}) == ("3 1\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["rnnkit"]


def test_without_an_account_and_a_home_it_works_all_the_same(tmp_path):
    said, warned = serve(NO_ACCOUNT + SERVE, cwd=tmp_path, XDG_CACHE_HOME=None, HOME=None)
    assert said == "3 0\n"
    assert len(re.findall("kernel cache: .* absolute .*''", warned)) == 1
    assert list(tmp_path.iterdir()) == []


def test_without_room_for_a_file_it_works_all_the_same(tmp_path):
    pytest.importorskip("resource")
    said, warned = serve(SMALL_FILES + SERVE, NUMBA_CACHE_DIR=str(tmp_path), PYTHONDONTWRITEBYTECODE="1")
    assert said == "3 0\n"
    assert warned.count(f"kernel cache: {tmp_path}") == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_code_for_two_cpus_is_kept_apart(tmp_path):
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


def test_what_numba_has_to_compile_is_not_brought_for_a_kernel_that_is_there(tmp_path):
    assert serve(WARM, NUMBA_CACHE_DIR=str(tmp_path)) == ("0 2 True\n", "")
    assert serve(WARM, NUMBA_CACHE_DIR=str(tmp_path)) == ("1 2 False\n", "")


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


def test_code_that_refers_to_what_is_brought_is_loaded_too(tmp_path):
    """Without it LLVM would end the process."""
    program = tmp_path / "program.py"
    program.write_text(ADDRESS)
    run = f"import runpy\nrunpy.run_path({str(program)!r})"
    assert serve(run, NUMBA_CACHE_DIR=str(tmp_path)) == ("True 0\n", "")
    assert serve(run, NUMBA_CACHE_DIR=str(tmp_path)) == ("True 1\n", "")


MULTIPLIES = """
import os
import numpy as np
from rnnkit_kernels.machine.gemm import Packed, panel_size, product
from rnnkit_kernels.machine.jit import kernel
from rnnkit_kernels.machine.matrix import Matrix, Range

@kernel
def multiply(c, a, panels, bias):
    product(c, a, Range(0, 1), Packed(panels, 1, 1, (0,)), Range(0, 1), bias, True, False)

def multiplied():
    c, row = np.zeros(1), np.zeros(1, np.int64)
    panels = np.full(panel_size(1, 1, 1, 8), 2.0)
    multiply(Matrix(c, row, 0, 1), Matrix(np.full(1, 3.0), row, 0, 1), panels, np.zeros(1))
    return c[0]

print(multiplied(), sum(multiply.stats.cache_hits.values()), flush=True)
if child := os.fork():
    print(os.waitpid(child, 0)[1])
else:
    os._exit(int(multiplied()))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_kernel_that_multiplies_has_its_tiles_wherever_it_comes_from(tmp_path):
    """Compiled, from the cache, and in a child; without them it would call nothing, which ends the process."""
    program = tmp_path / "program.py"
    program.write_text(MULTIPLIES)
    run = f"import runpy\nrunpy.run_path({str(program)!r})"
    assert serve(run, NUMBA_CACHE_DIR=str(tmp_path)) == ("6.0 0\n1536\n", "")
    assert serve(run, NUMBA_CACHE_DIR=str(tmp_path)) == ("6.0 1\n1536\n", "")


# NUMBA_CACHE_DIR, XDG_CACHE_HOME, HOME (None: unset) -> the folder of caches; the account's home is /account.
ROOTS = [
    ("/n", "/x", "/h", "/n"), ("n", "/x", "/h", "n"), ("", "/x", "/h", "/x"), ("", None, "/h", "/h/.cache"),
    ("", "", "/h", "/h/.cache"), ("", "x", "/h", "/h/.cache"), ("", "~/x", "/h", "/h/.cache"), ("", None, "h", ""),
    ("", "x", "h", ""), ("", None, "", ""), ("", "/x", "", "/x"), ("", None, None, "/account/.cache"),
]


@pytest.mark.parametrize(("numba_dir", "xdg", "home", "expected"), ROOTS)
def test_the_folder_of_caches(monkeypatch, numba_dir, xdg, home, expected):
    pwd = pytest.importorskip("pwd")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(("", "", uid, 0, "", "/account", "")))
    monkeypatch.setattr(numba.config, "CACHE_DIR", numba_dir)
    for name, value in (("XDG_CACHE_HOME", xdg), ("HOME", home)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert cache.root() == expected
