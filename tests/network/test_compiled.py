"""Steps of a network in a user's compiled code: the bits of plans, and handles that cannot be misused."""

import copy
import gc
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
from combinations import nightly
from messages import raises
from numba.core.errors import TypingError
from other_cells import KINDS, whole_heads

import rnnkit
from rnnkit import compiled
from rnnkit_kernels.handles import BUSY, MAGIC

CASES = [
    ("lstm", {}, None), ("gru", {"num_layers": 2, "dtype": "float64"}, None), ("lstm", {}, "int8"),
    *(nightly("lstm", {"proj_size": 3}, form) for form in (None, "bfloat16", "int8")),
    *(nightly(name, {}, form) for name in KINDS for form in (None, "int8")),
]  # fmt: skip


@numba.njit
def run(handle, xs, ys, h, *cells):
    for t in range(len(xs)):
        compiled.step(handle, xs[t], h, *cells)
        ys[t] = h[-1]


def arrays_of(desc, steps=20):
    """x, y, and the states, one array of h and one of the others or none."""
    dtype = desc.np_dtype
    x = np.random.default_rng(0).standard_normal((steps, desc.row_size)).astype(dtype)
    h = np.full((desc.num_layers, desc.output_size), 0.25, dtype)
    cells = [np.full((desc.num_layers, desc.states_size), 0.25, dtype)] if desc.has_cell_state else []
    return x, np.empty((steps, desc.output_size), dtype), h, cells


@pytest.mark.parametrize(("name", "options", "precision"), CASES)
def test_steps_and_sequences_have_the_bits_of_plans(name, options, precision):
    kind = KINDS.get(name, name)
    units = 17 if isinstance(kind, str) else whole_heads(kind, 17)
    net = rnnkit.Network(kind, 5, units, seed=0, **options)
    plan, desc = net.prepare(precision=precision), net.desc
    x, ys, h, cells = arrays_of(desc)
    hx, cx = h[:, None].copy(), [one[:, None].copy() for one in cells]
    features, inputs = x[:, None, : desc.input_size], {}
    for number, one in enumerate(desc.cell.declaration.inputs):
        start = desc.input_size + number * units
        inputs[one.name] = x[:, None, start : start + units]
    states = tuple(np.split(cx[0], len(desc.states), axis=2)) if len(desc.states) > 1 else (cx or [None])[0]
    expected = plan.infer(np.ascontiguousarray(features), hx, states, inputs=inputs or None)
    handle = plan.compiled()
    run(handle, x, ys, h, *cells)
    np.testing.assert_array_equal(ys, expected.y[:, 0])
    np.testing.assert_array_equal(h, expected.hy[:, 0])
    if cells:
        last = np.concatenate(expected.cy, axis=2) if isinstance(expected.cy, tuple) else expected.cy
        np.testing.assert_array_equal(cells[0], last[:, 0])
    for steps in (20, 7, 1, 0):
        _, y, *_ = arrays_of(desc, steps)
        h[:] = 0.25
        for one in cells:
            one[:] = 0.25
        compiled.infer(handle, x[:steps], y, h, *cells)
        np.testing.assert_array_equal(y, ys[:steps])
        if steps:
            np.testing.assert_array_equal(h[-1], ys[steps - 1])


@numba.njit(parallel=True)
def run_many(handles, xs, h, steps):
    for n in numba.prange(len(handles)):
        for _ in range(steps):
            compiled.step(handles[n], xs[n], h[n])


def test_handles_of_many_threads():
    net = rnnkit.GRU(4, 6, seed=0)
    handles, x = net.prepare().compiled(5), np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    h = np.zeros((5, 1, 6), np.float32)
    run_many(handles, x, h, 30)
    expected = net.infer(np.repeat(x[None], 30, axis=0)).hy
    np.testing.assert_array_equal(h[:, 0], expected[0])


CACHED = """
import sys
import numba, numpy as np
import rnnkit
from rnnkit import compiled

@numba.njit(cache=True)
def run(handle, xs, h):
    for t in range(len(xs)):
        compiled.step(handle, xs[t], h)

h = np.zeros((1, int(sys.argv[1])), np.float32)
net = rnnkit.GRU(4, h.size, seed=0)
run(net.prepare().compiled(), np.ones((9, 4), np.float32), h)
assert np.array_equal(h, net.infer(np.ones((9, 1, 4), np.float32)).hy[:, 0])
print(sum(run.stats.cache_hits.values()))
"""


def test_compiled_code_of_a_program_is_cached(tmp_path):
    """Also for another network of the dtype."""
    script = tmp_path / "program.py"
    script.write_text(CACHED)
    found = [subprocess.check_output([sys.executable, script, size], text=True).strip() for size in ("6", "7")]
    assert found == ["0", "1"]


@pytest.fixture
def ready():
    """A handle of a GRU with one layer of 6 units and 4 features, and the arrays of a step."""
    plan = rnnkit.GRU(4, 6, seed=0).prepare()
    return plan.compiled(), np.ones(4, np.float32), np.zeros((1, 6), np.float32)


