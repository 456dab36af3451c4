"""Streams: the bits of each one alone, whatever steps beside it, and what a call may touch."""

import copy
import io
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import gpu as on_gpu
import numpy as np
import pytest
from messages import raises
from numpy.lib.stride_tricks import as_strided
from problems import CASES, CELLS
from streams import drawn, plan_of
from tolerances import assert_close_on_gpu, assert_same_bits
from traced import traced_bytes

import rnnkit
from rnnkit_kernels import stack
from rnnkit_kernels.machine import thread_pool


class Alone:
    """One stream by itself, through `plan.infer` of all x (steps, I) that it was given since its last reset."""

    def __init__(self, plan):
        self.plan, self.hx, self.cx = plan, None, None
        self.x, self.y = [], []

    def assert_same(self, name):
        if self.x:
            y, self.hx, self.cx = self.plan.infer(np.concatenate(self.x)[:, None])
            assert_same_bits(f"y of stream {name}", np.concatenate(self.y)[:, None], y)

    def assert_state(self, state, row):
        for name, own in (("hx", self.hx), ("cx", self.cx)):
            if own is not None:
                assert_same_bits(f"{name} of stream {row}", state[name][:, [row]], own)
            else:
                assert name not in state or not state[name][:, row].any()


def arrival(plan, stream, alone, rng):
    """One call on some streams, in any of the ways there are; `alone` takes notes."""
    count = len(alone)
    rows = rng.permutation(count)[: rng.integers(count + 1)]
    steps = int(rng.integers(4))
    kind = rng.choice(["rows", "rows", "list", "mask", "all", "run", "run rows", "run rows", "reset"])
    if kind == "reset":
        stream.reset(rows[:2])
        for row in rows[:2]:
            alone[row].assert_same(row)
            alone[row] = Alone(plan)
        return
    if kind in ("all", "run"):
        rows = np.arange(count)
    elif kind == "mask":
        rows = np.sort(rows)
    steps = steps if "run" in kind else 1
    x = rng.standard_normal((steps, len(rows), plan.desc.input_size)).astype(plan.desc.dtype)
    lengths = rng.integers(steps + 1, size=len(rows)) if kind == "run rows" else np.full(len(rows), steps)
    if "run" in kind:
        y = stream.run(x, lengths, rows=rows) if kind == "run rows" else stream.run(x)
    else:
        chosen = {"rows": rows, "list": rows.tolist(), "mask": np.isin(np.arange(count), rows), "all": None}[kind]
        y = stream.step(x[0], rows=chosen)[None]
    for i, row in enumerate(rows):
        alone[row].x.append(x[: lengths[i], i])
        alone[row].y.append(y[: lengths[i], i])
        assert not y[lengths[i] :, i].any()


def assert_each_as_alone(plan, num_streams, calls, seed=0):
    stream, rng = plan.stream(num_streams), np.random.default_rng(seed)
    alone = [Alone(plan) for _ in range(num_streams)]
    for _ in range(calls):
        arrival(plan, stream, alone, rng)
    state = stream.state
    for row, one in enumerate(alone):
        one.assert_same(row)
        one.assert_state(state, row)


@pytest.mark.parametrize(("cell", "dtype"), CASES)
def test_each_stream_has_the_bits_of_itself_alone(cell, dtype):
    for num_streams, layers in ((1, 1 if dtype == "float32" else 2), (2, 2), (9, 2)):
        assert_each_as_alone(plan_of(num_layers=layers, dtype=dtype, **CELLS[cell]), num_streams, 40, num_streams)


def test_thousand_streams_have_the_bits_of_each_alone():
    assert_each_as_alone(plan_of("lstm", 16, 32), 1000, 30)


@pytest.fixture
def apart(monkeypatch):
    """No step may write the states that it reads: on several threads, one may write what another is yet to read."""
    run = thread_pool.run

    def watched(kernel, *arguments):
        if kernel is stack.run_stack:
            _, hx, cx, _, hy, cy, gates, *_ = arguments[-1]
            assert not any(np.may_share_memory(read, written) for read in (hx, cx) for written in (hy, cy, gates))
        return run(kernel, *arguments)

    monkeypatch.setattr(thread_pool, "run", watched)


@pytest.mark.parametrize("rows", [None, [2, 0]])
def test_results_belong_to_the_caller(rows):
    """No later call writes them, and writing them changes no state."""
    plan = plan_of()
    count = 4 if rows is None else len(rows)
    x, stream, other = drawn(plan.desc, 6, count), plan.stream(4), plan.stream(4)
    found = [*(stream.step(x[t], rows=rows) for t in range(3)), stream.run(x, rows=rows)]
    kept = [y.copy() for y in found]
    for t in range(3):
        stream.step(x[t], rows=rows)
        stream.step(drawn(plan.desc, 4))
    stream.run(x, rows=rows)
    stream.reset()
    for y, before in zip(found, kept, strict=True):
        assert_same_bits("y", y, before)
    for t in range(6):
        y = stream.step(x[t], rows=rows)
        assert_same_bits("y", y, other.step(x[t], rows=rows))
        y[...] = np.nan
        assert y.base is None


