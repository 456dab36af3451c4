"""Short calls: weights that are read where they are, to the same bits, and memory that is used again."""

import copy
import pickle

import numpy as np
import pytest
from combinations import pairs
from compiled import for_python
from idle import forget
from messages import raises
from other_cells import cases
from problems import FLOAT32, problem_of
from tolerances import GRADIENTS, OUTPUTS, assert_same_results

import rnnkit
from rnnkit.call import pool
from rnnkit.call.memory import Memory
from rnnkit.call.pool import IDLE
from rnnkit.cells import RegularizedLSTM
from rnnkit.cpu import route
from rnnkit.cpu.infer import PackedNetwork
from rnnkit.cpu.stack import Stack
from rnnkit_kernels.machine import gemm, packing, sync
from rnnkit_kernels.machine.gemm import Packed, WeightMatrix
from rnnkit_kernels.machine.jit import inner
from rnnkit_kernels.machine.matrix import Matrix, Range
from rnnkit_kernels.machine.sync import Team
from rnnkit_kernels.machine.tiles import ensure_in_place_tiles


@inner
def _multiply(c, a, rows, weights, vectors, bias, overwrite):
    gemm.product_with(c, a, rows, weights, vectors, bias, overwrite, False)


@inner
def _multiply_rows(c, a, rows, weights, b, vectors, bias, overwrite, reverse_panels):
    gemm.product_of_rows(c, a, rows, weights, b, vectors, bias, overwrite, reverse_panels)


_pack_columns, _pack_rows = map(for_python, (packing.pack_columns, packing.pack_rows))
_product_with, _product_of_rows, _vectors_of = map(for_python, (_multiply, _multiply_rows, packing.vectors_of))
ALONE = Team(0, 1, np.zeros(sync.sync_size(1), np.int64))


def _rows(array, rows):
    return Matrix(array.reshape(-1), rows, 0, array.shape[1])


SHAPES = (1, 1), (5, 17), (7, 16), (15, 15), (16, 64), (17, 7), (33, 1100), (70, 130)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("units", "depth"), SHAPES)
@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 20])
def test_products_in_place_have_the_bits_of_packed_products(dtype, units, depth, count):
    """With weights in columns (forward) and in rows (backward), rows in any order, from the bias and added."""
    rng, gates = np.random.default_rng(units * 100 + count), 3
    w, bias = rng.normal(size=(gates * units, depth)).astype(dtype), rng.normal(size=gates * units).astype(dtype)
    order, columns = rng.permutation(gates * units), (units, 0, 2 * units)
    a, start = rng.normal(size=(count, depth)).astype(dtype), rng.normal(size=(count, gates * units)).astype(dtype)
    back, start_back = (rng.normal(size=(count, size)).astype(dtype) for size in (gates * units, depth))
    weights, rows, some = _rows(w, order), Range(0, count), rng.permutation(count)
    nothing = np.empty(0, w.dtype)
    for form in ("columns", "rows"):
        ensure_in_place_tiles(form, w.itemsize)
    for overwrite in (True, False):
        found, panels = [], np.empty(packing.panel_size(depth, units, gates, w.itemsize), dtype)
        _pack_columns(panels, weights, units, gates, ALONE)
        for own in (panels, nothing):
            c, matrix = start.copy(), WeightMatrix(Packed(own, depth, units, columns), weights)
            vectors = Range(0, _vectors_of(nothing, units))
            _product_with(_rows(c, some), _rows(a, some), rows, matrix, vectors, bias, overwrite)
            found.append(c)
        assert np.array_equal(*found)
        found, panels = [], np.empty(packing.panel_size(gates * units, depth, 1, w.itemsize), dtype)
        _pack_rows(panels, weights, Range(0, gates * units), depth, ALONE)
        for own in (panels, nothing):
            c, packed = start_back.copy(), Packed(own, gates * units, depth, (0,))
            vectors, zeros = Range(0, _vectors_of(nothing, depth)), np.zeros(depth, dtype)
            _product_of_rows(_rows(c, some), _rows(back, some), rows, packed, weights, vectors, zeros, overwrite, False)
            found.append(c)
        assert np.array_equal(*found)


