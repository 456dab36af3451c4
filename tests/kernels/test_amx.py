"""Products on tile registers (AMX): emulated, as few machines have them; and what is asked of Linux before."""

import ctypes
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from compiled import for_python
from installed import needs_installed
from llvmlite import binding, ir
from repository import SUPPORT

from rnnkit.call.arena import Arena
from rnnkit_kernels.machine import amx, gemm, packing, sync
from rnnkit_kernels.machine.amx import TILE_ROWS
from rnnkit_kernels.machine.amx_product import tiles_of
from rnnkit_kernels.machine.amx_tile import AmxTile, configure_function, release_function
from rnnkit_kernels.machine.formats import (
    ROWS_AT_ONCE,
    Bfloat16,
    Bfloat16Tiles,
    Bfloat16Wide,
    Int8Tiles,
    TiledBfloat16,
)
from rnnkit_kernels.machine.gemm import Packed
from rnnkit_kernels.machine.matrix import Matrix, Range
from rnnkit_kernels.machine.registers import VECTOR_BYTES
from rnnkit_kernels.machine.sync import Team

_product, _pack_columns = map(for_python, (gemm.product, packing.pack_columns))

PLANS = """
import hashlib, json, os, sys, warnings
import numpy as np
import rnnkit
from rnnkit_kernels.machine import amx

SIZES = {
    "lstm": [(5, 5, 1, 0, 1), (64, 17, 1, 1, 1), (33, 100, 2, 0, 1), (96, 40, 1, 0, 1e18), (96, 40, 1, 0, 1e-25)],
    "gru": [(16, 16, 2, 1, 1), (300, 70, 1, 0, 1)],
    "rnn_tanh": [(26, 40, 1, 0, 1), (128, 33, 1, 0, 1)],
}
if os.environ.get("REFUSED"):
    amx.has_tiles = lambda: False
found, rng = {}, np.random.default_rng(0)
warnings.simplefilter("ignore", RuntimeWarning)


def digest(*arrays):
    return hashlib.sha256(b"".join(np.where(np.isnan(one), 7, one).tobytes() for one in arrays)).hexdigest()


cases = [(form, mode, *one) for form in ("bfloat16", "int8") for mode, sizes in SIZES.items() for one in sizes]
for form, mode, input_size, hidden_size, layers, both, scale in cases:
    desc = rnnkit.RNNDescriptor(mode, input_size, hidden_size, layers, bool(both))
    w = rnnkit.init_weights(desc, seed=0) * np.float32(scale)
    plan = rnnkit.prepare(desc, w, precision=form)
    for count in (1, 2, 5, 16, 17, 33, 100):
        x = rng.standard_normal((3, count, input_size), np.float32) / np.float32(scale)
        if scale != 1:
            x[1, count // 2, 0], x[2, 0, -1] = np.nan, np.inf
        given = {} if count % 2 else {"lengths": rng.integers(0, 4, count)}
        y, hy, _ = plan.infer(x, **given)
        name = f"{form} {mode} {desc} {scale} {count}"
        found[name] = digest(y, hy)
        if form == "bfloat16" and count in (1, 5, 33):
            result = rnnkit.forward(desc, w, x, **given, precision=form)
            gradients = rnnkit.backward(desc, w, result.workspace, result.y)
            found[f"training {name}"] = digest(result.y, gradients.dx, gradients.dhx, gradients.dw)
if "fork" in sys.argv:  # the last digest again, in a child
    child = os.fork()
    if child == 0:
        os._exit(not np.array_equal(plan.infer(x, **given).y, y, equal_nan=True))
    assert os.waitpid(child, 0)[1] == 0
print(json.dumps(found))
"""


def run(*arguments, **environment):
    """What a script prints, as JSON."""
    command, environment = [sys.executable, *arguments], os.environ | environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.nightly
