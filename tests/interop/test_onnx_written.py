"""ONNX models that are written: ONNX Runtime runs them with our results, and warns of nothing."""

import os
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from messages import says
from onnx_models import INPUT, NETS, H, N, T, layer_of, model, node_of, onnx, run, tensors, written
from problems import Problem
from refused import refusals
from strategies import problems
from tolerances import assert_outputs_close, assert_same_bits

import rnnkit
from rnnkit.interop.onnx import stack_onnx
from rnnkit.interop.onnx_files import load_onnx, save_onnx
from rnnkit.network.networks import network_of

OPTIONS = {
    "plain": {},
    "deep": dict(num_layers=3, bias="input", dropout=0.5),
    "deep-both-ways": dict(num_layers=2, bidirectional=True),
    "no-bias-both-ways": dict(bias="none", bidirectional=True),
}


def named(outputs):
    return rnnkit.Infer(*outputs, *[None] * (3 - len(outputs)))


def arguments_of(net, batch_size=N, seed=1):
    """x, hx and cx."""
    desc, rng = net.desc, np.random.default_rng(seed)
    state = (desc.num_pseudo_layers, batch_size, desc.hidden_size)
    shapes = {"x": (T, batch_size, desc.input_size), "hx": state, "cx": state}
    found = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    return found if desc.has_cell_state else {name: found[name] for name in ("x", "hx")}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", NETS)
def test_onnx_runtime_gives_the_results_of_the_network(kind, options, tmp_path):
    net, path = NETS[kind](**OPTIONS[options]), tmp_path / "model.onnx"
    states, lengths = arguments_of(net), np.array([5, 0, 2, 4], np.int32)
    x = states.pop("x")
    for beside in ({}, states, {"lengths": lengths}, states | {"lengths": lengths}):
        save_onnx(net, path, inputs=beside)
        onnx.checker.check_model(path, full_check=True)
        assert_outputs_close(named(run(path, None, x=x, **beside)), net.infer(x, **beside), "float32")
    save_onnx(net, path, inputs=states)
    for length in (2, 0):
        shorter = {name: array[:, :1] for name, array in states.items()} | {"x": x[:length, :1]}
        assert_outputs_close(named(run(path, None, **shorter)), net.infer(**shorter), "float32")


@given(problem=problems(dtype="float32", proj_size=None, cell_clip=None))
@example(problem=Problem("lstm", dtype="float32", seq_len=0, lengths=(0, 0, 0)))
def test_onnx_runtime_gives_the_results_of_any_network(problem, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "model.onnx"
    beside = {"hx": problem.hx, "cx": problem.cx}
    beside["lengths"] = None if problem.lengths is None else np.array(problem.lengths, np.int32)
    beside = {name: array for name, array in beside.items() if array is not None}
    save_onnx(network_of(problem.desc, problem.w), path, inputs=beside)
    assert_outputs_close(named(run(path, None, x=problem.x, **beside)), problem.infer(), "float32")


def test_onnx_runtime_warns_of_nothing(tmp_path, capfd):
    path, inputs = tmp_path / "model.onnx", arguments_of(net := rnnkit.LSTM(INPUT, H, num_layers=2, seed=0))
    for names in ([], ["hx", "cx"]):
        save_onnx(net, path, inputs=names)
        run(path, None, **{name: inputs[name] for name in ("x", *names)})
    assert capfd.readouterr() == ("", "")


def test_written_layers_load_as_they_were(tmp_path):
    net = rnnkit.LSTM(INPUT, H, num_layers=3, bidirectional=True, seed=0)
    save_onnx(net, tmp_path / "model.onnx")
    nodes = load_onnx(tmp_path / "model.onnx")
    assert list(nodes) == ["layer_0", "layer_1", "layer_2"]
    back = stack_onnx(list(nodes.values()))
    assert back.desc == net.desc
    assert_same_bits("weights", back.weights, net.weights)


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_network_in_reverse_reads_backwards(kind, num_layers, tmp_path):
    net, path = NETS[kind](num_layers=num_layers), tmp_path / "model.onnx"
    inputs, lengths = arguments_of(net), [5, 0, 2, 4]
    save_onnx(net, path, reverse=True, inputs=(inputs | {"lengths": lengths}).keys() - {"x"})
    order = np.array([[*reversed(range(length)), *range(length, T)] for length in lengths]).T[:, :, None]
    expected = net.infer(**inputs | {"x": np.take_along_axis(inputs["x"], order, 0)}, lengths=lengths)
    expected = expected._replace(y=np.take_along_axis(expected.y, order, 0))
    found = named(run(path, None, **inputs, lengths=np.array(lengths, np.int32)))
    assert_outputs_close(found, expected, "float32")
    assert all(node.reverse for node in load_onnx(path).values())


def test_one_initial_state_serves_all_sequences(tmp_path):
    net, path = rnnkit.LSTM(INPUT, H, seed=0), tmp_path / "model.onnx"
    save_onnx(net, path, inputs=["hx", "cx"])
    inputs = arguments_of(net)
    one = {name: inputs[name][:, :1] for name in ("hx", "cx")}
    all_rows = {name: np.repeat(array, N, axis=1) for name, array in one.items()}
    found = named(run(path, None, x=inputs["x"], **one))
    assert_outputs_close(found, net.infer(inputs["x"], **all_rows), "float32")


LSTM, GRU = rnnkit.LSTM(3, 4), rnnkit.GRU(3, 4)
REFUSED = [
    (rnnkit.LSTM(3, 4, proj_size=2), {}, "net.desc.proj_size | None | 2 | ONNX"),
    (rnnkit.LSTM(3, 4, cell_clip=(-1, 1)), {}, "net.desc.cell_clip | None | (-1.0, 1.0)"),
    (rnnkit.GRU(3, 4, dtype="float64"), {}, "net.desc.dtype | float32 | 'float64' | ONNX Runtime"),
    (rnnkit.GRU(3, 4, bidirectional=True), dict(reverse=True), "reverse | False"),
    (GRU, dict(inputs=["hx", "cx"]), "inputs | hx, lengths | 'hx', 'cx'"),
    (LSTM, dict(inputs=["x", [0]]), "inputs | hx, cx, lengths | 'x', [0]"),
    (GRU, dict(inputs="hx"), "TypeError inputs | collection | str"),
    ("net", {}, "TypeError net | rnnkit.RNN | GRU | LSTM | str"),
]


@refusals(save_onnx=[(partial(save_onnx, net, **options), text) for net, options, text in REFUSED])
def test_networks_that_onnx_runtime_lacks_are_refused_unwritten(call, kind, expected, tmp_path):
    with pytest.raises(kind, match=expected):
        call(path=tmp_path / "model.onnx")
    assert os.listdir(tmp_path) == []


def test_model_of_more_bytes_than_a_file_holds_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("rnnkit.interop.onnx_files.MAX_BYTES", 100)
    with pytest.raises(ValueError, match=says("save_onnx: net", 100, "bytes")):
        save_onnx(GRU, tmp_path / "model.onnx")


def test_onnx_runtime_has_no_float64(tmp_path):
    """The reason of a refusal; where this fails, float64 can be written."""
    arguments = layer_of(rnnkit.GRU(INPUT, H, dtype="float64"))
    made = model([node_of(arguments)], tensors(arguments))
    for tensor in (made.graph.input[0], made.graph.output[0]):
        tensor.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    with pytest.raises(Exception, match="GRU operator does not support double yet"):
        run(written(tmp_path / "model", made), None, X=np.ones((T, N, INPUT)))
