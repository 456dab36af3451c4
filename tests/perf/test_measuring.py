"""The performance harness: what it counts, reads and writes, and that nothing wrong is timed."""

from itertools import cycle

import numpy as np
import pytest

import rnnkit
from perf import baselines, cases, check, peaks, report, run
from perf.cases import Case
from perf.timing import WorkerError

TINY = Case("tiny", rnnkit.RNNDescriptor("lstm", 3, 5, 2, True), seq_len=4, batch_size=2)


def descriptor(mode="lstm", *sizes, **options):
    return rnnkit.RNNDescriptor(mode, *(sizes or (5, 7)), **options)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # 2*T*N*G*H*(in + P): layer 0 in each direction, then layer 1, whose input has both halves.
        (Case("a", descriptor("lstm", 5, 7, 2, True), 3, 2), 2 * (2 * 6 * 28 * 12) + 2 * (2 * 6 * 28 * 21)),
        (Case("a", descriptor("gru"), 3, 2), 2 * 6 * 21 * 12),
        (Case("a", descriptor("rnn_tanh", 5, 7, 2), 1, 1), 2 * 7 * 12 + 2 * 7 * 14),
        (Case("a", descriptor("lstm", proj_size=3), 1, 1), 2 * 28 * 8 + 2 * 7 * 3),
        (Case("a", descriptor("rnn_relu"), 4, 2, shortest=4), 2 * 8 * 7 * 12),
    ],
)
def test_flops_match_those_counted_by_hand(case, expected):
    assert cases.flops(case, "infer") == expected
    assert cases.flops(case, "train") == 3 * expected
    part = case._replace(seq_len=50, batch_size=9, shortest=1)  # padding has no FLOPs
    assert cases.flops(part, "infer") * case.rows == expected * part.lengths.sum() < expected * 50 * 9


def test_least_seconds_are_of_reading_or_of_computing():
    one, many = (Case("a", descriptor("lstm", 256, 256), 1, batch) for batch in (1, 1000))
    nbytes = 4 * rnnkit.num_weights(one.desc)
    assert cases.least_seconds(one, "step", peak=1e15, bandwidth=1e9) == pytest.approx(nbytes / 1e9)
    assert cases.least_seconds(many, "step", peak=1e9, bandwidth=1e15) == cases.flops(many, "step") / 1e9
    sequence = one._replace(seq_len=10)
    recurrent = 4 * 1024 * 256
    assert cases.least_seconds(sequence, "infer", peak=1e15, bandwidth=1e9) == pytest.approx(10 * recurrent / 1e9)


