"""The performance harness: what it counts, reads and writes, and that nothing wrong is timed."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import reference
from tolerances import assert_close, assert_gradient_close

import rnnkit
from perf import baselines, cases, check, compare, peaks, report, run, startup, timing
from perf.cases import Case
from perf.unfused import Unfused

ROOT = Path(__file__).resolve().parents[1]
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
def test_flops_are_those_counted_by_hand(case, expected):
    assert cases.flops(case, "infer") == expected
    assert cases.flops(case, "train") == 3 * expected


def test_padding_is_no_work():
    case = Case("a", descriptor("gru"), 50, 9, shortest=1)
    assert case.rows == case.lengths.sum() < 50 * 9
    assert cases.flops(case, "infer") == 2 * case.lengths.sum() * 21 * 12


def test_streamed_steps_are_limited_by_reading_and_others_by_computing():
    one, many = (Case("a", descriptor("lstm", 256, 256), 1, batch) for batch in (1, 1000))
    nbytes = 4 * rnnkit.num_weights(one.desc)
    assert cases.least_seconds(one, "step", peak=1e15, bandwidth=1e9) == pytest.approx(nbytes / 1e9)
    assert cases.least_seconds(many, "step", peak=1e9, bandwidth=1e15) == cases.flops(many, "step") / 1e9
    sequence = one._replace(seq_len=10)
    recurrent = 4 * 1024 * 256
    assert cases.least_seconds(sequence, "infer", peak=1e15, bandwidth=1e9) == pytest.approx(10 * recurrent / 1e9)


def names(patterns, passes=cases.PASSES):
    return [cases.row_name(*pair) for pair in cases.select(patterns, passes)]


def test_globs_select_by_name():
    assert names("ds2/lstm/*") == ["ds2/lstm/infer", "ds2/lstm/train"]
    assert names("ds2/lstm/*", ("train",)) == ["ds2/lstm/train"]
    assert names("small/gru/infer,step-n1-h32/gru/*") == ["small/gru/infer", "step-n1-h32/gru/step"]
    assert names("nothing") == []
    everything = names("*")
    assert len(set(everything)) == len(everything) > 200


def written(tmp_path, name, rows, header=None):
    path = tmp_path / name
    with path.open("w") as file:
        writer = report.Writer(file, header or {"commit": "abc", "command": "python -m perf run: with, commas"})
        for row in rows:
            writer.write(row)
    return path


def timed_row(case, seconds, **cells):
    own = {"rnnkit": report.OK, "rounds": 3, "seconds": seconds, "gflops": 1.0, "share_of_peak": 0.5}
    return report.facts(case, "train", 2) | own | cells


def test_reports_come_back_as_they_were_written(tmp_path):
    row = timed_row(TINY, 0.125, torch="not installed")
    path = written(tmp_path, "a.csv", [row])
    source = report.read(path)
    assert source.header == {"commit": "abc", "command": "python -m perf run: with, commas"}
    assert len(source.rows) == 1 and source.rows[0].keys() == set(report.COLUMNS)
    expected = {"name": "tiny/lstm/train", "threads": "2", "T": "4", "seconds": "0.125", "torch": "not installed"}
    assert expected.items() <= source.rows[0].items()
    assert source.rows[0]["workspace_bytes"] == str(rnnkit.workspace_nbytes(TINY.desc, 4, 2))
    assert source.rows[0]["unfused_seconds"] == ""


def test_a_file_that_is_no_report_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("name,seconds\na,1\n")
    with pytest.raises(report.ReportError, match="a.csv is no report"):
        report.read(tmp_path / "a.csv")


def test_compare_divides_the_old_seconds_by_the_new_ones(tmp_path):
    other = TINY._replace(family="other")
    old = written(tmp_path, "a.csv", [timed_row(TINY, 2.0), timed_row(other, 1.0)])
    new = written(tmp_path, "b.csv", [timed_row(TINY, 1.0), timed_row(other, 8.0)], {"commit": "def"})
    text = compare.compare(old, new)
    ratio = {line.split("|")[1].strip(): float(line.split("|")[-2]) for line in text.splitlines() if "/lstm/" in line}
    assert ratio == {"tiny/lstm/train": 2.0, "other/lstm/train": 0.125}
    assert "geometric mean of 2 rows: 0.500 times" in text
    assert "commit: abc -> def" in text


def test_tables_show_samples_per_second_of_both(tmp_path):
    row = timed_row(TINY, 0.5, unfused_seconds=1.0, unfused_ratio_median=2.0)
    last = compare.tables(written(tmp_path, "a.csv", [row])).splitlines()[-1]
    assert [cell.strip() for cell in last.split("|")[1:-1]] == ["tiny/lstm/train", "2", "4.0", "2.0", "2.0"]


def test_ratios_are_taken_pair_by_pair():
    assert timing.ratios([1.0, 2.0, 4.0], [2.0, 2.0, 2.0]) == (0.5, 1.0, 2.0)


class FakeWorker:
    """Right or wrong as it is told; counts how often it is timed."""

    def __init__(self, verdict=None, seconds=1.0):
        self.verdict, self.seconds, self.timed = verdict, seconds, 0

    def call(self, method, *arguments):
        self.timed += method == "time"
        return {"check": self.verdict, "time": (self.seconds, self.seconds), "peak_memory": 1}.get(method)

    def close(self):
        pass


def measured(monkeypatch, **workers):
    monkeypatch.setattr(baselines, "refusal", lambda *arguments: None)
    workers = {"unfused": FakeWorker(), **workers}
    engines = run.Engines(2, lambda engine, threads, device: workers[engine])
    return run.measure(TINY, "train", engines, ["torch"], peak=1e9, seconds=0.1)


def test_a_wrong_case_is_not_timed(monkeypatch):
    own, torch = FakeWorker("wrong: y deviates by 1"), FakeWorker()
    row = measured(monkeypatch, rnnkit=own, torch=torch)
    assert row["rnnkit"] == "wrong: y deviates by 1"
    assert "seconds" not in row and own.timed == torch.timed == 0


def test_a_wrong_competitor_is_not_timed(monkeypatch):
    own, torch = FakeWorker(seconds=0.5), FakeWorker("wrong: y deviates by 1")
    row = measured(monkeypatch, rnnkit=own, torch=torch)
    assert row["torch"] == "wrong: y deviates by 1" and "torch_seconds" not in row and torch.timed == 0
    assert row["seconds"] == 0.5 and own.timed > 0
    assert row["share_of_peak"] == cases.flops(TINY, "train") / 0.5 / 1e9


def test_figures_of_a_right_pair(monkeypatch):
    row = measured(monkeypatch, rnnkit=FakeWorker(seconds=0.5), torch=FakeWorker(seconds=1.5))
    assert (row["torch"], row["torch_seconds"], row["torch_ratio_median"]) == (report.OK, 1.5, 3.0)
    assert row["samples_per_s"] == 4.0


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
def test_deviations_are_found(changed, expected):
    found = check.deviation(RIGHT | changed, RIGHT, descriptor())
    assert found is None if expected is None else found.startswith(expected)


@pytest.mark.parametrize("lengths", [None, np.array([6, 1, 0, 4])], ids=["full", "lengths"])
@pytest.mark.parametrize(
    "options",
    [{"mode": "rnn_relu"}, {"mode": "rnn_tanh"}, {"mode": "lstm"}, {"mode": "lstm", "proj_size": 3}, {"mode": "gru"}],
)
def test_the_reference_of_large_cases_agrees_with_the_naive_twin(options, lengths):
    desc = rnnkit.RNNDescriptor(
        input_size=5, hidden_size=7, num_layers=2, bidirectional=True, dtype="float64", **options
    )
    rng = np.random.default_rng(0)
    w = rnnkit.init_weights(desc, seed=0)
    x, hx = rng.standard_normal((6, 4, 5)), rng.standard_normal((4, 4, desc.output_size))
    cx = rng.standard_normal((4, 4, 7)) if desc.has_cell else None
    network, tape = Unfused(desc, w), []
    y, hy, cy = network.forward(x, hx, cx, lengths, tape)
    twin = reference.forward(
        rnnkit.weight_views(desc, w),
        x,
        hx,
        cx,
        hidden_size=7,
        num_layers=2,
        bidirectional=True,
        lengths=lengths,
        **options,
    )
    for name, actual in (("y", y), ("hy", hy), ("cy", cy)):
        assert_close(name, actual, getattr(twin, name), "float64")
    dy = rng.standard_normal(y.shape)
    dx, dw = network.backward(tape, dy)
    filled = rnnkit.forward(desc, w, x, hx, cx, lengths=lengths)
    expected = rnnkit.backward(desc, w, filled.workspace, dy)
    assert_gradient_close("dx", dx, expected.dx, "float64")
    assert_gradient_close("dw", dw, expected.dw, "float64")


def test_a_tiny_case_goes_through_real_processes(tmp_path):
    step = TINY._replace(family="tiny-step", desc=rnnkit.RNNDescriptor("lstm", 3, 5), seq_len=1, passes=("step",))
    pairs = [(TINY, "infer"), (TINY, "train"), (step, "step")]
    path = tmp_path / "a.csv"
    run.run(pairs, ["torch", "onnxruntime"], [1], seconds=0.1, out=path)
    source = report.read(path)
    assert [row["name"] for row in source.rows] == ["tiny/lstm/infer", "tiny/lstm/train", "tiny-step/lstm/step"]
    for row in source.rows:
        assert row["rnnkit"] == report.OK
        assert float(row["seconds"]) > 0 and 0 < float(row["share_of_peak"]) < 1
        if find_spec("torch"):
            assert row["torch"] == report.OK
            assert (
                0 < float(row["torch_ratio_min"]) <= float(row["torch_ratio_median"]) <= float(row["torch_ratio_max"])
            )
        else:
            assert row["torch"] == "not installed" and row["torch_seconds"] == ""
    assert float(source.rows[2]["share_of_limit"]) > 0
    present = find_spec("onnx") and find_spec("onnxruntime")
    expected = [report.OK, "has no train", report.OK] if present else ["not installed"] * 3
    assert [row["onnxruntime"] for row in source.rows] == expected
    assert float(source.header["fma_peak_float32_1_threads"].split()[0]) > 1


def test_a_worker_says_what_went_wrong_there():
    worker = timing.Worker("rnnkit", 1)
    with pytest.raises(timing.WorkerError, match="rnnkit: AttributeError"):
        worker.call("time")
    worker._process.kill()
    with pytest.raises(timing.WorkerError, match="rnnkit: its process ended with -9"):
        worker.call("time")
    worker.close()


def test_two_threads_compute_and_read_too():
    assert peaks.fma_peak("float64", 2) > 1e9
    assert peaks.read_bandwidth(100_000, 2) > 1e8


def test_a_process_that_fails_gives_no_figure():
    with pytest.raises(subprocess.CalledProcessError):
        startup._fresh_process("raise SystemExit(3)")


def test_the_parent_imports_no_competitor():
    program = (
        "import sys; from perf import __main__, baselines, compare, report, run, startup;"
        "found = {'torch', 'onnxruntime', 'onnx'} & sys.modules.keys(); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_a_report_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    from perf.plot import plot

    sweep = TINY._replace(family="sweep-H5")
    plot(written(tmp_path, "a.csv", [timed_row(TINY, 1.0), timed_row(sweep, 2.0)]), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(report.ReportError, match="no timed row"):
        plot(written(tmp_path, "b.csv", []), tmp_path / "b.png")


def test_an_unknown_case_is_an_error():
    done = subprocess.run(
        [sys.executable, "-m", "perf", "run", "--cases", "nothing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "perf: --cases must match a name such as ds2/lstm/infer, got 'nothing'\n"


def test_only_gradients_of_relu_have_room_for_the_kink():
    changed = {"y": RIGHT["y"], "dx": np.ones((2, 2)) + np.eye(2) * 1e-3}
    assert check.deviation(changed, RIGHT, descriptor("rnn_relu")) is None
    assert check.deviation(changed, RIGHT, descriptor("rnn_tanh")).startswith("wrong: dx")
    assert check.deviation({"y": changed["dx"]}, {"y": RIGHT["dx"]}, descriptor("rnn_relu")).startswith("wrong: y")
