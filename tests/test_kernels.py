"""The kernels by themselves: activations against higher precision, products against NumPy, the team, the cache."""

import os
import shutil
import subprocess
import sys
import threading
import time

import numba
import numpy as np
import pytest

from rnnkit.kernels import barrier, gemm, jit, sharing, team, tile, weight_gradient
from rnnkit.kernels.activations import sigmoid, tanh
from rnnkit.kernels.barrier import _add, _wait, gather, load, meet, publish
from rnnkit.kernels.jit import kernel
from rnnkit.kernels.matrix import Matrix
from rnnkit.kernels.sharing import claim, divide, turns
from rnnkit.kernels.weight_gradient import Term, Terms, room

DTYPES = ("float32", "float64")
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1000.0, -1000.0)


@kernel
def _all_tanh(x, y):
    for i in range(x.size):
        y[i] = tanh(x[i])


@kernel
def _all_sigmoid(x, y):
    for i in range(x.size):
        y[i] = sigmoid(x[i])


def _logistic(x):
    return np.where(x < 0, np.exp(-np.abs(x)), 1) / (1 + np.exp(-np.abs(x)))


def _sweep(dtype):
    rng = np.random.default_rng(0)
    tiny = rng.normal(size=200_000) * 10.0 ** rng.uniform(-12, 2, 200_000)
    return np.concatenate([np.linspace(-20, 20, 400_001), np.linspace(-800, 800, 100_001), tiny, SPECIAL]).astype(dtype)


# In units in the last place, relative, over the whole range.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("compiled", "exact", "bound"), [(_all_tanh, np.tanh, 2.0), (_all_sigmoid, _logistic, 3.0)])
def test_activations_are_accurate(compiled, exact, bound, dtype):
    x = _sweep(dtype)
    y = np.empty_like(x)
    compiled(x, y)
    with np.errstate(under="ignore"):
        expected = exact(x.astype(np.longdouble))
    assert np.array_equal(np.isnan(y), np.isnan(x))
    number = ~np.isnan(x)
    unit = np.spacing(np.abs(expected[number]).astype(dtype)).astype(np.longdouble)
    error = np.abs(y[number].astype(np.longdouble) - expected[number]) / unit
    worst = int(error.argmax())
    assert error[worst] <= bound, f"{error[worst]:.2f} units at {x[number][worst]!r}"
    low = -1 if exact is np.tanh else 0
    assert y[number].min() >= low and y[number].max() <= 1


def test_tanh_keeps_the_sign_of_zero():
    y = np.empty(2)
    _all_tanh(np.array([0.0, -0.0]), y)
    assert np.signbit(y).tolist() == [False, True]


def _for_python(inner):
    """A function that only kernels call, compiled so that a test can call it."""
    return numba.njit(**jit.OPTIONS | {"no_cpython_wrapper": False})(inner.py_func)


_pack_rows, _product, _vectors_of = map(_for_python, (gemm.pack_rows, gemm.product, gemm.vectors_of))
_pack_sources, _add_weight_gradients = map(
    _for_python, (weight_gradient.pack_sources, weight_gradient.add_weight_gradients)
)


def _flat(array):
    return array.reshape(-1)


def _rows(array, rows=None):
    rows = np.arange(len(array)) if rows is None else rows
    return Matrix(_flat(array), rows, 0, array.shape[1])


def _packed(b):
    panels = np.full(gemm.panel_size(*b.shape, 1, b.itemsize), np.nan, b.dtype)
    _pack_rows(panels, _rows(b), 0, len(b), b.shape[1], 0, 1)
    return panels


def _multiply(c, a, b, fresh):
    """The whole of c = (0 if fresh else c) + a @ b."""
    tile.provide(c.dtype, 1)
    vectors, zeros = _vectors_of(c.reshape(-1), c.shape[1]), np.zeros(c.shape[1], c.dtype)
    rows, depth = a.shape
    _product(_rows(c), _rows(a), 0, rows, depth, _packed(b), 0, vectors, c.shape[1], (0,), zeros, fresh)


def _chains(start, a, b):
    """start + a @ b as chains of fused multiply-adds, k ascending, in a precision that hides no other order."""
    total = start.astype(np.longdouble)
    for k in range(a.shape[1]):
        term = a[:, k, None].astype(np.longdouble) * b[k].astype(np.longdouble)
        total = (total + term).astype(a.dtype).astype(np.longdouble)
    return total.astype(a.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 5, 6, 7, 8, 9, 21])