def test_problem_is_the_same_each_time_with_states_in_a_step():
    case = Case("a", descriptor("lstm", 5, 7, 2), 30, 20, shortest=1)
    first, again, step = (cases.problem(case, pass_name) for pass_name in ("infer", "train", "step"))
    assert (first.hx, first.cx) == (None, None) and first.desc == case.desc
    assert step.hx.shape == step.cx.shape == (2, 20, 7)
    np.testing.assert_array_equal(first.lengths, case.lengths)
    for name in ("w", "x", "dy"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    for array in (first.x, first.dy, step.hx, step.cx):
        assert array.dtype == np.float32 and 0.8 < array.std() < 1.2


class FakeWorker:
    def __init__(self, verdict=None, seconds=1.0, memory=1, fails=None):
        self.verdict, self.seconds, self.memory, self.fails = verdict, cycle(np.atleast_1d(seconds)), memory, fails
        self.asked, self.closed = [], False

    def call(self, method, *arguments):
        self.asked.append((method, *arguments))
        if method == self.fails:
            raise WorkerError("torch: its process ended with -9")
        seconds = next(self.seconds) if method == "time" else None
        repetition = seconds, 10 * (seconds or 0)  # of ten calls
        return {"check": self.verdict, "time": repetition, "peak_memory": self.memory}.get(method)

    def close(self):
        self.closed = True

    @property
    def timed(self):
        return sum(method == "time" for method, *_ in self.asked)


def measured(monkeypatch, case=TINY, pass_name="train", **workers):
    monkeypatch.setattr(baselines, "refusal", lambda *arguments: None)
    handovers = iter([50e-9, 170e-9])
    monkeypatch.setattr(peaks, "handover", lambda: next(handovers))
    workers = {"unfused": FakeWorker(), "torch": FakeWorker(), **workers}
    engines = run.Engines(2, lambda engine, threads, device: workers[engine])
    return run.measure(case, pass_name, engines, ["torch"], peak=1e9, seconds=0.1)


def test_wrong_results_are_not_timed(monkeypatch):
    own, torch = FakeWorker("wrong: y deviates by 1"), FakeWorker()
    row = measured(monkeypatch, rnnkit=own, torch=torch)
    assert row["rnnkit"] == "wrong: y deviates by 1"
    assert "seconds" not in row and own.timed == torch.timed == 0
    own, torch = FakeWorker(seconds=0.5), FakeWorker("wrong: y deviates by 1")
    row = measured(monkeypatch, rnnkit=own, torch=torch)
    assert row["torch"] == "wrong: y deviates by 1" and "torch_seconds" not in row and torch.timed == 0
    assert row["seconds"] == 0.5 and own.timed > 0


def test_right_pair_has_all_figures(monkeypatch):
    own, torch = FakeWorker(seconds=[0.5, 0.25, 1.0], memory=7), FakeWorker(seconds=[1.5, 2.0, 1.0], memory=8)
    row = measured(monkeypatch, rnnkit=own, torch=torch)
    assert (row["rnnkit"], row["torch"]) == (report.OK, report.OK)
    assert (row["seconds"], row["samples_per_s"], row["rounds"]) == (0.5, 4.0, 3)
    assert row["gflops"] == row["share_of_peak"] == cases.flops(TINY, "train") / 0.5 / 1e9  # the peak is 1e9
    assert (row["peak_memory_bytes"], row["torch_peak_memory_bytes"]) == (7, 8)
    assert [row[f"torch_{name}"] for name in ("seconds", "ratio_min", "ratio_median", "ratio_max")] == [1.5, 1, 3, 8]
    assert (row["handover_before"], row["handover_after"]) == (50e-9, 170e-9)
    assert "share_of_limit" not in row and row.keys() <= set(report.COLUMNS)


def test_step_has_a_share_of_the_read_bandwidth(monkeypatch):
    read = []
    monkeypatch.setattr(peaks, "read_bandwidth", lambda *arguments: read.append(arguments) or 2e3)
    step = Case("a", rnnkit.RNNDescriptor("lstm", 3, 5), 1, 2, passes=("step",))
    row = measured(monkeypatch, step, "step", rnnkit=FakeWorker(seconds=0.5))
    nbytes = 4 * rnnkit.num_weights(step.desc)
    assert read == [(nbytes, 2)]
    assert row["share_of_limit"] == nbytes / 2e3 / 0.5


LARGE = Case("large", rnnkit.RNNDescriptor("lstm", 800, 800, 5, True), seq_len=300, batch_size=20)


def test_large_case_is_compared_over_its_first_steps():
    for pass_name, steps in (("infer", 13), ("train", 4)):
        part = run.shortened(LARGE, pass_name)
        assert part == LARGE._replace(seq_len=steps)
        longer = part._replace(seq_len=steps + 1)
        assert cases.flops(part, pass_name) <= run._CHECKED_FLOPS < cases.flops(longer, pass_name)
    assert run.shortened(TINY, "train") == TINY
    assert run.shortened(LARGE._replace(shortest=50), "train").seq_len == 50  # a length of its own for each sequence
    assert run.shortened(LARGE._replace(batch_size=10**6), "train").seq_len == 1


def test_shortened_case_is_compared_and_the_whole_is_timed(monkeypatch):
    own, torch, twin = FakeWorker(), FakeWorker(), FakeWorker()
    measured(monkeypatch, LARGE, rnnkit=own, torch=torch, unfused=twin)
    part = LARGE._replace(seq_len=4)
    (method, *arguments, path), *others = twin.asked
    assert (method, *arguments) == ("reference", part, "train") and not others
    for engine in (own, torch):
        assert engine.asked[:3] == [("check", part, "train", path), ("load", LARGE, "train"), ("time",)]


def test_failed_engine_is_reported_and_gets_a_new_process(monkeypatch):
    for method in ("check", "load"):
        row = measured(monkeypatch, rnnkit=FakeWorker(), torch=(torch := FakeWorker(fails=method)))
        assert row["torch"] == "failed: torch: its process ended with -9" and "torch_seconds" not in row
        assert torch.closed and torch.timed == 0
        assert row["seconds"] == 1.0


def test_each_run_is_measured_and_written(monkeypatch, tmp_path):
    monkeypatch.setattr(report, "machine", lambda: {"commit": "abc"})
    monkeypatch.setattr(peaks, "fma_peak", lambda dtype, threads: threads * 1e9)
    asked = []

    def measure(case, pass_name, engines, against, peak, seconds):
        asked.append((pass_name, engines.threads, against, peak, seconds))
        return report.facts(case, pass_name, engines.threads) | {"rnnkit": "wrong: y"}

    monkeypatch.setattr(run, "measure", measure)
    path = tmp_path / "a.csv"
    rows = run.run([(TINY, "infer"), (TINY, "train")], ["torch", "unfused"], [1, 2], 0.1, path)
    assert asked == [
        ("infer", 1, ["torch"], 1e9, 0.1),  # one thread fewer is not what the tables show
        ("train", 1, ["torch"], 1e9, 0.1),
        ("infer", 2, ["torch", "unfused"], 2e9, 0.1),
        ("train", 2, ["torch", "unfused"], 2e9, 0.1),
    ]
    source = report.read(path)
    assert source.header["fma_peak_float32_2_threads"] == "2.0 GF/s"
    assert [(row["name"], row["threads"]) for row in source.rows] == [(r["name"], str(r["threads"])) for r in rows]


RIGHT = {"y": np.ones((3, 4)), "dx": np.ones((2, 2))}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, None),
        ({"cy": None}, None),
        ({"y": np.full((3, 4), np.nan)}, "wrong: y deviates by nan"),
        ({"y": np.ones((3, 4)) + np.eye(3, 4) * 1e-3}, "wrong: y deviates by 5.0e-04, more than 3e-05"),
        ({"dx": np.zeros((2, 2))}, "wrong: dx deviates by 1.0e+00"),
        ({"dx": np.ones(4)}, "wrong: dx has shape"),
        ({"cy": np.ones(1)}, "wrong: has"),
        ({"dx": None}, "wrong: has"),
    ],
)
def test_deviations_are_reported(changed, expected):
    found = check.deviation(RIGHT | changed, RIGHT, descriptor())
    assert found is None if expected is None else found.startswith(expected)


@pytest.mark.parametrize(
    ("bound", "name", "options"),
    [
        (3e-5, "y", {}),
        (3e-14, "y", {"dtype": "float64"}),
        (1e-2, "y", {"allow_tf32": True}),
        (3e-5, "y", {"mode": "rnn_relu"}),
        (3e-5, "dx", {"mode": "rnn_tanh"}),
        (5e-3, "dx", {"mode": "rnn_relu"}),  # a unit may round to the other side of its kink
    ],
)
def test_results_are_right_up_to_their_bound(bound, name, options):
    right = {name: np.linspace(1, 2, 100)}
    for error in (-0.9, 0.9, -1.1, 1.1):
        found = check.deviation({name: right[name] * (1 + error * bound)}, right, descriptor(**options))
        assert (found is None) == (abs(error) < 1)