@pytest.mark.parametrize("rows", [None, [2, 0, 1], []])
def test_out_is_written_and_returned(rows):
    """Any view without elements that overlap, also x itself."""
    plan, room = plan_of(input_size=5), np.full((5, 8, 2), np.nan, np.float32)
    x = drawn(plan.desc, 6, 3 if rows is None else len(rows))
    stream, other = plan.stream(3), plan.stream(3)
    views = room[:, :6:2, 0].T, room[::-1, 5::-2, 1].T, as_strided(np.zeros(20, np.float32), (3, 5), (4, 16))
    for t, out in enumerate((np.empty((3, 5), np.float32), *views, x[4].copy(), x[5])):
        expected, own = other.step(x[t], rows=rows), out[: len(x[t])]
        assert stream.step(x[t], rows=rows, out=own) is own
        assert_same_bits("out", own, expected)
    assert np.isnan(room[:, 6:]).all()


def test_step_into_out_allocates_nothing():
    plan, size = plan_of("lstm", 64, 64), 500
    stream, x, out = plan.stream(size), drawn(plan.desc, size), np.empty((size, 64), np.float32)
    rows = np.random.default_rng(0).permutation(size)[:300]

    def steps(*counts):
        for count in counts:
            stream.step(x[:count], rows=None if count == size else rows[:count], out=out[:count])

    assert stream.state["hx"].nbytes == 256_000
    for counts in ((size, size), (300, 300), (300, 200, 300), (size, 200, size, 300)):
        steps(*counts)
        _, peak = traced_bytes(lambda counts=counts: steps(*counts))
        assert peak < 16_000, counts  # the numbers of the rows, and Python's own objects


def restored(stream):
    """A stream of the same plan, with states that go through a file and then through copies that change."""
    twin, state, file = stream.plan.stream(stream.num_streams), stream.state, io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    with np.load(file) as arrays:
        twin.restore(arrays)
    twin.restore(state)
    state["hx"][...] = np.nan
    return twin


COPIES = [copy.copy, copy.deepcopy, lambda stream: pickle.loads(pickle.dumps(stream)), restored]


@pytest.mark.parametrize("copied", COPIES)
def test_copied_stream_has_states_of_its_own(copied):
    plan = plan_of()
    x, stream = drawn(plan.desc, 5, 4), plan.stream(4)
    stream.run(x[:2])
    twin, expected = copied(stream), plan.infer(x).y
    for t in range(2, 5):
        assert_same_bits("y", stream.step(x[t]), expected[t])
    assert_same_bits("y", twin.run(x[2:]), expected[2:])


def test_reset_streams_begin_again():
    plan = plan_of()
    x, stream = drawn(plan.desc, 4), plan.stream(4)
    first = stream.step(x)
    stream.step(x)
    stream.reset([2])
    assert_same_bits("y of the stream that begins again", stream.step(x)[2], first[2])
    stream.reset(np.array([True, False, False, True]))
    assert np.flatnonzero(stream.state["hx"].any(axis=(0, 2))).tolist() == [1, 2]
    stream.reset()
    assert_same_bits("y", stream.step(x), first)


def test_stream_shows_its_plan_and_the_shapes_of_its_states():
    plan = plan_of("lstm", proj_size=2)
    stream = plan.stream(np.int64(7))
    assert repr(stream) == "<Stream of RNNDescriptor('lstm', 3, 5, num_layers=2, proj_size=2), num_streams=7>"
    assert (stream.num_streams, type(stream.num_streams), stream.desc, stream.plan) == (7, int, plan.desc, plan)
    assert {name: one.shape for name, one in stream.state.items()} == {"hx": (2, 7, 2), "cx": (2, 7, 5)}


def test_call_during_a_call_is_refused_and_the_first_goes_on(monkeypatch):
    plan = plan_of()
    x, stream, run = drawn(plan.desc, 4), plan.stream(4), thread_pool.run
    entered, go_on = threading.Event(), threading.Event()

    def held(*arguments):
        entered.set()
        assert go_on.wait(60)
        return run(*arguments)

    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(thread_pool, "run", held)
        step = pool.submit(stream.step, x)
        assert entered.wait(60)
        monkeypatch.setattr(thread_pool, "run", run)
        calls = {"step": [x], "run": [x[None]], "reset": [], "restore": [{}], "state": []}
        for name, arguments in calls.items():
            with raises(rnnkit.WorkspaceError, f"{name}: the stream | use"):
                getattr(stream, name)(*arguments)  # of the state, to get it
        plan.stream(4).step(x)  # another one is no trouble
        go_on.set()
        assert_same_bits("y", step.result(), plan.step(x, None).y)
    assert_same_bits("y", stream.run(x[None])[0], plan.infer(np.stack([x, x])).y[1])


