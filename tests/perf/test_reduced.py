"""The suite of plans with quantized weights: who takes part, with weights of as many bits, and right results."""

import numpy as np
import pytest
from combinations import nightly
from optional import needs
from perf_runs import second_results

import rnnkit
from perf import accuracy, baselines, cases, check, reduced_suite
from perf.cases import Case
from rnnkit.language_model import model as textmodel


def small(mode, precision, **options):
    desc = rnnkit.RNNDescriptor(mode, 12, 32, **options)
    return Case("tiny", desc, 6, 3, passes=("infer",), precision=precision)


@pytest.mark.parametrize(
    ("engine", "mode", "precision"),
    [
        ("rnnkit", "lstm", "bfloat16"),
        ("rnnkit", "lstm", "int8"),
        *(nightly("rnnkit", mode, form) for mode in ("rnn_tanh", "gru") for form in ("bfloat16", "int8")),
        ("torch", "lstm", "bfloat16"),
        ("torch", "lstm", "int8"),
        ("torch", "gru", "int8"),
        ("onnxruntime", "lstm", "int8"),
        ("openvino", "lstm", "bfloat16"),
        nightly("openvino", "rnn_tanh", "bfloat16"),
        nightly("openvino", "gru", "bfloat16"),
    ],
)
def test_results_lie_within_the_precision_of_the_weights(engine, mode, precision):
    """And are not those of float32 weights."""
    if engine in ("torch", "onnxruntime"):
        needs(engine)
    case = small(mode, precision)
    why = None if engine == "rnnkit" else baselines.refusal(engine, case, "infer")
    if engine == "openvino" and why is not None:
        pytest.skip(f"OpenVINO: {why}")
    assert why is None
    expected = second_results(baselines.reference(case, "infer"))
    found = second_results(baselines.prepare(engine, case, "infer", 1))
    assert check.deviation(found, expected, case.desc, precision=precision) is None
    assert check.deviation(found, expected, case.desc) is not None
    wrong = {name: array * 1.2 for name, array in expected.items()}
    assert check.deviation(found, wrong, case.desc, precision=precision).startswith("wrong: ")


def test_float32_competitor_is_the_plan_without_precision():
    case = small("lstm", "int8")
    found = second_results(baselines.prepare("float32", case, "infer", 1))
    expected = rnnkit.prepare(case.desc, rnnkit.init_weights(case.desc, seed=0)).infer(cases.problem(case, "infer").x)
    assert np.array_equal(found["y"], expected.y)


@pytest.mark.parametrize(
    ("engine", "case", "because"),
    [
        ("onnxruntime", small("lstm", "bfloat16"), "has no bfloat16 of it"),
        ("onnxruntime", small("gru", "int8"), "has no int8 of it"),
        ("openvino", small("lstm", "int8"), "has no int8 without NNCF"),
        ("openvino", small("lstm", "bfloat16", proj_size=8), "has no bfloat16 of it"),
        ("torch", small("rnn_tanh", "int8"), "has no int8 of it"),
        ("torch", small("lstm", "int8", proj_size=8), "has no int8 of it"),
        ("unfused", small("lstm", "int8"), "only of float32"),
        ("float32", small("lstm", None), "only of quantized weights"),
    ],
)
def test_competitors_refuse_what_they_lack(monkeypatch, engine, case, because):
    monkeypatch.setattr(baselines, "find_spec", lambda name: name)
    assert baselines.refusal(engine, case, "infer") == because


@pytest.mark.parametrize("engine", ["torch", "torch-bfloat16", "torch-float32"])
def test_training_beside_autocast_and_modules_of_each_dtype(monkeypatch, engine):
    needs("torch")
    case = small("lstm", "bfloat16")
    assert baselines.refusal(engine, case, "train") is None
    expected = second_results(baselines.reference(case, "train"))
    for one in engine, "rnnkit":
        found = second_results(baselines.prepare(one, case, "train", 1))
        assert check.deviation(found, expected, case.desc, precision="bfloat16") is None
        assert (check.deviation(found, expected, case.desc) is None) == (one == "torch-float32")
    assert baselines.refusal("onnxruntime", case, "train") == "has no train"
    assert baselines.refusal("torch-bfloat16", case, "infer") == "only in training"
    assert baselines.refusal("torch-bfloat16", small("lstm", None), "train") == "only of products of bfloat16"