@pytest.fixture
def reading(monkeypatch):
    """Let calls read the weights where they are, or not, whatever their size."""

    def read(in_place):
        for limit in ("_READS", "_READS_BACK"):
            monkeypatch.setattr(route, limit, 1 << 40 if in_place else 0)
        forget()

    return read


BATCHES = [(1, 1, None), (4, 3, None), (5, 9, (5, 0, 1, 5, 3, 2, 4, 5, 1)), (70, 17, None), (5, 3, (0, 0, 0))]
LAYERS = [dict(), dict(num_layers=2, dropout=0.5), dict(num_layers=3), dict(num_layers=2, bidirectional=True)]
OPTIONS = [dict(), dict(hidden_size=17, bias="input"), dict(input_size=4, input_mode="skip"), dict(bias="none")]
REPEATED = [(20, dict(mode="lstm")), (20, dict(mode=RegularizedLSTM(zoneout=0.2)))]
REPEATED += [(10, dict(mode="gru", num_layers=2, dropout=0.5)), (10, dict(mode="gru", bidirectional=True))]
# Products are the same in either dtype and for most cells: those of the default part have all kinds, but for heads.
SOME = [case for case in cases() if not case.marks or case.id == "slstm-heads-float64"]


def assert_reads_alike(reading, problem):
    """Whether a call reads the weights where they are changes no bit; a new dw is fully written."""
    found = []
    for in_place in (True, False):
        reading(in_place)
        result = problem.forward(seed=1)
        found.append((problem.infer(), result, problem.backward(result.workspace)))
        added = problem.backward(result.workspace, dw=np.zeros_like(problem.w)).dw
        assert np.array_equal(added, found[-1][2].dw)
    for one, other, names in zip(*found, (OUTPUTS, OUTPUTS, GRADIENTS), strict=True):
        assert_same_results(one, other, names)


@pytest.mark.parametrize(("cell", "batch", "layers", "options"), pairs(FLOAT32, BATCHES, LAYERS, OPTIONS))
def test_calls_give_the_same_bits_with_packed_weights_or_not(reading, soil, cell, batch, layers, options):
    soil(0xFF)
    sizes = dict(zip(("seq_len", "batch_size", "lengths"), batch, strict=True), dtype="float32")
    assert_reads_alike(reading, problem_of(cell, **sizes, **layers, **options))


@pytest.mark.parametrize(("cell", "dtype"), SOME)
def test_cells_give_the_same_bits_with_packed_weights_or_not(reading, cell, dtype):
    sizes = dict(hidden_size=17, num_layers=2, seq_len=6, batch_size=5, lengths=(4, 0, 6, 1, 3))
    assert_reads_alike(reading, problem_of(cell, dtype=dtype, **sizes))


def test_reentrant_infer_packs_its_weights_elsewhere(monkeypatch):
    """As a signal's handler may: weights of another network of this size."""
    one, other = (rnnkit.LSTM(3, 17, seed=seed) for seed in range(2))
    x = np.ones((20, 1, 3), np.float32)
    expected, taken, calls = one.infer(x).y, Stack.borrow, []

    def taken_and_interrupted(*arguments):
        room = taken(*arguments)
        monkeypatch.setattr(Stack, "borrow", taken)

        def run(arrays):
            calls.append(other.infer(x))
            room.call(arrays)

        return room._replace(call=run)

    monkeypatch.setattr(Stack, "borrow", taken_and_interrupted)
    assert np.array_equal(one.infer(x).y, expected)
    assert len(calls) == 1


def small():
    net = rnnkit.LSTM(3, 4, seed=0)
    return net, np.ones((2, 5, 3), np.float32)


def addresses(workspace):
    return {name: array.ctypes.data for name, array in workspace.arrays.items()}


def test_small_call_reuses_released_memory():
    net, x = small()
    result = net.forward(x)
    y, before, expected = result.y, addresses(result.workspace), result.y.copy()
    del result
    again = net.forward(2 * x)
    assert addresses(again.workspace) == before
    assert np.array_equal(y, expected) and not y.flags.writeable
    assert not addresses(net.forward(x).workspace).items() & before.items()


