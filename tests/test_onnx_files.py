"""ONNX files: the operators in a model, and files that lie."""

import os
import sys
import warnings
from contextlib import suppress

import numpy as np
import pytest
from messages import says
from tolerances import assert_close, assert_same_bits

import rnnkit
from rnnkit.interop.onnx import stack_onnx, to_onnx
from rnnkit.interop.onnx_files import load_onnx, save_onnx

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
helper, numpy_helper = onnx.helper, onnx.numpy_helper

T, N, INPUT, H = 5, 4, 3, 2
NETS = {
    "rnn": lambda **options: rnnkit.RNN(INPUT, H, seed=0, **options),
    "relu": lambda **options: rnnkit.RNN(INPUT, H, nonlinearity="relu", seed=0, **options),
    "lstm": lambda **options: rnnkit.LSTM(INPUT, H, seed=0, **options),
    "gru": lambda **options: rnnkit.GRU(INPUT, H, seed=0, **options),
    "gru-before": lambda **options: rnnkit.GRU(INPUT, H, reset_after=False, seed=0, **options),
}


def layer_of(net=None, **options):
    """Arguments of from_onnx, of a small network."""
    return to_onnx(rnnkit.LSTM(INPUT, H, seed=0) if net is None else net, **options)[0]


def node_of(arguments, name="lstm", sources=(), outputs=("Y", "Y_h"), **attributes):
    """A node whose inputs are called as the operator's are; `sources` are those after B."""
    attributes = {k: v for k, v in arguments.items() if k not in ("op_type", "W", "R", "B")} | attributes
    return helper.make_node(arguments["op_type"], ["X", "W", "R", "B", *sources], outputs, name, **attributes)


def tensors(arguments):
    return [numpy_helper.from_array(arguments[name], name) for name in ("W", "R", "B")]


def model(nodes, constants, inputs=(), opset=17):
    value = helper.make_tensor_value_info
    x, y = value("X", onnx.TensorProto.FLOAT, ["T", "N", INPUT]), value("Y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "graph", [x, *inputs], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def written(path, made):
    path.write_bytes(made.SerializeToString())
    return path


def simple(path, **changed):
    """A file with one LSTM."""
    arguments = layer_of()
    return written(path, model([node_of(arguments, **changed)], tensors(arguments)))


def run(path, names, **inputs):
    session = runtime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    return session.run(names, inputs)


def assert_is_the_network(node, net):
    assert node.net.desc == net.desc
    assert_same_bits("weights", node.net.weights, net.weights)


def assert_refused(path, *facts, kind=ValueError, **options):
    """A refusal that begins with the function and the file."""
    with pytest.raises(kind, match=says(f"load_onnx: path {os.fspath(path)!r}", *facts)):
        load_onnx(path, **options)


# Models that load


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", NETS)
def test_an_operator_of_a_file_gives_what_onnx_runtime_gives(kind, bidirectional, reverse, tmp_path):
    net, reverse = NETS[kind](bidirectional=bidirectional), reverse and not bidirectional
    arguments = layer_of(net, reverse=reverse)
    names = ["Y", "Y_h", "Y_c"][: 2 + net.desc.has_cell_state]
    states = ["initial_h", "initial_c"][: 1 + net.desc.has_cell_state]
    directions = net.desc.num_directions
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (T, N, INPUT)).astype(np.float32)
    initial = [rng.uniform(-1, 1, (directions, N, H)).astype(np.float32) for _ in states]
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["D", "N", H]) for name in states]
    inputs.append(helper.make_tensor_value_info("sequence_lens", onnx.TensorProto.INT32, ["N"]))
    made = model([node_of(arguments, "the node", ["sequence_lens", *states], names)], tensors(arguments), inputs)
    made.graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names[1:])
    path = written(tmp_path / "model.onnx", made)
    lengths = [5, 1, 2, 4]
    fed = {"X": x, "sequence_lens": np.array(lengths, np.int32), **dict(zip(states, initial, strict=True))}
    expected = run(path, names, **fed)
    (node,) = load_onnx(path).values()
    assert node.computed == ("lengths", *("hx", "cx")[: len(states)]) and node.reverse == reverse
    assert_is_the_network(node, net)
    for name, found, other in zip(names, node.infer(x, *initial, lengths=lengths), expected, strict=False):
        assert_close(name, found, other, "float32")


