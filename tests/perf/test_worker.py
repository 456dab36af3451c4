"""How an engine is timed: what the clock counts, what it waits for, and that the engines take turns."""

import gc
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from messages import says
from repository import ROOT

import rnnkit
from perf import baselines, timing, worker
from perf.cases import Case
from perf.subject import Subject

TINY = Case("tiny", rnnkit.RNNDescriptor("lstm", 3, 5, 2, True), seq_len=4, batch_size=2)


class Machine:
    """In place of the module `time`: its clock moves only by work and waiting."""

    def __init__(self, busy=()):
        self.now = self.used = 0.0
        self.busy = list(busy)  # seconds of the processor that go by in each wait
        self.happened = []

    def perf_counter(self):
        return self.now

    def process_time(self):
        return self.used

    def sleep(self, seconds):
        self.now += seconds
        self.used += self.busy.pop(0) if self.busy else 0
        self.happened.append("rest")

    def subject(self, call, wait=0.0, **options):
        """A Subject whose call takes `call` seconds, or each those of a list, and whose waiting for it `wait`."""
        seconds = iter(call) if isinstance(call, list) else iter(lambda: call, None)

        def run():
            self.now += next(seconds)
            self.happened.append("run")

        def finish():
            self.now += wait
            self.happened.append("finish")

        return Subject(run, lambda result: result, finish, **options)


@pytest.fixture
def bench(monkeypatch):
    def make(**options):
        made = worker.Bench("rnnkit", 3)
        made.machine = Machine()
        made.subject = subject = made.machine.subject(**options)

        def prepare(*arguments):
            assert arguments == ("rnnkit", TINY, "infer", 3, "cpu")
            return subject

        monkeypatch.setattr(worker, "time", made.machine)
        monkeypatch.setattr(baselines, "prepare", prepare)
        return made

    return make


def test_seconds_of_a_call_are_the_repetition_by_its_calls(bench):
    short = bench(call=0.001)
    short.load(TINY, "infer")
    assert short.calls == 40  # of 0.04 seconds together
    short.machine.happened.clear()
    assert short.time() == (pytest.approx(0.001), pytest.approx(0.04))
    # One call brings threads and caches back; what is waited for behind a repetition is not timed.
    assert short.machine.happened == ["run", "finish", *["run"] * 40, "finish", "rest"]


def test_long_call_is_a_repetition_until_its_work_is_done(bench):
    long = bench(call=0.5)
    long.load(TINY, "infer")
    assert long.machine.happened == ["run", "finish", "rest"]
    assert long.time() == (pytest.approx(0.5), pytest.approx(0.5))
    assert long.machine.happened == ["run", "finish", "rest"] * 2
    assert bench(call=0.5, wait=0.25).time() == (0.75, 0.75)


def test_disturbance_does_not_change_the_number_of_calls_and_loading_resets_the_peak_memory(bench, monkeypatch):
    happened = []
    monkeypatch.setattr(worker, "_reset_peak_memory", lambda: happened.append("reset"))
    disturbed = bench(call=[0.01, 0.5, 0.02, 0.3], release=lambda: happened.append("release"))
    disturbed.load(TINY, "infer")
    assert disturbed.calls == 2 and happened == ["release", "reset"]


def test_garbage_collection_is_off_while_the_clock_runs(bench):
    collecting = []
    one = bench(call=0.5)
    one.subject = one.subject._replace(run=lambda: collecting.append(gc.isenabled()))
    one.time()
    assert collecting == [False] and gc.isenabled()


def test_host_time_ends_before_the_gpu_is_done(bench):
    host = bench(call=[0.001, 0.002, 0.009] + [0.003] * 17, wait=0.5)
    assert host.host_time() == pytest.approx(0.003)
    assert host.machine.happened == [*["finish", "run"] * 20, "finish"]


def test_threads_are_waited_for_until_they_rest(monkeypatch):
    machine = Machine(busy=[0.025, 0.02, 0.003, 0.002])
    monkeypatch.setattr(worker, "time", machine)
    worker._rest()
    assert machine.happened == ["rest"] * 4  # a tenth of the time that is waited counts as rest
    monkeypatch.setattr(worker, "time", Machine(busy=[1.0] * 1000))
    with pytest.raises(RuntimeError, match=says("threads", "2.0 s")):
        worker._rest()


