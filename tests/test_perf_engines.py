"""Every engine of the harness against the naive twin: the same weights, the same results, the threads it was given."""

import sys
import weakref
from importlib.util import find_spec

import numpy as np
import pytest
import reference
from combinations import nightly
from gradcheck import assert_gradients
from messages import says
from problems import CELLS, Problem, smooth
from tolerances import OUTPUTS, assert_close, assert_gradient_close

import rnnkit
from perf import baselines, cases
from perf.cases import Case
from perf.unfused import Unfused
from rnnkit.descriptor import descriptor

ONNX_ENGINES = "onnxruntime", "openvino"
LENGTHS = {"full": None, "lengths": (6, 1, 0, 4)}
# Those that the harness has cases for.
NETWORKS = {name: CELLS[name] for name in ("tanh", "relu", "lstm", "lstm-projected", "gru")}
OPTIONS = {
    "plain": {},
    "deep": dict(num_layers=2, bidirectional=True),
    "float64": dict(num_layers=2, dtype="float64"),
}


@pytest.fixture
def torch():
    """PyTorch, which has its own number of threads again at the end."""
    found = pytest.importorskip("torch")
    before = found.get_num_threads()
    yield found
    found.set_num_threads(before)


@pytest.fixture
def onnxruntime():
    pytest.importorskip("onnx")
    return pytest.importorskip("onnxruntime")


@pytest.fixture
def openvino():
    pytest.importorskip("onnx")
    if find_spec("openvino") is None:
        pytest.skip("could not import 'openvino'")
    return baselines.silent_openvino()


@pytest.fixture
def installed(request):
    """Skip a test of an `engine` that is not installed."""
    engine = request.getfixturevalue("engine")
    if engine in ("torch", *ONNX_ENGINES):
        request.getfixturevalue(engine)


def both_ways(network, lengths, **options):
    sizes = dict(seq_len=6, batch_size=4, num_layers=2, bidirectional=True)
    return Problem(**NETWORKS[network], **sizes, lengths=LENGTHS[lengths], **options)


def unfused(problem):
    """y, hy and cy, and the gradients dx and dw of y times dy."""
    network, tape = Unfused(problem.desc, problem.w), []
    outputs = network.forward(problem.x, problem.hx, problem.cx, problem.lengths_array, tape)
    return outputs, network.backward(tape, problem.dy)