@pytest.mark.skipif(VECTOR_BYTES != 64, reason="panels of a CPU without AVX-512 fit no tiles")
def test_tile_registers_give_the_bits_of_vector_registers(tmp_path):
    """Also in a process that was refused, with the machine code of one that was not in its cache; in a fork, on more
    threads than cores, and on the CPU's own tile registers."""
    needs_installed("cc")
    script, library, counts = (tmp_path / name for name in ("plans.py", "amx.so", "counts"))
    script.write_text(PLANS)
    options = "-O2", "-shared", "-fPIC", "-ffp-contract=off", "-mfma"
    subprocess.run(["cc", *options, "-o", library, SUPPORT / "emulated_amx.c", "-lm"], check=True)
    emulated = SUPPORT / "emulated_amx.py", library, counts, script
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    found = run(*emulated, "fork", **cache)
    products = json.loads(counts.read_text())
    assert products["tdpbf16ps"] > 1000 and products["tdpbusd"] > 1000
    assert run(script, REFUSED="1", **cache) == found
    assert run(*emulated, NUMBA_NUM_THREADS="16", **cache) == found
    if amx.has_tiles():
        assert run(script, "fork", NUMBA_CACHE_DIR=str(tmp_path / "real")) == found


def test_registers_hold_the_rows_of_each_tile_and_no_others():
    """A second register has the last rows, some of which the first may have too."""
    tiles_of_rows = for_python(tiles_of)
    for count in range(1, ROWS_AT_ONCE + 1):
        tiles, height = tiles_of_rows(count)
        for number in range(tiles):
            start, stop = count * number // tiles, count * (number + 1) // tiles
            assert height <= TILE_ROWS and height <= stop - start <= 2 * height


def _flushed(values):
    return np.where(np.abs(values) < 2.0**-126, np.copysign(np.float32(0), values), values)


def _bfloat16_sums(start, a, b):
    """What tile registers compute: for 32 factors at a time a chain of the even and one of the odd ones."""
    total = _flushed(start)
    for first in range(0, a.shape[1], 32):
        chains = []
        for half in range(2):
            chain = np.zeros(start.shape, np.longdouble)
            for k in range(first + half, min(first + 32, a.shape[1]), 2):
                chain = (chain + a[:, k, None].astype(np.longdouble) * b[k]).astype(np.float32).astype(np.longdouble)
            chains.append(chain.astype(np.float32))
        total = _flushed(total + (chains[0] + chains[1]))
    return total


