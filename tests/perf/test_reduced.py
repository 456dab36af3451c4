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


@pytest.mark.parametrize("engine", ["torch", "torch-bfloat16", "torch-float32"])
def test_training_beside_autocast_and_modules_of_each_dtype(monkeypatch, engine):
    needs("torch")
    case = small("lstm", "bfloat16")
    if why := baselines.refusal(engine, case, "train"):
        assert engine == "torch"
        pytest.skip(f"PyTorch: {why}")
    expected = second_results(baselines.reference(case, "train"))
    for one in engine, "rnnkit":
        found = second_results(baselines.prepare(one, case, "train", 1))
        assert check.deviation(found, expected, case.desc, precision="bfloat16") is None
        assert (check.deviation(found, expected, case.desc) is None) == (one == "torch-float32")


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
