"""The suite of plans with quantized weights: who takes part, with weights of as many bits, and right results."""

import numpy as np
import pytest
from combinations import nightly

import rnnkit
from perf import __main__, accuracy, baselines, cases, check, reduced_suite, run
from perf.cases import Case
from rnnkit.language_model import model as textmodel


def small(mode, precision, **options):
    desc = rnnkit.RNNDescriptor(mode, 12, 32, **options)
    return Case("tiny", desc, 6, 3, passes=("infer",), precision=precision)


def assert_right(engine, case, pass_name="infer"):
    """An engine's results are those of the reference within its bits, and not those of float32 weights."""
    expected = baselines.reference(case, pass_name)
    expected = {name: array for name, array in expected.results(expected.run()).items() if array is not None}
    subject = baselines.prepare(engine, case, pass_name, 1)
    found = subject.results(subject.run())
    assert check.deviation(found, expected, case.desc, precision=case.precision) is None
    assert check.deviation(found, expected, case.desc) is not None
    wrong = {name: array * 1.2 for name, array in expected.items()}
    assert check.deviation(found, wrong, case.desc, precision=case.precision).startswith("wrong: ")


@pytest.mark.parametrize(("mode", "precision"), [
    ("lstm", "bfloat16"), ("lstm", "int8"), nightly("rnn_tanh", "bfloat16"), nightly("gru", "bfloat16"),
    nightly("rnn_tanh", "int8"), nightly("gru", "int8"),
])  # fmt: skip
def test_our_results(mode, precision):
    assert_right("rnnkit", small(mode, precision))


@pytest.mark.parametrize(("mode", "precision"), [("lstm", "bfloat16"), ("lstm", "int8"), ("gru", "int8")])
def test_those_of_pytorch(mode, precision):
    pytest.importorskip("torch")
    assert baselines.refusal("torch", small(mode, precision), "infer") is None
    assert_right("torch", small(mode, precision))


def test_those_of_onnx_runtime():
    pytest.importorskip("onnxruntime")
    assert baselines.refusal("onnxruntime", small("lstm", "int8"), "infer") is None
    assert_right("onnxruntime", small("lstm", "int8"))


@pytest.mark.parametrize("mode", ["lstm", nightly("rnn_tanh"), nightly("gru")])
def test_those_of_openvino(mode):
    why = baselines.refusal("openvino", small(mode, "bfloat16"), "infer")
    if why is not None:
        pytest.skip(f"OpenVINO: {why}")
    assert_right("openvino", small(mode, "bfloat16"))


def test_beside_it_stands_the_plan_without():
    case = small("lstm", "int8")
    subject = baselines.prepare("float32", case, "infer", 1)
    found = subject.results(subject.run())
    expected = rnnkit.prepare(case.desc, rnnkit.init_weights(case.desc, seed=0)).infer(cases.problem(case, "infer").x)
    assert np.array_equal(found["y"], expected.y)


@pytest.mark.parametrize(("engine", "case", "because"), [
    ("onnxruntime", small("lstm", "bfloat16"), "has no bfloat16 of it"),
    ("onnxruntime", small("gru", "int8"), "has no int8 of it"),
    ("openvino", small("lstm", "int8"), "has no int8 without NNCF"),
    ("openvino", small("lstm", "bfloat16", proj_size=8), "has no bfloat16 of it"),
    ("torch", small("rnn_tanh", "int8"), "has no int8 of it"),
    ("torch", small("lstm", "int8", proj_size=8), "has no int8 of it"),
    ("unfused", small("lstm", "int8"), "only of float32"),
    ("float32", small("lstm", None), "only of quantized weights"),
])  # fmt: skip
def test_who_does_not_take_part(monkeypatch, engine, case, because):
    monkeypatch.setattr(baselines, "find_spec", lambda name: name)
    assert baselines.refusal(engine, case, "infer") == because


@pytest.mark.parametrize(("feature", "because"), [
    ("avx512bf16", None), ("amx-bf16", None), ("avx512f", "has no bfloat16 on this CPU"),
])  # fmt: skip
def test_openvino_takes_part_where_the_cpu_has_bfloat16(monkeypatch, feature, because):
    monkeypatch.setattr(baselines, "find_spec", lambda name: name)
    monkeypatch.setattr(reduced_suite.binding, "get_host_cpu_features", lambda: {feature: True})
    assert baselines.refusal("openvino", small("gru", "bfloat16"), "infer") == because


def test_the_cases():
    names = {cases.row_name(case, name) for case in reduced_suite.CASES for name in case.passes}
    assert {"ds2-int8/lstm/infer", "lm-bfloat16/gru/infer", "step-n1-h1024-int8/lstm/step"} <= names
    assert not any(name.endswith("/train") for name in names)
    case = next(case for case in reduced_suite.CASES if case.name == "stream-int8/lstm")
    assert cases.streamed_bytes(case, "infer") == 4 * 256 * 256


def test_the_suite_runs_them(monkeypatch):
    asked = []
    monkeypatch.setattr(run, "run", lambda pairs, *others: asked.extend(cases.row_name(*pair) for pair in pairs) or [])
    assert __main__.main(["run", "--suite", "reduced", "--cases", "lm-int8/*"]) == 0
    assert asked == [f"lm-int8/{mode}/infer" for mode in ("rnn_relu", "rnn_tanh", "lstm", "gru")]


@pytest.mark.parametrize("modes", [("lstm",), nightly(accuracy.MODES)])
def test_accuracy_of_plans_and_competitors(monkeypatch, modes):
    """Each form of the weights has errors of its own size; more steps do not add up."""
    monkeypatch.setattr(accuracy, "MODES", modes)
    found = dict(accuracy.errors([16], [1, 30]))
    assert {name.split()[0] for name in found} == set(modes)
    for name, (first, last) in found.items():
        low, high = {"float32": (1e-8, 1e-6), "bfloat16": (5e-4, 1e-2), "int8": (1e-3, 6e-2)}[name.split()[2]]
        assert low < first < high and low < last < high
    assert "lstm 16 int8 rnnkit" in found


def test_accuracy_of_a_language_model(tmp_path, capsys):
    pytest.importorskip("torch")
    model = textmodel.TextModel.random(rnnkit.RNNDescriptor("gru", 8, 16), 0, np.frombuffer(b"ab", np.uint8))
    model.save(tmp_path / "model.npz")
    (tmp_path / "text").write_bytes(b"ab" * 5000)
    files = ["--model", str(tmp_path / "model.npz"), "--text", str(tmp_path / "text")]
    accuracy.main(["--units", "8", "--steps", "2", *files])
    lines = capsys.readouterr().out.splitlines()
    bits = {line[:32].strip(): float(line[32:]) for line in lines[lines.index("bits per byte") + 1 :]}
    forms, engines = ("float32", "bfloat16", "int8"), ("rnnkit", "torch")
    assert bits.keys() == {f"{form} {engine}" for form in forms for engine in engines}
    assert max(bits.values()) - min(bits.values()) < 0.02
    assert bits["float32 rnnkit"] == pytest.approx(bits["float32 torch"], abs=2e-4)


def test_accuracy_wants_a_model_and_its_text(capsys):
    with pytest.raises(SystemExit, match="2"):
        accuracy.main(["--model", "model.npz"])
    err = capsys.readouterr().err.splitlines()[-1]
    assert "--model" in err and "--text" in err
