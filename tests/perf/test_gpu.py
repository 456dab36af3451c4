"""The performance harness on a GPU: what it prepares, counts and refuses, on the stand-ins."""

import sys
from types import SimpleNamespace

import pytest
import standin_cupy
from gpu import has_gpu
from messages import one_line_says
from optional import needs
from perf_runs import second_results

import rnnkit
from perf import __main__, baselines, check, peaks, report, run, worker
from perf.cases import Case

TINY = Case("tiny", rnnkit.RNNDescriptor("lstm", 3, 5, 2, True), seq_len=4, batch_size=2)
STEPPING = Case("tiny", rnnkit.RNNDescriptor("gru", 3, 5), seq_len=1, batch_size=2, passes=("step",))
RUNS = [(TINY, "infer"), (TINY.with_tf32(), "train"), (TINY._replace(shortest=1), "train"), (STEPPING, "step")]


@pytest.mark.parametrize(("case", "pass_name"), RUNS)
def test_results_on_a_gpu_match_the_reference(standin, case, pass_name):
    found = second_results(baselines.prepare("rnnkit", case, pass_name, 1, "cuda"))
    assert check.deviation(found, second_results(baselines.reference(case, pass_name)), case.desc) is None
    assert "cudnnRNNForward" in standin.calls


def test_pytorch_allows_tf32_where_rnnkit_does(monkeypatch):
    torch = needs("torch")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # and what it was comes back
    for case in (TINY, TINY.with_tf32()):
        baselines.prepare("torch", case, "infer", torch.get_num_threads())
        assert torch.backends.cudnn.allow_tf32 == case.desc.allow_tf32


def test_bench_waits_for_the_gpu(standin):
    bench = worker.Bench("rnnkit", 1, "cuda")
    bench.load(TINY, "infer")
    before, launched = standin_cupy.Device.synchronized, standin.calls.count("cudnnRNNForward")
    bench.time()
    assert standin_cupy.Device.synchronized == before + 2  # behind the call that warms up, and behind the timed ones
    assert standin.calls.count("cudnnRNNForward") == launched + bench.calls + 1
    assert bench.host_time() > 0
    assert standin_cupy.Device.synchronized == before + 2 + worker._HOST_CALLS + 1
    assert bench.peak_memory() == 1 << 20
    standin_cupy.freed.clear()
    bench.load(TINY, "train")
    assert standin_cupy.freed == ["all"]


def test_row_has_the_time_of_the_host(monkeypatch):
    figures = {"time": (0.5, 0.5), "host_time": 0.25, "peak_memory": 7}
    process = SimpleNamespace(call=lambda method, *arguments: figures.get(method))
    monkeypatch.setattr(baselines, "refusal", lambda *arguments: None)
    engines = run.Engines(1, lambda *arguments: process, "cuda")
    row = run.measure(TINY, "infer", engines, ["torch"], peak=1e9, seconds=0.1)
    assert (row["seconds"], row["host_seconds"], row["torch_host_seconds"]) == (0.5, 0.25, 0.25)
    assert "share_of_limit" not in row and set(row) <= set(report.COLUMNS)
    assert "host 250000.0 us" in run._line(row)


def test_peak_of_a_gpu_is_asked_in_a_process(monkeypatch):
    asked, answers = [], {"gpu_name": "a GPU", "gpu_peak": 3e12}
    process = SimpleNamespace(call=lambda method, *_: answers[method], close=lambda: asked.append("closed"))
    monkeypatch.setattr(run, "Worker", lambda *arguments: asked.append(arguments) or process)
    header, limits = run._gpu_peaks(["float32"], [2])
    assert header == {"gpu": "a GPU", "gemm_peak_float32_without_tf32": "3000.0 GF/s"}
    assert limits == {("float32", 2): 3e12}
    assert asked == [("rnnkit", 2, "cuda"), "closed"]


def test_missing_gpu_is_refused(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert __main__.main(["run", "--device", "cuda"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and one_line_says(err, "perf: --device cuda", "GPU", "CuPy", "pip install 'rnnkit[cuda13]'")


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="no GPU that CuPy can use")
def test_peak_of_this_gpu_is_plausible():
    assert peaks.gpu_peak("float32") > 1e11
    assert "CUDA" in peaks.gpu_name()