@pytest.mark.parametrize("units", [1, 7, 8, 16, 17, 33, 64, 65])
def test_a_product_is_chains_of_fused_multiply_adds(dtype, count, units):
    """Bit for bit, for every number of rows and columns: float32 products are exact in the wider type."""
    rng = np.random.default_rng(count * 100 + units)
    a, b = rng.normal(size=(count, 19)).astype(dtype), rng.normal(size=(19, units)).astype(dtype)
    c = rng.normal(size=(count, units)).astype(dtype)
    expected = _chains(c, a, b)
    _multiply(c, a, b, fresh=False)
    if dtype == "float32":
        assert np.array_equal(c, expected)
    else:  # a longdouble has too few bits to hold a float64 product exactly
        np.testing.assert_allclose(c, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [0, 1, 3, 4, 5, 1023, 1024, 1030])
def test_a_product_of_any_depth(dtype, depth):
    rng = np.random.default_rng(depth)
    a, b = rng.normal(size=(9, depth)).astype(dtype), rng.normal(size=(depth, 35)).astype(dtype)
    c = np.full((9, 35), np.nan, dtype)
    _multiply(c, a, b, fresh=True)
    np.testing.assert_allclose(c, a.astype("f8") @ b.astype("f8"), atol=2e-4 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize(("count", "columns", "units"), [(1, 1, 1), (17, 5, 3), (500, 230, 17), (40, 97, 64)])
def test_weight_gradients_over_chosen_rows(dtype, members, count, columns, units):
    """Only listed rows and the term's columns count: the others hold NaN. The columns belong to rows in any order."""
    rng = np.random.default_rng(count)
    chosen, order = rng.permutation(2 * count)[:count], rng.permutation(columns)
    dgates, source = np.full((2 * count, columns + 3), np.nan, dtype), np.full((2 * count, units), np.nan, dtype)
    dgates[chosen, 2 : columns + 2] = rng.normal(size=(count, columns))
    source[chosen] = rng.normal(size=(count, units))
    dw, nothing = np.ones((columns * (units + 1),), dtype), np.empty(0, dtype)
    size = dw.itemsize
    block = np.empty(gemm.panel_size(gemm.depth_block(size), units, 1, size), dtype)
    start = columns  # the bias stands in front of the matrix
    term = Term(2, Matrix(dw, order, start, units), 0, _rows(source, chosen), nothing, block)
    absent = Term(0, Matrix(dw, np.arange(0), 0, 0), -1, _rows(source), nothing, nothing)
    terms = Terms(absent, term, absent, absent)
    work = np.full(room(columns + 3, members, size), np.nan, dtype)
    tile.provide(dw.dtype, 1)
    sync = np.zeros(barrier.sync_size(members), np.int64)
    for member in range(members):
        _pack_sources(terms, 0, count, member, members)
    for member in range(members):
        matrix = _rows(dgates, chosen)
        _add_weight_gradients(terms, dw, matrix, 0, count, work, np.arange(columns + 3), member, members, sync)
    valid = dgates[chosen, 2 : columns + 2].astype("f8")
    tolerance = 2e-4 if dtype == "float32" else 1e-11
    np.testing.assert_allclose(dw[start:].reshape(columns, units)[order], 1 + valid.T @ source[chosen], atol=tolerance)
    np.testing.assert_allclose(dw[:start][order], 1 + valid.sum(axis=0), atol=tolerance)


@kernel
def _sign(seen, member, members, sync):
    publish(sync, member, members)
    members = gather(sync, member, members)
    seen[member] = members
    meet(sync, members)


MUCH, LITTLE, BRIEF = 10**13, 10**7, 10**6  # multiply-adds: the caller waits for helpers half of what they take
KIND = "test"


class _Trouble(Exception):
    pass


def _wait_until_asleep():
    (helper,) = team._team.helpers
    deadline = time.monotonic() + 20
    while not helper.asleep and time.monotonic() < deadline:
        os.sched_yield()
    assert helper.asleep


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr(team, "wanted_size", lambda: 2)


@pytest.mark.parametrize(("work", "expected"), [(MUCH, [2, 2]), (1, [1, 0])])
def test_large_work_is_shared_and_small_work_is_not(two_threads, work, expected):
    seen = np.zeros(2)
    team.run(_sign, KIND, work, seen)
    assert seen.tolist() == expected


@pytest.mark.parametrize("size", [3, 4])
def test_every_member_has_its_own_number(monkeypatch, size):
    monkeypatch.setattr(team, "wanted_size", lambda: size)
    for _ in range(20):
        seen = np.zeros(size)
        team.run(_sign, KIND, MUCH, seen)
        assert seen.tolist() == [size] * size


@kernel
def _meet_in_crews(seen, turns, tasks, apart, member, members, sync):
    """Rows of `seen`, for each member: what `divide` says, turns so far, turns in which the neighbour was missing."""
    publish(sync, member, members)
    members = gather(sync, member, members)
    first, last, own, crew, crew_sync = divide(tasks, apart, member, members, sync)
    seen[member, 0], seen[member, 1], seen[member, 2], seen[member, 3] = first, last, own, crew
    neighbour = member - own + (own + 1) % crew
    for turn in range(turns * (first + 1)):  # at its own pace
        seen[member, 4] = turn + 1
        meet(crew_sync, crew)
        seen[member, 5] += seen[neighbour, 4] <= turn
    meet(sync, members)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_independent_tasks_have_crews_that_meet_by_themselves(monkeypatch, size, tasks, apart):
    monkeypatch.setattr(team, "wanted_size", lambda: size)
    team.run(_meet_in_crews, KIND, MUCH, np.zeros((size, 6), np.int64), 300, tasks, apart)
    if size > 1:
        team._team.sync[barrier.ARRIVED :: team._team.sync.size // barrier.CREWS] += 1  # as after crews of other sizes
    seen = np.zeros((size, 6), np.int64)
    team.run(_meet_in_crews, KIND, MUCH, seen, 300, tasks, apart)
    if apart and size % tasks == 0:
        crew = size // tasks
        wanted = [[member // crew, member // crew + 1, member % crew, crew] for member in range(size)]
    else:
        wanted = [[0, tasks, member, size] for member in range(size)]
    assert seen[:, :4].tolist() == wanted
    assert not seen[:, 5].any()


@kernel
def _claim(seen, done, count, size, slow, member, members, sync):
    """Rows of `seen`: by whom, counted from 1, each piece was worked on in a round; `done` is how many, of all members.

    The slow member does nothing behind its first range of a round until all the others are done with all the rest.
    """
    publish(sync, member, members)
    members = gather(sync, member, members)
    for number in range(len(seen)):
        for turn in range(turns(count, size, members)):
            first, last = claim(turn, count, size, member, members, sync)
            for piece in range(first, last):
                seen[number, piece] = 10 * seen[number, piece] + member + 1
            _add(done, number, last - first)
            spins = 0
            while member == slow and first < last and load(done, number) < count:
                spins = _wait(spins)
        meet(sync, members)


def _shares(count, members):
    return np.searchsorted(np.arange(members + 1) * count // members, np.arange(count), side="right")


@pytest.mark.parametrize(("count", "size"), [(0, 3), (1, 3), (7, 3), (64, 8), (100, 1), (9, 0), (0, 0)])
@pytest.mark.parametrize("members", [1, 2, 3, 4])
def test_every_piece_is_one_members(monkeypatch, members, count, size):
    """In every round and call, whoever comes late: without a size the piece's owner's."""
    monkeypatch.setattr(team, "wanted_size", lambda: members)
    for slow in range(-1, members if members > 1 else 0):
        seen = np.zeros((50, count))
        team.run(_claim, KIND, MUCH, seen, np.zeros(50, np.int64), count, size, slow)
        assert np.all((seen >= 1) & (seen <= members))
        if size == 0:
            assert np.array_equal(seen, np.broadcast_to(_shares(count, members), seen.shape))


@pytest.mark.parametrize("arrived", [0, 3, 2**43 - 1, 2**43 + 1])
def test_a_member_begins_with_its_own_share(arrived):
    """Also after so many meetings that the count of what is taken wraps, behind an earlier loop or none."""
    claim_piece, sync = _for_python(claim), np.zeros(barrier.sync_size(2), np.int64)
    sync[[barrier.ARRIVED, barrier.BASE]] = arrived
    assert [claim_piece(turn, 64, 4, 0, 2, sync) for turn in range(16)] == [(4 * n, 4 * n + 4) for n in range(16)]
    sync[barrier.ARRIVED] += 2  # a meeting
    assert [claim_piece(turn, 64, 4, 1, 2, sync) for turn in (0, 1, 7, 8)] == [(32, 36), (36, 40), (32, 32), (0, 4)]
    assert [claim_piece(turn, 64, 4, 0, 2, sync) for turn in (0, 1)] == [(0, 0), (4, 8)]


def test_a_slow_member_leaves_its_share_to_the_others(two_threads):
    seen = np.zeros((50, 64))
    team.run(_claim, KIND, MUCH, seen, np.zeros(50, np.int64), 64, 4, 0)
    assert np.all((seen == 1).sum(axis=1) <= 4)


def test_after_an_error_in_the_caller_the_next_call_works(two_threads, monkeypatch):
    """Also where the helpers have been called and wait for a kernel that is never entered."""

    def troubled(seen, member, members, sync):
        if member == 0:
            raise _Trouble
        _sign(seen, member, members, sync)

    monkeypatch.setitem(team._code, (troubled, KIND), troubled)
    seen = np.zeros(2)
    with pytest.raises(_Trouble):
        team.run(troubled, KIND, MUCH, seen)
    assert seen.tolist() == [0, 0]
    team.run(_sign, KIND, MUCH, seen)
    assert seen.tolist() == [2, 2]


def test_a_helper_that_comes_too_late_is_not_waited_for(two_threads, monkeypatch):
    """The caller goes on alone when its patience ends, and the helper finds the door closed."""
    late, seen = threading.Event(), np.zeros(2)

    def delayed(*arguments):
        late.wait()
        return serve(*arguments)

    team.run(_sign, KIND, MUCH, seen)
    _wait_until_asleep()
    serve = team._team.serve
    monkeypatch.setattr(team._team, "serve", delayed)
    seen[:] = 0
    team.run(_sign, KIND, LITTLE, seen)
    assert seen.tolist() == [1, 0]
    late.set()
    _wait_until_asleep()
    assert seen.tolist() == [1, 0]
    team.run(_sign, KIND, MUCH, seen)
    assert seen.tolist() == [2, 2]


def test_a_sleeping_helper_is_woken(two_threads):
    for _ in range(3):
        seen = np.zeros(2)
        team.run(_sign, KIND, MUCH, seen)
        assert seen.tolist() == [2, 2]
        _wait_until_asleep()


def test_brief_work_is_shared_by_helpers_that_are_awake(two_threads):
    """One call does not wake them; calls that follow each other closely do."""
    seen = np.zeros(2)
    team.run(_sign, KIND, MUCH, seen)
    _wait_until_asleep()
    seen[:] = 0
    number = team._team.number
    team.run(_sign, KIND, BRIEF, seen)
    assert team._team.number == number, "the team was called"
    assert seen.tolist() == [1, 0]
    deadline = time.monotonic() + 20
    while seen[1] == 0 and time.monotonic() < deadline:
        team.run(_sign, KIND, BRIEF, seen)
    assert seen.tolist() == [2, 2]


def test_the_number_of_threads_is_numbas():
    before = numba.get_num_threads()
    assert team.wanted_size() == before
    numba.set_num_threads(1)
    assert team.wanted_size() == 1
    numba.set_num_threads(before)


def test_an_edited_source_is_compiled_anew(tmp_path, monkeypatch):
    """Numba itself would serve the stale kernel where only a file that it calls into has changed."""
    sources = tmp_path / "kernels"
    shutil.copytree(jit._SOURCES, sources)
    monkeypatch.setattr(jit, "_SOURCES", sources)
    assert jit._cache_folder() == jit._FOLDER
    (sources / "activations.py").write_text("# edited\n")
    assert jit._cache_folder() != jit._FOLDER
    assert jit._cache_folder().parent == jit._FOLDER.parent


def test_what_only_kernels_call_says_so():
    with pytest.raises(TypeError, match="share is for kernels"):
        sharing.share(10, 1, 3)


def test_the_users_own_cache_folder_is_left_as_it_was():
    before = numba.config.CACHE_DIR
    kernel(lambda x: x)
    assert before == numba.config.CACHE_DIR


@pytest.mark.parametrize("place", ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME"])
def test_without_a_writeable_cache_it_works_all_the_same(tmp_path, place):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    program = (
        "import numpy as np\nfrom rnnkit.kernels.barrier import serve, sync_size\n"
        "print(serve(np.zeros(sync_size(1), np.int64), 3, 0))\n"
        "from rnnkit.kernels import jit\nassert not jit._writable(jit._FOLDER)\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": "", place: str(blocked)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "3\n"), run.stderr
