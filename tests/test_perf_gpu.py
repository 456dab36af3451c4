"""The performance harness on a GPU: what it prepares, counts and refuses, on the stand-ins."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import standin_cupy
from gpu import has_gpu
from messages import one_line_says

import rnnkit
from perf import baselines, cases, check, peaks, report, run, worker
from perf.cases import Case

ROOT = Path(__file__).resolve().parents[1]
TINY = Case("tiny", rnnkit.RNNDescriptor("lstm", 3, 5, 2, True), seq_len=4, batch_size=2)
STEPPING = Case("tiny", rnnkit.RNNDescriptor("gru", 3, 5), seq_len=1, batch_size=2, passes=("step",))
RAGGED = TINY._replace(shortest=1)


@pytest.mark.parametrize(
    ("case", "pass_name"), [(TINY, "infer"), (TINY, "train"), (RAGGED, "train"), (STEPPING, "step")]
)
def test_results_of_a_gpu_are_the_references(standin, case, pass_name):
    subject = baselines.prepare("rnnkit", case, pass_name, 1, "cuda")
    expected = baselines.reference(case, pass_name)
    subject.run()  # the second call has the first one's memory
    found = subject.results(subject.run())
    wanted = {name: array for name, array in expected.results(expected.run()).items() if array is not None}
    assert check.deviation(found, wanted, case.desc) is None
    assert set(standin.calls) >= {"cudnnRNNForward"}


def test_pytorch_has_tf32_as_rnnkit_has(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # and what it was comes back
    for case in (TINY, TINY.with_tf32()):
        baselines.prepare("torch", case, "infer", torch.get_num_threads())
        assert torch.backends.cudnn.allow_tf32 == case.desc.allow_tf32


def test_tf32_has_a_bound_of_its_own():
    found, right = {"y": np.ones((3, 4)) + np.eye(3, 4) * 1e-3}, {"y": np.ones((3, 4))}
    assert check.deviation(found, right, TINY.with_tf32().desc) is None
    assert check.deviation(found, right, TINY.desc).startswith("wrong: y")
    reference = baselines.reference(TINY.with_tf32(), "infer")
    assert reference.results(reference.run())["y"].dtype == np.float64


def test_a_bench_waits_for_the_gpu(standin):
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


class FakeWorker:
    def call(self, method, *arguments):
        figures = {"time": (0.5, 0.5), "host_time": 0.25, "peak_memory": 7}
        return figures.get(method)


def test_a_row_has_the_time_of_the_host(monkeypatch):
    monkeypatch.setattr(baselines, "refusal", lambda *arguments: None)
    engines = run.Engines(1, lambda *arguments: FakeWorker(), "cuda")
    row = run.measure(TINY, "infer", engines, ["torch"], peak=1e9, seconds=0.1)
    assert (row["seconds"], row["host_seconds"], row["torch_host_seconds"]) == (0.5, 0.25, 0.25)
    assert "share_of_limit" not in row and set(row) <= set(report.COLUMNS)
    assert "host 250000.0 us" in run._line(row)


def test_the_peak_of_a_gpu_is_asked_in_a_process(monkeypatch):
    asked = []

    class Process:
        def __init__(self, *arguments):
            asked.append(arguments)

        def call(self, method, *arguments):
            return {"gpu_name": "a GPU", "gpu_peak": 3e12}[method]

        def close(self):
            asked.append("closed")

    monkeypatch.setattr(run, "Worker", Process)
    header, limits = run._gpu_peaks(["float32"], [2])
    assert header == {"gpu": "a GPU", "gemm_peak_float32_without_tf32": "3000.0 GF/s"}
    assert limits == {("float32", 2): 3e12}
    assert asked == [("rnnkit", 2, "cuda"), "closed"]


def test_only_pytorch_competes_on_a_gpu():
    assert baselines.refusal("onnxruntime", TINY, "infer", "cuda") == "not on a GPU"
    assert baselines.refusal("openvino", TINY, "infer", "cuda") == "not on a GPU"
    assert baselines.refusal("unfused", TINY, "infer", "cuda") == "not on a GPU"


def test_cases_for_a_gpu_alone():
    def names(device):
        return {case.family for case, _ in cases.select("*", cases.PASSES, device)}

    assert names("cuda") - names("cpu") == {"tiny", "tiny-n8"}
    assert names("cpu") - names("cuda") == {"serve-n1-h128", "serve-n10-h128", "serve-n100-h128"}


def test_no_gpu_is_an_error():
    program = (
        "import sys; sys.modules['cupy'] = None\n"
        "from perf.__main__ import main; sys.exit(main(['run', '--device', 'cuda']))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert one_line_says(done.stderr, "perf: --device cuda", "GPU", "CuPy", "pip install 'rnnkit[cuda13]'")


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="no GPU that CuPy can use")
def test_the_peak_of_this_gpu():
    assert peaks.gpu_peak("float32") > 1e11
    assert "CUDA" in peaks.gpu_name()