class Interrupting:
    """A tracer that raises KeyboardInterrupt before one of the lines that `Stream._step` runs; None counts them."""

    def __init__(self, number=None):
        self.number, self.lines = number, 0

    def __call__(self, frame, event, argument):
        if event == "line":
            self.lines += 1
            if self.lines == self.number:
                raise KeyboardInterrupt
        return self if frame.f_code is rnnkit.Stream._step.__code__ else None


@pytest.fixture
def tracing():
    before = sys.gettrace()
    yield sys.settrace
    sys.settrace(before)


@pytest.mark.parametrize("done", [0, 1])
@pytest.mark.parametrize("rows", [None, [3, 1, 0, 2]])
def test_step_interrupted_at_any_line_leaves_old_or_new_states(tracing, apart, rows, done):
    """The first step, or one whose buffers are used again."""
    plan, place = plan_of(), slice(None) if rows is None else rows
    x = drawn(plan.desc, 4, 4)
    expected, (old, new) = plan.infer(x).y, (plan.infer(x[:count]).hy for count in (done, done + 1))

    def interrupted(number):
        """A stream whose step was, and how many lines that has run."""
        stream, tracer = plan.stream(4), Interrupting(number)
        for t in range(done):
            stream.step(x[t][place], rows=rows)
        tracing(tracer)
        with pytest.raises(KeyboardInterrupt) if number else nullcontext():
            stream.step(x[done][place], rows=rows)
        tracing(None)
        return stream, tracer.lines

    _, lines = interrupted(None)
    assert lines > 8
    for number in range(1, lines + 1):
        stream, _ = interrupted(number)
        found = stream.state["hx"]
        stepped = not np.array_equal(found, old)
        assert_same_bits("hx", found, new if stepped else old)
        for t in range(done + stepped, 4):
            assert_same_bits("y", stream.step(x[t][place], rows=rows), expected[t][place])


@pytest.mark.parametrize("cell", on_gpu.CELLS)
def test_streams_on_a_gpu_equal_those_on_the_host(gpu, cell):
    """The same calls, with their states there; rows and saved states are on the host."""
    plan = plan_of(dtype="float64", **on_gpu.CELLS[cell])
    desc = plan.desc
    there = rnnkit.prepare(desc, *on_gpu.moved(rnnkit.init_weights(desc, seed=0))).stream(4)
    here, (out,) = plan.stream(4), on_gpu.moved(np.zeros((2, desc.output_size)))
    x = drawn(desc, 4, 4)

    def compare(call, *arrays, **options):
        found = getattr(there, call)(*on_gpu.moved(*arrays), **options)
        expected = getattr(here, call)(*arrays, **options)
        if found is not None:
            assert_close_on_gpu("y", found.get(), expected, "float64")
        for name, array in here.state.items():
            assert_close_on_gpu(name, there.state[name], array, "float64")

    compare("step", x[0])
    compare("step", x[1][:3], rows=[3, 0, 1])
    compare("step", x[1][:1], rows=[2])
    compare("run", x, lengths=[2, 0, 4, 1])
    compare("run", x[:, :2], rows=np.array([True, False, False, True]))
    compare("reset", rows=[1, 2])
    saved, own = there.state, on_gpu.moved(x[2][:2])
    assert there.step(*own, rows=[1, 3], out=out) is out
    kept = out.get()
    there.restore(saved)
    assert_same_bits("y", there.step(*own, rows=[1, 3]).get(), kept)
    assert_same_bits("an earlier y", out.get(), kept)
    kind = f"{type(out).__module__}.ndarray"
    with raises(TypeError, f"step: x | {kind} | numpy.ndarray"):
        there.step(x[0])
    with raises(TypeError, f"step: rows | None | integer array | host | {kind}"):
        there.step(*own, rows=out[0])


def test_streams_stay_on_the_device_of_the_weights(standin):
    import cupy

    desc = plan_of().desc
    with cupy.cuda.Device(1):
        plan = rnnkit.prepare(desc, *on_gpu.moved(rnnkit.init_weights(desc, seed=0)))
        x = on_gpu.moved(drawn(desc, 4))[0]
    stream = plan.stream(4)  # whatever the current device
    found = [*stream._states, stream.step(x[:2], rows=[3, 0]), stream.step(x), stream.run(x[None])]
    stream.reset([1])
    stream.restore(stream.state)
    assert {array.device.id for array in (*found, *stream._states)} == {1}