def test_a_model_that_pytorch_exports(tmp_path):
    torch = pytest.importorskip("torch")
    rnn = torch.nn.LSTM(INPUT, H, num_layers=2, bidirectional=True).eval()
    x = torch.rand(T, N, INPUT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, of its own
        torch.onnx.export(rnn, (x,), tmp_path / "model", dynamo=False)
    nodes = load_onnx(tmp_path / "model")
    assert all(node.computed == ("hx", "cx") for node in nodes.values())
    found = stack_onnx(list(nodes.values())).infer(x.numpy())
    assert_close("y", found.y, rnn(x)[0].detach().numpy(), "float32")


def test_constants_of_every_kind_are_found(tmp_path):
    net = rnnkit.GRU(INPUT, H, seed=0)
    arguments = layer_of(net)
    w, r, b = tensors(arguments)
    own = np.ones((1, N, H), np.float32)
    nodes = [
        helper.make_node("Constant", [], ["W"], value=w),
        helper.make_node("Identity", ["kept"], ["R"]),
        node_of(arguments, "gru", ["", "initial_h"], ["Y"]),
    ]
    r.name = "kept"
    made = model(nodes, [r, b, numpy_helper.from_array(own, "initial_h")])
    node = load_onnx(written(tmp_path / "model", made))["gru"]
    assert_is_the_network(node, net)
    assert_same_bits("hx", node.hx, own)
    assert node.computed == () and node.lengths is None


def test_nodes_in_the_bodies_of_others_see_the_constants_around(tmp_path):
    arguments = layer_of()
    value = helper.make_tensor_value_info
    body = helper.make_graph([node_of(arguments, "inner", outputs=["Z"])], "body", [], [value("Z", 1, None)])
    other = helper.make_graph([node_of(arguments, "other", outputs=["Q"])], "body", [], [value("Q", 1, None)])
    chosen = helper.make_node("If", ["which"], ["Y"], then_branch=body, else_branch=other)
    made = model([chosen], tensors(arguments), [value("which", onnx.TensorProto.BOOL, [])])
    assert load_onnx(written(tmp_path / "model", made)).keys() == {"inner", "other"}


def test_nodes_go_by_their_names_or_outputs(tmp_path):
    arguments = layer_of()
    names = ["", "twice", "twice", "four"]
    nodes = [node_of(arguments, name, outputs=["", f"out_{k}"]) for k, name in enumerate(names)]
    foreign = node_of(arguments, "foreign", outputs=["far"])
    foreign.domain = "com.example"
    path = written(tmp_path / "model", model([*nodes, foreign], tensors(arguments)))
    assert list(load_onnx(path)) == ["out_0", "twice", "out_2", "four"]
    assert list(load_onnx(path, ["four", "out_0"])) == ["out_0", "four"]
    assert_refused(path, "five", "out_0, twice, out_2, four", names=["four", "five"])
    with pytest.raises(TypeError, match=says("load_onnx: names", None, "collection", "str")):
        load_onnx(path, "four")


def test_a_node_that_is_not_asked_for_may_be_any(tmp_path):
    arguments = layer_of()
    nodes = [node_of(arguments, "good"), node_of(arguments, "clipped", outputs=["Z"], clip=1.0)]
    path = written(tmp_path / "model", model(nodes, tensors(arguments)))
    assert list(load_onnx(path, ["good"])) == ["good"]
    assert_refused(path, "'clipped'", "from_onnx: clip", None)


def test_a_model_in_float64(tmp_path):
    net = rnnkit.LSTM(INPUT, H, seed=0, dtype="float64")
    arguments = layer_of(net)
    path = written(tmp_path / "model", model([node_of(arguments)], tensors(arguments)))
    assert_is_the_network(load_onnx(path)["lstm"], net)


# Data outside of the file


def external(folder, **changed):
    """A model whose tensors are in "data", beside it; `changed` is said of W's."""
    arguments = layer_of()
    made = model([node_of(arguments)], tensors(arguments))
    onnx.save(made, folder / "model.onnx", save_as_external_data=True, location="data", size_threshold=0)
    made = onnx.load(folder / "model.onnx", load_external_data=False)
    for entry in made.graph.initializer[0].external_data:
        entry.value = changed.get(entry.key, entry.value)
    return written(folder / "model.onnx", made)


def test_data_outside_of_the_file_are_read(tmp_path, monkeypatch):
    path = external(tmp_path)
    assert_is_the_network(load_onnx(path)["lstm"], rnnkit.LSTM(INPUT, H, seed=0))
    monkeypatch.chdir(tmp_path)
    assert_is_the_network(load_onnx("model.onnx")["lstm"], rnnkit.LSTM(INPUT, H, seed=0))
    (tmp_path / "inside").mkdir()
    os.rename(tmp_path / "data", tmp_path / "inside" / "data")
    os.symlink("inside/data", tmp_path / "data")
    assert_is_the_network(load_onnx(path)["lstm"], rnnkit.LSTM(INPUT, H, seed=0))


def test_data_that_are_missing(tmp_path):
    path = external(tmp_path)
    os.remove(tmp_path / "data")
    assert_refused(path, f"no file {os.fspath(tmp_path / 'data')!r}", "'W'", kind=FileNotFoundError)


def outside(folder):
    """The model's folder, and a file beside it that must not be read."""
    (folder / "models").mkdir()
    (folder / "secret").write_bytes(bytes(1000))
    os.symlink(folder / "secret", folder / "models" / "link")
    os.mkfifo(folder / "models" / "fifo")
    return folder / "models"


SAID = [
    (dict(location="../secret"), ["'W'", "'../secret'", "outside"]),
    (dict(location="/etc/hostname"), ["'W'", "'/etc/hostname'", "outside"]),
    (dict(location="link"), ["'W'", "'link'", "outside"]),
    (dict(location="nowhere/../../secret"), ["'W'", "'nowhere/../../secret'", "outside"]),
    (dict(location="fifo"), ["regular file", "a FIFO"]),
    (dict(location=""), ["regular file", "a folder"]),
    (dict(location="a\0b"), ["embedded null"]),
    (dict(offset="-4"), ["bytes -4 to"]),
    (dict(offset="many"), ["invalid literal"]),
    (dict(offset="9" * 400), ["bytes " + "9" * 400]),
    (dict(length="-1"), ["bytes 0 to -1"]),
    (dict(length="999999999999"), ["bytes 0 to 999999999999"]),
    (dict(length="12"), ["cannot reshape"]),
]


@pytest.mark.parametrize(("said", "facts"), SAID, ids=[f"{k}-{v[:9]!r}" for said, _ in SAID for k, v in said.items()])
def test_data_are_read_from_the_models_folder_alone_and_as_many_as_there_are(said, facts, tmp_path):
    path = external(outside(tmp_path), **said)
    assert_refused(path, "'lstm'", *facts)


# Files that are refused


def test_a_file_that_is_cut_off_anywhere(tmp_path):
    whole = simple(tmp_path / "whole").read_bytes()
    path = tmp_path / "part"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert_refused(path, "ONNX model", "cut-off")


def test_files_of_other_kinds(tmp_path):
    text = tmp_path / "text"
    text.write_text("no model\n" * 100)
    assert_refused(text, "ONNX model", "cut-off")
    with pytest.raises(FileNotFoundError):
        load_onnx(tmp_path / "none")
    assert_refused(tmp_path, "regular file", "folder")


def test_a_model_without_a_recurrent_operator(tmp_path):
    nodes = [helper.make_node("Relu", ["X"], ["Z"]), helper.make_node("Abs", ["Z"], ["Y"])]
    path = written(tmp_path / "model", model(nodes, []))
    assert_refused(path, "RNN, GRU or LSTM", "Abs, Relu")
    assert_refused(written(path, model([], [])), "RNN, GRU or LSTM", "none")


UNFIT = [
    (dict(clip=2.5), ["from_onnx: clip", None, 2.5]),
    (dict(input_forget=2), ["from_onnx: input_forget", 0, 1, 2]),
    (dict(direction="up"), ["from_onnx: direction", "'forward'", "'reverse'", "'bidirectional'", "'up'"]),
    (dict(activations=["Sigmoid", "Swish", "Tanh"]), ["from_onnx: activations", "3 of Sigmoid, Tanh, Relu, ", "Swish"]),
    (dict(output_sequence=1), ["attribute output_sequence"]),
    (dict(hidden_size="two"), ["RNNDescriptor: hidden_size", "int", "str"]),
    (dict(sources=["", "", "", "", "extra"]), ["9 inputs", "LSTM", 8]),
]


@pytest.mark.parametrize(("changed", "facts"), UNFIT, ids=[next(iter(changed)) for changed, _ in UNFIT])
def test_a_node_that_rnnkit_lacks_is_refused_by_name(changed, facts, tmp_path):
    path = simple(tmp_path / "model", **changed)
    assert_refused(path, "'lstm'", *facts)


@pytest.mark.parametrize("name", ["W", "B"])
def test_weights_that_the_model_computes(name, tmp_path):
    arguments = layer_of()
    constants = [tensor for tensor in tensors(arguments) if tensor.name != name]
    path = written(tmp_path / "model", model([node_of(arguments)], constants))
    assert_refused(path, "'lstm'", f"{name} from '{name}'", "constants")
    node = helper.make_node("LSTM", ["X", "", "R"], ["Y"], "lstm")
    path = written(tmp_path / "model", model([node], constants))
    assert_refused(path, "'lstm'", "no input W")


def test_weights_of_another_dtype_or_size(tmp_path):
    arguments = layer_of()
    w, r, b = tensors(arguments)
    half = numpy_helper.from_array(arguments["W"].astype(np.float16), "W")
    path = written(tmp_path / "model", model([node_of(arguments)], [half, r, b]))
    assert_refused(path, "'lstm'", "from_onnx: W", "float32", "float64", "float16")
    w.dims[2] += 1
    path = written(tmp_path / "model", model([node_of(arguments)], [w, r, b]))
    assert_refused(path, "'lstm'", "cannot reshape array of size 24")


def test_a_damaged_file_loads_or_is_refused(tmp_path):
    whole = np.frombuffer(simple(tmp_path / "whole").read_bytes(), np.uint8)
    rng, loaded = np.random.default_rng(0), []
    for _ in range(500):
        damaged = whole.copy()
        damaged[rng.integers(whole.size, size=3)] = rng.integers(256, size=3)
        (tmp_path / "damaged").write_bytes(damaged.tobytes())
        with suppress(ValueError):
            loaded.append(load_onnx(tmp_path / "damaged"))
    assert 50 < len(loaded) < 450


def test_names_that_are_no_text(tmp_path):
    path = simple(tmp_path / "model")
    path.write_bytes(path.read_bytes().replace(b"\x04lstm", b"\x04ls\xffm"))
    assert list(load_onnx(path)) == ["ls\N{REPLACEMENT CHARACTER}m"]


def test_the_package_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    facts = "installed", "none", "pip install 'rnnkit[onnx]'"
    with pytest.raises(ImportError, match=says("load_onnx: the package onnx", *facts)):
        load_onnx(tmp_path / "model")
    with pytest.raises(ImportError, match=says("save_onnx: the package onnx", *facts)):
        save_onnx(rnnkit.GRU(3, 2), tmp_path / "model")
    assert os.listdir(tmp_path) == []