ON_CPU = [("avx512bf16", None), ("amx-bf16", None), ("avx512f", "has no bfloat16 on this CPU")]


@pytest.mark.parametrize(("feature", "because"), ON_CPU)
def test_openvino_runs_where_the_cpu_has_bfloat16(monkeypatch, feature, because):
    monkeypatch.setattr(baselines, "find_spec", lambda name: name)
    monkeypatch.setattr(reduced_suite.binding, "get_host_cpu_features", lambda: {feature: True})
    assert baselines.refusal("openvino", small("gru", "bfloat16"), "infer") == because


def test_cases_have_a_precision_and_those_of_bfloat16_training():
    names = {cases.row_name(case, name) for case in reduced_suite.CASES for name in case.passes}
    assert {"ds2-int8/lstm/infer", "lm-bfloat16/gru/infer", "step-n1-h1024-int8/lstm/step"} <= names
    trained = {name.partition("/")[0] for name in names if name.endswith("/train")}
    assert {"ds2-bfloat16", "varlen-bfloat16"} <= trained and all(name.endswith("-bfloat16") for name in trained)
    case = next(case for case in reduced_suite.CASES if case.name == "stream-int8/lstm")
    assert cases.streamed_bytes(case, "infer") == 4 * 256 * 256


@pytest.mark.parametrize("modes", [("lstm",), nightly(accuracy.MODES)])
def test_accuracy_of_plans_and_competitors(monkeypatch, modes):
    """Errors have the size of the precision, and do not add up over more steps."""
    monkeypatch.setattr(accuracy, "MODES", modes)
    found = dict(accuracy.errors([16], [1, 30]))
    assert {name.split()[0] for name in found} == set(modes)
    for name, (first, last) in found.items():
        is_exact = "feature" not in name or "rnnkit" in name  # int8 of others loses the small features
        form = name.split()[2].removesuffix("-native")
        low, high = {"float32": (1e-8, 1e-6), "bfloat16": (5e-4, 1e-2), "int8": (1e-3, 6e-2)}[form]
        assert not is_exact or (low < first < high and low < last < high)
    assert {"lstm 16 int8 rnnkit", "lstm 16 int8 rnnkit, a feature of 10000"} <= found.keys() or "lstm" not in modes


def test_accuracy_of_a_language_model(tmp_path, capsys):
    needs("torch")
    model = textmodel.TextModel.random(rnnkit.RNNDescriptor("gru", 8, 16), 0, np.frombuffer(b"ab", np.uint8))
    model.save(tmp_path / "model.npz")
    (tmp_path / "text").write_bytes(b"ab" * 5000)
    files = ["--model", str(tmp_path / "model.npz"), "--text", str(tmp_path / "text")]
    accuracy.main(["--units", "8", "--steps", "2", *files])
    lines = capsys.readouterr().out.splitlines()
    bits = {line[:32].strip(): float(line[32:]) for line in lines[lines.index("bits per byte") + 1 :]}
    forms, engines = ("float32", *reduced_suite.PRECISIONS), ("rnnkit", "torch")
    assert bits.keys() == {f"{form} {engine}" for form in forms for engine in engines} - {"bfloat16-native torch"}
    assert max(bits.values()) - min(bits.values()) < 0.02
    assert bits["float32 rnnkit"] == pytest.approx(bits["float32 torch"], abs=2e-4)


def test_accuracy_needs_a_model_with_its_text(capsys):
    with pytest.raises(SystemExit, match="2"):
        accuracy.main(["--model", "model.npz"])
    err = capsys.readouterr().err.splitlines()[-1]
    assert "--model" in err and "--text" in err