def test_results_of_the_second_call_are_compared(bench, tmp_path):
    right, wrong = {"y": np.ones((3, 4))}, {"y": np.zeros((3, 4))}
    np.savez(tmp_path / "expected.npz", **right)

    def verdict(*results):
        made = bench(call=0.1)
        returned = iter(results)
        made._prepare = lambda case, pass_name: Subject(lambda: next(returned), lambda result: result)
        return made.check(TINY, "infer", tmp_path / "expected.npz")

    assert verdict(wrong, right) is None
    assert verdict(right, wrong).startswith("wrong: y deviates by 1.0e+00")


def test_reference_has_the_dtype_of_its_case(tmp_path):
    worker.Bench("unfused", 1).reference(TINY, "infer", tmp_path / "expected.npz")
    with np.load(tmp_path / "expected.npz") as expected:
        assert {name: array.dtype for name, array in expected.items()} == dict.fromkeys(("y", "hy", "cy"), np.float32)


@pytest.mark.skipif(sys.platform != "linux", reason="the most bytes are known on Linux only")
def test_peak_memory_is_in_bytes_since_the_case_was_loaded():
    nbytes = 1 << 26
    worker._reset_peak_memory()
    before = worker._peak_memory()
    np.ones(nbytes, np.uint8)  # freed at once
    assert 0.9 * nbytes < worker._peak_memory() - before < 1.5 * nbytes
    worker._reset_peak_memory()
    assert worker._peak_memory() - before < 0.5 * nbytes


def alternated(seconds, *calls):
    """The times of engines whose calls take these seconds, four in a repetition; and the order of the repetitions."""
    order = []

    def engine(name, seconds):
        def call(method):
            order.append((name, method))
            own = next(seconds)
            return own, 4 * own

        return SimpleNamespace(call=call)

    workers = {name: engine(name, iter(given)) for name, given in zip("AB", calls, strict=True)}
    return timing.alternate(workers, seconds), order


def test_engines_take_turns_and_times_are_kept():
    times, order = alternated(1e9, range(1, 99), range(101, 199))
    assert times == {"A": list(range(1, 16)), "B": list(range(101, 116))}
    assert order == [("A", "time"), ("B", "time")] * 15
    assert timing.ratios([1.0, 2.0, 8.0], [2.0, 2.0, 2.0]) == (0.25, 1.0, 2.0)  # pair by pair


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 3), (5.9, 3), (6.1, 4), (8.0, 5), (1e9, 15)])
def test_rounds_end_when_the_seconds_are_spent(seconds, rounds):
    times, _ = alternated(seconds, [0.25] * 99, [0.25] * 99)  # two seconds a round of both
    assert len(times["A"]) == len(times["B"]) == rounds


def test_process_starts_with_its_number_of_threads(monkeypatch):
    started, variables = [], [f"{name}_NUM_THREADS" for name in ("NUMBA", "OMP", "OPENBLAS", "MKL")]

    def process(target, args, daemon):
        assert target is worker.serve and daemon
        return SimpleNamespace(start=lambda: started.append((args[:3], {v: os.environ.get(v) for v in variables})))

    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(os.environ)
    end = SimpleNamespace(close=lambda: None)
    context = SimpleNamespace(Pipe=lambda: (end, end), Process=process)
    monkeypatch.setattr(timing.multiprocessing, "get_context", lambda method: context)
    timing.Worker("torch", 3, "cuda")
    assert started == [(("torch", 3, "cuda"), dict.fromkeys(variables, "3"))]
    assert dict(os.environ) == before


def test_worker_reports_what_failed_in_its_process():
    worker = timing.Worker("rnnkit", 1)
    with pytest.raises(timing.WorkerError, match=says("rnnkit: AttributeError")):
        worker.call("time")
    worker._process.kill()
    with pytest.raises(timing.WorkerError, match=says("rnnkit:", "process", -9)):
        worker.call("time")
    worker.close()


PARENT = """
import sys
from perf import __main__, baselines, compare, report, run, startup, torch_suite
from perf.programs import suite, table
needed = {name for program in table.PROGRAMS for name in program.needs}
print(*sorted({"torch", "onnxruntime", "openvino", "onnx", *needed} & sys.modules.keys()))
"""


def test_parent_imports_no_competitor():
    done = subprocess.run([sys.executable, "-c", PARENT], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
