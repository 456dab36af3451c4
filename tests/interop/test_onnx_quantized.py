"""DynamicQuantizeLSTM, ONNX Runtime's LSTM with weights of 8 bits."""

import numpy as np
import pytest
from messages import says
from onnx_models import INPUT, H, N, T, helper, layer_of, model, onnx, run, written
from tolerances import assert_same_bits

import rnnkit
from rnnkit.interop.onnx_files import load_onnx, save_onnx

quantization = pytest.importorskip("onnxruntime.quantization")


def quantized(folder, net, **options):
    """A network that ONNX Runtime has quantized."""
    save_onnx(net, folder / "float", inputs=["hx", "cx", "lengths"])
    quantization.quantize_dynamic(folder / "float", folder / "int8", op_types_to_quantize=["LSTM"], **options)
    return folder / "int8"


@pytest.mark.filterwarnings("ignore")  # of ONNX Runtime, about models that were not prepared
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
def test_quantized_model_is_as_accurate_as_in_onnx_runtime(kind, per_channel, bidirectional, tmp_path):
    net = rnnkit.LSTM(40, 64, bidirectional=bidirectional, seed=0)
    path = quantized(tmp_path, net, per_channel=per_channel, weight_type=quantization.QuantType[kind])
    (node,) = load_onnx(path).values()
    assert node.plan.precision == "int8" and node.computed == ("lengths", "hx", "cx")
    rng, directions = np.random.default_rng(0), net.desc.num_directions
    x, h, c = (rng.normal(size=shape).astype("f4") for shape in ((30, 4, 40), *[(directions, 4, 64)] * 2))
    lengths = np.array([30, 7, 12, 1], np.int32)
    (theirs,) = run(path, ["y"], x=x, hx=h, cx=c, lengths=lengths)
    exact = node.net.infer(x, h, c, lengths=lengths).y
    ours = node.infer(x, h, c, lengths=lengths).y.swapaxes(1, 2).reshape(theirs.shape)
    error, their_error = abs(ours - exact).mean(), abs(theirs - exact).mean()
    assert 1e-5 < error < 2e-3  # theirs is 5e-3 on a CPU without VNNI, where sums of two of their products saturate
    assert error < 1.1 * their_error
    assert abs(exact - net.infer(x, h, c, lengths=lengths).y).max() < 0.02


def operator(shape=(1,), weights=np.int8, **arrays):
    """Inputs of an operator: those of an LSTM, and what is quantized, by name."""
    rng, sizes = np.random.default_rng(0), {"W": INPUT, "R": H}
    found = {
        name: rng.integers(-127 if weights is np.int8 else 0, 127, (1, size, 4 * H)) for name, size in sizes.items()
    }
    found = {name: array.astype(weights) for name, array in found.items()}
    found["B"] = layer_of()["B"]
    for name in "W", "R":
        found[f"{name}_scale"] = rng.uniform(0.01, 0.02, shape).astype("f4")
        found[f"{name}_zero_point"] = rng.integers(0, 9, shape).astype(weights)
    return found | arrays


def saved(folder, arrays, **attributes):
    names = ["W", "R", "B", "", "", "", "", "W_scale", "W_zero_point", "R_scale", "R_zero_point"]
    names = ["X", *(name if arrays.get(name) is not None else "" for name in names)]
    attributes = {"hidden_size": H} | attributes
    node = helper.make_node("DynamicQuantizeLSTM", names, ["Y"], "q", domain="com.microsoft", **attributes)
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items() if array is not None]
    made = model([node], constants)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return written(folder / "model", made)


@pytest.mark.parametrize("weights", [np.int8, np.uint8])
@pytest.mark.parametrize("shape", [(1,), (1, 4 * H)])
def test_weights_are_what_the_operator_stores(shape, weights, tmp_path):
    arrays = operator(shape, weights)
    node = load_onnx(saved(tmp_path, arrays))["q"]
    floats = {
        name: (arrays[name].astype("f4") - arrays[f"{name}_zero_point"][:, None]) * arrays[f"{name}_scale"][:, None]
        for name in ("W", "R")
    }
    turned = {name: array.reshape(1, -1, 4 * H).swapaxes(1, 2) for name, array in floats.items()}
    same = rnnkit.interop.from_onnx("LSTM", turned["W"], turned["R"], arrays["B"])
    assert_same_bits("weights", node.net.weights, same.net.weights)
    x = np.random.default_rng(1).normal(size=(T, N, INPUT)).astype("f4")
    assert_same_bits("y", node.infer(x).y[:, 0], node.net.prepare(precision="int8").infer(x).y)
    assert_same_bits("y", node.prepare().infer(x).y[:, 0], node.net.infer(x).y)


def test_steps_and_streams_have_the_bits_of_the_sequence(tmp_path):
    node = load_onnx(saved(tmp_path, operator()))["q"]
    x = np.random.default_rng(1).normal(size=(T, N, INPUT)).astype("f4")
    y, stream, states = node.infer(x).y[:, 0], node.stream(N), ()
    for step, expected in zip(x, y, strict=True):
        found, *states = node.step(step, *states)
        assert_same_bits("step", found, expected)
        assert_same_bits("stream", stream.step(step), expected)


@pytest.mark.parametrize(
    ("name", "facts", "array"),
    [
        ("W", ("W", "int8 or uint8", "float32"), np.zeros((1, INPUT, 4 * H), "f4")),
        ("R", ("R", "(num_directions, size, 4*hidden_size)", (H, 4 * H)), np.zeros((H, 4 * H), np.int8)),
        ("W_scale", ("W_scale", "be a constant", "none"), None),
        ("R_scale", ("R_scale", "float32", "float64"), np.ones(1)),
        ("W_zero_point", ("W_zero_point", "int8", "uint8"), np.ones(1, np.uint8)),
        ("R_zero_point", ("R_zero_point", (1,), (1, 4 * H), (2,)), np.ones(2, np.int8)),
    ],
)
def test_damaged_operator_is_refused(name, facts, array, tmp_path):
    path = saved(tmp_path, operator(**{name: array}))
    with pytest.raises(ValueError, match=says("load_onnx", "'q' is unsupported", *facts)):
        load_onnx(path)