@pytest.mark.parametrize("keeps_copy", [False, True])
def test_memory_with_a_view_or_a_copied_owner_is_not_reused(keeps_copy):
    net, x = small()
    expected = net.forward(x).workspace.cell(0).copy()
    result = net.forward(x)
    kept, before = copy.copy(result.workspace) if keeps_copy else result.workspace.cell(0), addresses(result.workspace)
    del result
    assert addresses(net.forward(2 * x).workspace)["cell_0"] != before["cell_0"]
    assert np.array_equal(kept.cell(0) if keeps_copy else kept, expected)


def test_superseded_workspace_returns_no_memory():
    net, x = small()
    first = net.forward(x).workspace
    second = net.forward(x, workspace=first)
    before = addresses(second.workspace)
    del first
    assert not addresses(net.forward(x).workspace).items() & before.items()
    net.backward(second.workspace, second.y)


def test_deep_copy_of_a_workspace_leases_no_idle_memory():
    net, x = small()
    for _ in range(3):
        kept = net.forward(x).workspace
    for other in (pickle.loads(pickle.dumps(kept)), copy.deepcopy(kept)):
        assert other.lease is None
    assert copy.copy(kept).lease is kept.lease


@pytest.mark.parametrize(("steps", "options"), REPEATED)
@pytest.mark.parametrize("lengths", [None, [10, 0, 7] + [1] * 29])
def test_repeated_inference_packs_into_the_same_memory(steps, options, lengths):
    """Which packs the weights into the same memory, where kernel calls are prepared."""
    desc, rng = rnnkit.RNNDescriptor(input_size=30, hidden_size=60, **options), np.random.default_rng(0)
    w, x = rnnkit.init_weights(desc, seed=0), rng.standard_normal((steps, 32, 30)).astype("f4")
    hx = rng.standard_normal((desc.num_pseudo_layers, 32, 60)).astype("f4")
    first, *others = (rnnkit.infer(desc, w, x, hx, lengths=lengths) for _ in range(4))
    assert len(IDLE.shelf(PackedNetwork, desc, False, None).idle) == 1
    for one in others:
        assert_same_results(one, first, OUTPUTS)
        assert one.y.flags.writeable and not np.shares_memory(one.y, first.y)


def test_large_y_is_a_view_that_keeps_its_memory_in_use():
    net, x = rnnkit.LSTM(3, 64, seed=0), np.ones((100, 30, 3), np.float32)
    y, *_, workspace = net.forward(x)
    assert np.shares_memory(y, workspace.arrays["hidden_l0"]) and not y.flags.writeable
    shelf, expected, part = Memory.shelf(net.desc, 30), y.copy(), y[3:, ::2]
    del y, workspace, _
    assert not shelf.idle
    net.forward(2 * x)
    assert np.array_equal(part, expected[3:, ::2])
    del part
    assert len(shelf.idle) == 2


def test_dropped_shelf_stands_for_the_new_one(monkeypatch):
    monkeypatch.setattr(pool, "_MAX_SHELVES", 3)
    own, one = pool.Pool(100), np.empty(10, np.uint8)
    first = own.shelf("a")
    first.give_back(one)
    for key in "bcd":
        own.shelf(key).give_back(np.empty(10, np.uint8))
    assert first.is_dropped and first.take() is None and own.nbytes <= 30
    first.give_back(one)
    assert own.shelf("a").take() is one is not first
    for _ in range(20):
        first.give_back(one)
    assert len(own.shelf("a").idle) <= 10 and own.nbytes <= 100


def test_set_idle_memory_frees_and_bounds_it():
    net, x = small()
    several = [net.forward(x) for _ in range(10)]
    before = rnnkit.set_idle_memory(3 * several[0].workspace.memory.nbytes)
    del several
    shelf = Memory.shelf(net.desc, 5)
    assert len(shelf.idle) == 3 and IDLE.nbytes > 0
    rnnkit.set_idle_memory(0)
    net.forward(x)
    assert IDLE.nbytes == 0 and not shelf.idle
    assert rnnkit.set_idle_memory(before) == 0
    net.forward(x)
    assert len(Memory.shelf(net.desc, 5).idle) == 1
    for wrong, kind, got in ((-1, ValueError, -1), (1.0, TypeError, "float"), (True, TypeError, "bool")):
        with raises(kind, f"set_idle_memory: nbytes | {got}"):
            rnnkit.set_idle_memory(wrong)
    assert IDLE.limit == before