@pytest.mark.parametrize("states", [True, False], ids=["states", "zeros"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_non_fused_network_has_the_twins_results(network, lengths, dtype, states):
    problem = both_ways(network, lengths, dtype=dtype, states=states)
    outputs, _ = unfused(problem)
    for name, actual in zip(OUTPUTS, outputs, strict=True):
        assert_close(name, actual, getattr(problem.reference(), name), dtype)
        assert actual is None or actual.dtype == dtype


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_non_fused_network_has_the_twins_gradients(network, lengths):
    problem = smooth(both_ways(network, lengths))
    desc = problem.desc

    def loss(arrays):
        twin = reference.forward(
            arrays,
            arrays["x"],
            problem.hx,
            problem.cx,
            mode=desc.mode,
            hidden_size=desc.hidden_size,
            num_layers=2,
            bidirectional=True,
            proj_size=desc.proj_size,
            lengths=problem.lengths,
        )
        return float(np.vdot(twin.y, problem.dy))

    def gradients(arrays):
        assert arrays.keys() == {"x", *problem.views}
        _, (dx, dw) = unfused(problem)
        return {"x": dx, **rnnkit.weight_views(desc, dw)}

    assert_gradients(loss, gradients, {"x": problem.x, **problem.views}, seed=0)


@pytest.mark.parametrize("network", NETWORKS)
def test_float32_gradients_of_the_non_fused_network_are_those_of_float64(network):
    problem = smooth(both_ways(network, "lengths"))
    _, found = unfused(problem.twin(dtype="float32"))
    _, expected = unfused(problem)
    for name, actual, right in zip(("dx", "dw"), found, expected, strict=True):
        assert_gradient_close(name, actual, right, "float32")
        assert actual.dtype == np.float32


def named_case(network, options, **sizes):
    desc = rnnkit.RNNDescriptor(input_size=3, hidden_size=4, **NETWORKS[network] | options)
    return Case("ds2", desc, **{"seq_len": 5, "batch_size": 3} | sizes)  # a family that every engine takes part in


def named_cases():
    """Name, case and pass of everything that an engine is to be compared in."""
    for network in NETWORKS:
        several = {label: named_case(network, options) for label, options in OPTIONS.items()}
        several["lengths"] = named_case(network, OPTIONS["deep"], shortest=1)
        for label, case in several.items():
            yield f"{network}-{label}", case, "infer"
            yield f"{network}-{label}", case, "train"
        yield network, named_case(network, {"num_layers": 2}, seq_len=1), "step"


def is_for(engine, case, pass_name):
    if engine in ONNX_ENGINES:
        return pass_name != "train" and case.desc.dtype == "float32" and not case.desc.projected
    return engine != "unfused" or pass_name != "train"  # whose gradients are what is compared with


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
def test_every_engine_has_the_twins_results(installed, engine, case, pass_name):
    assert baselines.refusal(engine, case, pass_name) is None
    given, desc = cases.problem(case, pass_name), case.desc
    twin = reference.forward(
        rnnkit.weight_views(desc, given.w),
        given.x,
        given.hx,
        given.cx,
        mode=desc.mode,
        hidden_size=desc.hidden_size,
        num_layers=desc.num_layers,
        bidirectional=desc.bidirectional,
        proj_size=desc.proj_size,
        lengths=given.lengths,
    )
    expected = twin._asdict() | ({"y": twin.y[0]} if pass_name == "step" else {})
    subject = baselines.prepare(engine, case, pass_name, 1)
    subject.run()
    found = subject.results(subject.run())  # what the first call left does not count
    for name in OUTPUTS:
        assert_close(name, found.pop(name), expected[name], desc.dtype)
    wide = baselines.reference(case, pass_name)
    gradients = {name: a for name, a in wide.results(wide.run()).items() if name not in OUTPUTS}
    named = {"dx", *(f"d{name}" for name in rnnkit.weight_views(desc, given.w))} if pass_name == "train" else set()
    assert found.keys() == gradients.keys() == named
    for name, actual in found.items():
        assert_gradient_close(name, actual, gradients[name], desc.dtype)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("network", [nightly("relu"), *(name for name in NETWORKS if name != "relu")])
@pytest.mark.parametrize("engine", [baselines.RNNKIT, baselines.BY_HAND, "torch", *ONNX_ENGINES, "unfused"])
def test_every_engine_serves_streams_as_the_twin_does(installed, engine, network):
    """Each stream's arrivals are one sequence, from its own initial state."""
    case = named_case(network, {"num_layers": 2}, seq_len=9, num_streams=7)
    desc, refused = case.desc, engine in ONNX_ENGINES and case.desc.projected
    assert baselines.refusal(engine, case, "serve") == ("has no proj" if refused else None)
    if refused:
        return
    given = cases.problem(case, "serve")
    subject = baselines.prepare(engine, case, "serve", 1)
    subject.run()
    found = subject.results(subject.run())  # which begins with the initial states again
    assert {rows.size for rows in map(np.unique, given.rows)} == {3} and len(np.unique(given.rows)) == 7
    for row in range(7):
        t, n = np.nonzero(given.rows == row)
        hx, cx = (None if states is None else states[:, [row]] for states in (given.hx, given.cx))
        options = dict(mode=desc.mode, hidden_size=4, num_layers=2, bidirectional=False, proj_size=desc.proj_size)
        twin = reference.forward(rnnkit.weight_views(desc, given.w), given.x[t, n][:, None], hx, cx, **options)
        assert_close("y", found["y"][t, n], twin.y[:, 0], desc.dtype)
        for name in ("hy", "cy") if desc.has_cell_state else ("hy",):
            assert_close(name, found[name][:, [row]], getattr(twin, name), desc.dtype)


def test_pytorch_has_its_number_of_threads(torch):
    for threads in (2, 1, 2):
        baselines.prepare("torch", named_case("lstm", {}), "infer", threads)
        assert torch.get_num_threads() == threads


def test_pytorch_records_nothing_where_nothing_is_trained(torch):
    for pass_name in ("infer", "train"):
        y, _ = baselines.prepare("torch", named_case("lstm", {}), pass_name, 1).run()
        assert y.is_inference() == (pass_name == "infer") != y.requires_grad


def test_onnx_runtime_has_its_number_of_threads(monkeypatch, onnxruntime):
    started, session = [], onnxruntime.InferenceSession

    def start(model, options, providers):
        spinning = options.get_session_config_entry("session.force_spinning_stop")
        started.append((options.intra_op_num_threads, options.inter_op_num_threads, spinning, providers))
        return session(model, options, providers=providers)

    monkeypatch.setattr(onnxruntime, "InferenceSession", start)
    for threads in (1, 2):
        baselines.prepare("onnxruntime", named_case("lstm", {}), "infer", threads)
    assert started == [(threads, 1, "1", ["CPUExecutionProvider"]) for threads in (1, 2)]


def test_openvino_has_its_number_of_threads(monkeypatch, openvino):
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


def test_openvino_reads_the_arrays_where_they_are(monkeypatch, openvino):
    """It does not keep them: the subject does."""
    given, tensor = [], openvino.Tensor

    def share(array, shared_memory):
        given.append((weakref.ref(array), shared_memory))
        return tensor(array, shared_memory=shared_memory)

    monkeypatch.setattr(openvino, "Tensor", share)
    subject = baselines.prepare("openvino", named_case("lstm", {}, shortest=1), "infer", 1)
    assert [(array() is not None, shared) for array, shared in given] == [(True, True)] * 2
    del subject
    assert [array() for array, _ in given] == [None] * 2


def test_openvino_reports_to_nobody(openvino):
    assert sys.modules["openvino_telemetry"] is None


@pytest.mark.parametrize(("engine", "what"), [("torch", "torch"), *((engine, "onnx") for engine in ONNX_ENGINES)])
def test_a_mode_that_an_engine_does_not_know_is_an_error(installed, engine, what, monkeypatch):
    case = named_case("tanh", {})
    monkeypatch.setitem(descriptor.MODES, "rnn_sine", descriptor.MODES["rnn_tanh"])
    object.__setattr__(case.desc, "mode", "rnn_sine")
    with pytest.raises(ValueError, match=says(f"{what}: mode", "lstm", "gru", "'rnn_sine'")):
        baselines.prepare(engine, case, "infer", 1)


@pytest.mark.parametrize(
    "options",
    [
        {"bias": "none"},
        {"input_mode": "skip", "input_size": 4},
        {"dropout": 0.5},
        {"cell_clip": (-1.0, 1.0)},
        {"mode": "gru", "reset_after": False},
    ],
)
def test_the_reference_refuses_what_it_does_not_compute(options):
    desc = rnnkit.RNNDescriptor(**{"mode": "lstm", "input_size": 3, "hidden_size": 4} | options)
    expected = says("unfused: desc", "bias, input_mode, dropout, cell_clip and reset_after", repr(desc)[:-1])
    with pytest.raises(ValueError, match=expected):
        baselines.reference(Case("a", desc, 2, 2), "infer")


def test_who_takes_part_in_a_case(monkeypatch):
    case = named_case("lstm", {})
    other = case._replace(family="lm")
    assert baselines.refusal("unfused", case, "train") is None
    assert baselines.refusal("unfused", other, "train") == "only in the tables"
    assert baselines.refusal("by-hand", other, "step") == "only of streams"
    monkeypatch.setattr(baselines, "find_spec", lambda module: None if module == "onnx" else module)
    assert [baselines.refusal(engine, other, "infer") for engine in ONNX_ENGINES] == ["not installed"] * 2
    monkeypatch.setattr(baselines, "find_spec", lambda module: module)
    assert baselines.refusal("torch", other, "train") is None
    assert baselines.refusal("torch", other._replace(alone=True), "train") == "not asked"
    for engine in ONNX_ENGINES:
        assert baselines.refusal(engine, other, "infer") is None
        assert baselines.refusal(engine, other, "train") == "has no train"
        assert baselines.refusal(engine, named_case("lstm", OPTIONS["float64"]), "infer") == "has no float64"
        assert baselines.refusal(engine, named_case("lstm-projected", {}), "infer") == "has no proj"