@pytest.mark.parametrize(
    ("kind", "form"), [(Bfloat16, Bfloat16Wide), *[(TiledBfloat16, Bfloat16Tiles)] * amx.has_tiles()]
)
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(("count", "units", "gates", "depth"), [
    (1, 16, 4, 64), (2, 60, 1, 64), (5, 16, 4, 64), (16, 48, 3, 96), (17, 20, 4, 64), (33, 80, 1, 64), (70, 20, 2, 64),
])  # fmt: skip
def test_sums_of_bfloat16_start_from_what_is_there(kind, form, in_order, count, units, gates, depth):
    """Down to subnormal numbers, which count as 0 there and as a result."""
    rng, columns = np.random.default_rng(count), gates * units
    given = [(rng.integers(-9, 10, n) * 2.0**-58).astype(np.float32) for n in ((count, depth), (columns, depth))]
    a, w = (np.where(np.abs(one) < 2.0**-56, np.float32(0), one) for one in given)  # what is multiplied
    words, numbers = form.words(depth), np.arange(max(count, columns))
    size = packing.panel_size(words, units, gates, 4)
    scratch = Arena().take("scratch", (count * form.row_size(words, form.parts),), np.dtype(np.float32))
    panels = kind(Arena().take("words", (size,), np.dtype(np.float32)), scratch, scratch.size, numbers)
    alone = Team(0, 1, np.zeros(sync.sync_size(1), np.int64))
    _pack_columns(panels, Matrix(given[1].reshape(-1), numbers[:columns], 0, depth), units, gates, alone)
    packed = Packed(panels, depth, units, tuple(range(0, columns, units)))
    sums = _bfloat16_sums(np.zeros((count, columns), np.float32), a, w.T)
    # Columns in turn: the products leave a subnormal number, they meet one, they meet another number.
    start = np.choose(np.arange(columns) % 3, [-sums * (1 + 2.0**-20), np.full_like(sums, 1e-40), -2 * sums])
    start = start.astype(np.float32)
    order = np.arange(count) if in_order else rng.permutation(count)
    bias = np.zeros(columns + 16, np.float32)
    bias[:columns] = start[0]
    for overwrite in (False, True):
        stride = columns + 16
        c = np.full((count, stride), 7, np.float32)
        c[:, :columns] = start
        _product(
            Matrix(c.reshape(-1), order, 0, stride), Matrix(given[0].reshape(-1), order, 0, depth),
            Range(0, count), packed, Range(0, -(-units // (VECTOR_BYTES // 4))), bias, overwrite, False,
        )  # fmt: skip
        first = np.broadcast_to(start[0], start.shape) if overwrite else start
        expected = _bfloat16_sums(first, a, w.T)
        assert (expected == 0).any() and np.array_equal(c[:, :columns].view(np.int32), expected.view(np.int32))
        assert (c[:, columns:] == 7).all()


@pytest.mark.parametrize("form", [Bfloat16Tiles, Int8Tiles])
@pytest.mark.parametrize("gates", [1, 3, 4, 8])
def test_instructions_are_those_of_tile_registers(form, gates):
    """Assembled for a CPU that has them."""
    module = ir.Module()
    function = AmxTile(module, form, ir.FloatType(), 32, gates).function()
    others = configure_function(module), release_function(module)
    for one in (function, *others):
        one.linkage = "external"
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = "+avx512f,+avx512vl,+fma,+amx-tile,+amx-int8,+amx-bf16"
    target = binding.Target.from_triple("x86_64-linux-gnu").create_target_machine(features=features)
    text = target.emit_assembly(binding.parse_assembly(str(module)))
    product = {"bf16ps": "tdpbf16ps", "busd": "tdpbusd"}[form.tiles]
    loads = 2 * gates + 2 * ((gates + 1) // 2) + (gates + 3) // 4  # of A and panels
    starts = text.count("tilezero\t") if form is Int8Tiles else text.count("tileloadd\t") - loads
    assert text.count(f"{product}\t") == starts == text.count("tilestored\t") == 3 * gates
    assert text.count("ldtilecfg\t") == 1 and text.count("tilerelease") == 1


@pytest.fixture
def asked(monkeypatch):
    """The requests to a Linux that answers with `asked.answer`, on a CPU with tile registers."""
    library = SimpleNamespace(answer=0, calls=[])
    library.syscall = lambda *arguments: library.calls.append(arguments) or library.answer
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(amx, "FEATURES", amx._FEATURES)
    monkeypatch.setattr(amx, "VECTOR_BYTES", 64)
    return library


@pytest.mark.parametrize(("answer", "expected"), [(0, True), (-1, False)])
def test_permission_is_asked_for_and_may_be_refused(asked, answer, expected):
    asked.answer = answer
    assert amx.has_tiles.__wrapped__() is expected
    assert asked.calls == [(158, 0x1023, 18)]


@pytest.mark.parametrize("lacking", ["amx-tile", "amx-bf16", "avx512vnni", "linux", "AVX-512"])
def test_nothing_is_asked_for_where_something_is_lacking(asked, lacking, monkeypatch):
    if lacking == "linux":
        monkeypatch.setattr(sys, "platform", "win32")
    elif lacking == "AVX-512":
        monkeypatch.setattr(amx, "VECTOR_BYTES", 32)
    else:
        monkeypatch.setattr(amx, "FEATURES", amx._FEATURES - {lacking})
    assert not amx.has_tiles.__wrapped__() and not asked.calls


def test_import_asks_for_nothing():
    """A process with a small signal stack could not set it up any more."""
    script = "import rnnkit; net = rnnkit.LSTM(3, 5, seed=0); net.prepare(); from rnnkit_kernels.machine import amx; "
    for plan, asked in (("", 0), ("net.prepare(precision='int8'); ", 1)):
        text = f"{script}{plan}print(amx.has_tiles.cache_info().currsize)"
        assert run("-c", text) == asked