def test_handle_keeps_its_plan_alive(ready):
    handle, x, h = ready
    gc.collect()
    compiled.step(handle, x, h)
    expected = rnnkit.GRU(4, 6, seed=0).infer(np.ones((1, 1, 4), np.float32)).hy
    np.testing.assert_array_equal(h, expected[:, 0])


@pytest.mark.parametrize("change", [np.copy, copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_are_refused(ready, change):
    handle, x, h = ready
    with raises(ValueError, "compiled: handle | plan.compiled() | copy"):
        compiled.step(change(handle), x, h)
    compiled.step(handle, x, h)


def test_no_handle_and_that_of_another_version_are_refused(ready):
    handle, x, h = ready
    for other in (np.zeros(0, np.int64), np.zeros(9, np.int64), np.zeros_like(handle)):
        with raises(ValueError, "compiled: handle | plan.compiled()"):
            compiled.step(other, x, h)
    handle[MAGIC] += 1
    with raises(ValueError, "compiled: handle | version"):
        compiled.step(handle, x, h)


def test_forked_child_needs_a_handle_of_its_own():
    net = rnnkit.GRU(4, 6, seed=0)
    handle, x, h = net.prepare().compiled(), np.ones(4, np.float32), np.zeros((1, 6), np.float32)
    compiled.step(handle, x, h)
    child = os.fork()
    if child == 0:
        try:
            compiled.step(handle, x, h)
        except RuntimeError as error:
            compiled.step(net.prepare().compiled(), x, h)
            os._exit("fork" not in str(error))
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_handle_in_use_is_refused(ready):
    handle, x, h = ready
    handle[BUSY] = 1
    with raises(RuntimeError, "compiled: handle | one thread | plan.compiled(count)"):
        compiled.step(handle, x, h)


@numba.njit(nogil=True)
def many_steps(handle, x, h, count):
    for _ in range(count):
        compiled.step(handle, x, h)


def test_two_threads_with_one_handle_raise_and_do_not_mix():
    net = rnnkit.GRU(4, 200, seed=0)
    handle, expected = net.prepare().compiled(), net.infer(np.ones((20000, 1, 4), np.float32)).hy

    def work(_):
        h = np.zeros((1, 200), np.float32)
        try:
            many_steps(handle, np.ones(4, np.float32), h, 20000)
            return np.array_equal(h, expected[:, 0])
        except RuntimeError as error:
            return "thread" in str(error)

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(work, range(3)))


def test_wrong_sizes_are_refused_and_leave_the_handle_free(ready):
    handle, x, h = ready
    y = np.empty((2, 6), np.float32)
    for arguments in ((x[:3], h), (x, h[:, :5].copy()), (x, np.zeros((2, 6), np.float32)), (x, h, h)):
        with raises(ValueError, "compiled.step: x | row | states"):
            compiled.step(handle, *arguments)
    for arguments in (
        (np.ones((2, 4), np.float32), y[:1], h),
        (np.ones(7, np.float32), y, h),
        (np.ones((2, 4), np.float32), y, h, h),
    ):
        with raises(ValueError, "compiled.infer: x | rows | states"):
            compiled.infer(handle, *arguments)
    compiled.step(handle, x, h)


def test_other_dtypes_and_layouts_are_refused(ready):
    handle, x, h = ready
    with raises(TypeError, "compiled: x | dtype of the network"):
        compiled.step(handle, x.astype(np.float64), h.astype(np.float64))
    for arguments in (
        (handle, x, h.astype(np.float64)),
        (handle, x, np.zeros((6, 2), np.float32).T),
        (handle, x.astype(int), h),
    ):
        with pytest.raises(TypingError, match="compiled.step: "):
            compiled.step(*arguments)
    fixed = h.copy()
    fixed.flags.writeable = False
    with pytest.raises(TypingError, match="compiled.step: h must be writeable"):
        compiled.step(handle, x, fixed)
    for other in (handle.astype(np.int32), handle[::2], 5):
        with pytest.raises(TypingError, match="compiled.step: handle"):
            compiled.step(other, x, h)
    compiled.step(handle, x, h)


def test_wrong_counts_and_networks_are_refused():
    plan = rnnkit.GRU(4, 6).prepare()
    for count, got in ((0, "0"), (-1, "-1"), (True, "bool"), (1.5, "float")):
        with raises(TypeError if got.isalpha() else ValueError, f"compiled: count | {got}"):
            plan.compiled(count)
    with raises(ValueError, "compiled: desc.bidirectional | infer"):
        rnnkit.GRU(4, 6, bidirectional=True).prepare().compiled()


def test_plan_on_a_gpu_is_refused(standin):
    import cupy

    with raises(rnnkit.BackendError, "compiled: plan | CPU"):
        rnnkit.GRU(4, 6).to(cupy).prepare().compiled()
