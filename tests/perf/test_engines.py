"""Every engine of the harness against the naive twin: the same weights, the same results, the threads it was given."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
import reference
from combinations import nightly
from gradcheck import assert_gradients
from optional import needs
from perf_runs import second_results
from problems import CELLS, Problem, smooth
from tolerances import OUTPUTS, assert_close, assert_gradient_close

import rnnkit
from perf import baselines, cases, reduced_suite
from perf.cases import Case
from perf.unfused import Unfused

ONNX_ENGINES = "onnxruntime", "openvino"
LENGTHS = {"full": None, "lengths": (6, 1, 0, 4)}
# Those that the harness has cases for.
NETWORKS = {name: CELLS[name] for name in ("tanh", "relu", "lstm", "lstm-projected", "gru")}
DEEP, FLOAT64 = dict(num_layers=2, bidirectional=True), dict(num_layers=2, dtype="float64")


@pytest.fixture
def torch(torch_threads_as_before):
    return needs("torch")


@pytest.fixture
def onnxruntime():
    needs("onnx")
    return needs("onnxruntime")


@pytest.fixture
def openvino():
    needs("onnx")
    if find_spec("openvino") is None:
        pytest.skip("could not import 'openvino'")
    return baselines.silent_openvino()


@pytest.fixture
def installed(request):
    engine = request.getfixturevalue("engine")
    if engine in ("torch", *ONNX_ENGINES):
        request.getfixturevalue(engine)


def twin_of(desc, weights, x, hx=None, cx=None, lengths=None):
    """The results of the naive twin for named weights."""
    fields = "mode", "hidden_size", "num_layers", "bidirectional", "proj_size"
    return reference.forward(weights, x, hx, cx, lengths=lengths, **{name: getattr(desc, name) for name in fields})


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("network", NETWORKS)
def test_unfused_network_has_the_twins_gradients(network, lengths):
    problem = smooth(Problem(**NETWORKS[network], **DEEP, seq_len=6, batch_size=4, lengths=LENGTHS[lengths]))

    def loss(arrays):
        twin = twin_of(problem.desc, arrays, arrays["x"], problem.hx, problem.cx, problem.lengths)
        return float(np.vdot(twin.y, problem.dy))

    def gradients(arrays):
        assert arrays.keys() == {"x", *problem.views}
        network, tape = Unfused(problem.desc, problem.w), []
        network.forward(problem.x, problem.hx, problem.cx, problem.lengths_array, tape)
        dx, dw = network.backward(tape, problem.dy)
        return {"x": dx, **rnnkit.weight_views(problem.desc, dw)}

    assert_gradients(loss, gradients, {"x": problem.x, **problem.views}, seed=0)


def named_case(network, options, **sizes):
    desc = rnnkit.RNNDescriptor(input_size=3, hidden_size=4, **NETWORKS[network] | options)
    return Case("ds2", desc, **{"seq_len": 5, "batch_size": 3} | sizes)  # a family that every engine takes part in


def named_cases():
    """Name, case and pass of everything that an engine is to be compared in."""
    for network in NETWORKS:
        for label, options in {"plain": {}, "deep": DEEP, "float64": FLOAT64, "lengths": DEEP}.items():
            case = named_case(network, options, shortest=1 if label == "lengths" else None)
            yield from ((f"{network}-{label}", case, pass_name) for pass_name in ("infer", "train"))
        yield network, named_case(network, {"num_layers": 2}, seq_len=1), "step"


def is_for(engine, case, pass_name):
    if engine in ONNX_ENGINES:
        return pass_name != "train" and case.desc.dtype == "float32" and not case.desc.projected
    return (engine, pass_name, case.desc.dtype) != ("unfused", "train", "float64")  # which is what is compared with


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    ("engine", "case", "pass_name"),
    [
        (nightly if "relu" in name else pytest.param)(engine, case, pass_name, id=f"{engine}-{name}-{pass_name}")
        for engine in (baselines.RNNKIT, "torch", *ONNX_ENGINES, "unfused")
        for name, case, pass_name in named_cases()
        if is_for(engine, case, pass_name)
    ],
)
def test_engines_have_the_twins_results(installed, engine, case, pass_name):
    assert baselines.refusal(engine, case, pass_name) is None
    given, desc = cases.problem(case, pass_name), case.desc
    weights = rnnkit.weight_views(desc, given.w)
    twin = twin_of(desc, weights, given.x, given.hx, given.cx, given.lengths)
    expected = twin._asdict() | ({"y": twin.y[0]} if pass_name == "step" else {})
    found = second_results(baselines.prepare(engine, case, pass_name, 1))
    for name in OUTPUTS:
        assert_close(name, found.pop(name, None), expected[name], desc.dtype)
    wide = second_results(baselines.reference(case, pass_name))
    gradients = {name: array for name, array in wide.items() if name not in OUTPUTS}
    named = {"dx", *(f"d{name}" for name in weights)} if pass_name == "train" else set()
    assert found.keys() == gradients.keys() == named
    for name, actual in found.items():
        assert_gradient_close(name, actual, gradients[name], desc.dtype)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("network", [nightly("relu"), *(name for name in NETWORKS if name != "relu")])
@pytest.mark.parametrize("engine", [baselines.RNNKIT, baselines.BY_HAND, "torch", *ONNX_ENGINES, "unfused"])
def test_engines_serve_each_stream_as_one_sequence(installed, engine, network):
    case = named_case(network, {"num_layers": 2}, seq_len=9, num_streams=7)
    desc, refused = case.desc, engine in ONNX_ENGINES and case.desc.projected
    assert baselines.refusal(engine, case, "serve") == ("has no proj" if refused else None)
    if refused:
        return
    given = cases.problem(case, "serve")
    found = second_results(baselines.prepare(engine, case, "serve", 1))  # from the initial states again
    assert {rows.size for rows in map(np.unique, given.rows)} == {3} and len(np.unique(given.rows)) == 7
    for row in range(7):
        t, n = np.nonzero(given.rows == row)
        hx, cx = (None if states is None else states[:, [row]] for states in (given.hx, given.cx))
        twin = twin_of(desc, rnnkit.weight_views(desc, given.w), given.x[t, n][:, None], hx, cx)
        assert_close("y", found["y"][t, n], twin.y[:, 0], desc.dtype)
        for name in ("hy", "cy") if desc.has_cell_state else ("hy",):
            assert_close(name, found[name][:, [row]], getattr(twin, name), desc.dtype)


def test_pytorch_runs_on_the_given_threads_and_infers_in_inference_mode(torch):
    for threads, pass_name in ((2, "infer"), (1, "train"), (2, "infer")):
        y, _ = baselines.prepare("torch", named_case("lstm", {}), pass_name, threads).run()
        assert torch.get_num_threads() == threads
        assert y.is_inference() == (pass_name == "infer") != y.requires_grad


def test_onnx_runtime_runs_on_the_given_threads(monkeypatch, onnxruntime):
    started, session = [], onnxruntime.InferenceSession

    def start(model, options, providers):
        spinning = options.get_session_config_entry("session.force_spinning_stop")
        started.append((options.intra_op_num_threads, options.inter_op_num_threads, spinning, providers))
        return session(model, options, providers=providers)

    monkeypatch.setattr(onnxruntime, "InferenceSession", start)
    for threads in (1, 2):
        baselines.prepare("onnxruntime", named_case("lstm", {}), "infer", threads)
    assert started == [(threads, 1, "1", ["CPUExecutionProvider"]) for threads in (1, 2)]


def test_openvino_runs_on_the_given_threads(monkeypatch, openvino):
    started, compile_model = [], openvino.Core.compile_model

    def start(core, model, device, options):
        started.append((device, options))
        return compile_model(core, model, device, options)

    monkeypatch.setattr(openvino.Core, "compile_model", start)
    for threads in (1, 2):
        baselines.prepare("openvino", named_case("lstm", {}), "infer", threads)
    fixed = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False}
    fixed["INFERENCE_PRECISION_HINT"] = "f32"
    assert started == [("CPU", {"INFERENCE_NUM_THREADS": threads, **fixed}) for threads in (1, 2)]
    assert sys.modules["openvino_telemetry"] is None


def test_engines_refuse_what_they_would_compute_in_another_precision(monkeypatch):
    """All else that they lack fails, or is wrong, before it is timed."""
    monkeypatch.setattr(baselines, "find_spec", lambda module: module)
    assert baselines.refusal("openvino", named_case("lstm", FLOAT64), "infer") == "has no float64"
    case = named_case("gru", {})._replace(precision="bfloat16")
    for feature, why in (("avx512bf16", None), ("amx-bf16", None), ("avx512f", "has no bfloat16 on this CPU")):
        monkeypatch.setattr(reduced_suite.binding, "get_host_cpu_features", lambda feature=feature: {feature: True})
        assert baselines.refusal("openvino", case, "infer") == why
    assert baselines.refusal("unfused", case, "infer") == "only of float32"
