"""ONNX files: the operators in a model, and files that lie."""

import os
import warnings
from contextlib import suppress

import numpy as np
import pytest
from messages import says
from onnx_models import INPUT, NETS, H, N, T, helper, layer_of, model, node_of, onnx, run, tensors, written
from optional import needs
from tolerances import assert_close, assert_same_bits

import rnnkit
from rnnkit.interop.onnx import stack_onnx
from rnnkit.interop.onnx_files import load_onnx


def saved(folder, nodes, constants, inputs=()):
    return written(folder / "model", model(nodes, constants, inputs))


def simple(folder, **changed):
    """A file with one LSTM."""
    arguments = layer_of()
    return saved(folder, [node_of(arguments, **changed)], tensors(arguments))


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
def test_operator_in_a_file_gives_what_onnx_runtime_gives(kind, bidirectional, reverse, tmp_path):
    net, reverse = NETS[kind](bidirectional=bidirectional), reverse and not bidirectional
    arguments = layer_of(net, reverse=reverse)
    names = ["Y", "Y_h", "Y_c"][: 2 + net.desc.has_cell_state]
    states = ["initial_h", "initial_c"][: 1 + net.desc.has_cell_state]
    rng, shapes = np.random.default_rng(1), [(T, N, INPUT), *[(net.desc.num_directions, N, H)] * len(states)]
    x, *initial = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
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


def test_model_exported_by_pytorch_loads(tmp_path):
    torch = needs("torch")
    rnn = torch.nn.LSTM(INPUT, H, num_layers=2, bidirectional=True).eval()
    x = torch.rand(T, N, INPUT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, of its own
        torch.onnx.export(rnn, (x,), tmp_path / "model", dynamo=False)
    nodes = list(load_onnx(tmp_path / "model").values())
    assert all(node.computed == () and node.hx is None for node in nodes)  # zeros of the shape of x
    assert_close("y", stack_onnx(nodes).infer(x.numpy()).y, rnn(x)[0].detach().numpy(), "float32")


def test_constants_of_every_kind_are_found(tmp_path):
    net, own = rnnkit.GRU(INPUT, H, seed=0), np.ones((1, N, H), np.float32)
    arguments = layer_of(net)
    w, r, b = tensors(arguments)
    nodes = [
        helper.make_node("Constant", [], ["W"], value=w),
        helper.make_node("Identity", ["kept"], ["R"]),
        node_of(arguments, "gru", ["", "initial_h"], ["Y"]),
    ]
    r.name = "kept"
    node = load_onnx(saved(tmp_path, nodes, [r, b, onnx.numpy_helper.from_array(own, "initial_h")]))["gru"]
    assert_is_the_network(node, net)
    assert_same_bits("hx", node.hx, own)
    assert node.computed == () and node.lengths is None


def constant(name, values):
    return onnx.numpy_helper.from_array(np.asarray(values), name)


def test_weights_that_constants_give_are_folded(tmp_path):
    """As exporters write them: cut, joined, and with more axes."""
    net = rnnkit.GRU(INPUT, H, seed=0)
    arguments = layer_of(net)
    w, r, b = (arguments[name] for name in ("W", "R", "B"))
    make = helper.make_node
    nodes = [
        make("Slice", ["w_and_more", "first", "last", "rows"], ["w_rows"]),
        make("Unsqueeze", ["w_rows", "first"], ["W"]),
        make("Transpose", ["r_turned"], ["r"], perm=[1, 0]),
        make("Reshape", ["r", "r_shape"], ["R"]),
        make("Split", ["b_twice"], ["b", "unread"], axis=0, num_outputs=2),
        make("Mul", ["b", "two"], ["double"]),
        make("Concat", ["double"], ["joined"], axis=0),
        make("Cast", ["joined"], ["B"], to=onnx.TensorProto.FLOAT),
        node_of(arguments, "gru", outputs=["Y"]),
    ]
    constants = [
        constant("w_and_more", np.concatenate([w[0], w[0][:2]])), constant("first", np.array([0])),
        constant("last", np.array([len(w[0])])), constant("rows", np.array([0])), constant("r_turned", r[0].T.copy()),
        constant("r_shape", np.array(r.shape)), constant("b_twice", np.concatenate([b / 2, b])),
        constant("two", np.float32(2)),
    ]  # fmt: skip
    path = written(tmp_path / "model", model(nodes, constants, opset=18))
    assert_is_the_network(load_onnx(path)["gru"], net)


@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize("way", ["ConstantOfShape", "Expand"])
def test_zeros_of_a_computed_shape_are_no_states(way, value, tmp_path):
    arguments, make = layer_of(), helper.make_node
    tensor = onnx.helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [value])
    nodes = [
        make("Shape", ["X"], ["shape"]),
        make("Gather", ["shape", "one"], ["batch"]),
        make("Concat", ["direction", "batch", "units"], ["wanted"], axis=0),
        make(way, ["wanted"], ["h"], value=tensor) if way == "ConstantOfShape" else make(way, ["v", "wanted"], ["h"]),
        make("Identity", ["h"], ["initial_h"]),
        node_of(arguments, sources=["", "initial_h", "initial_c"]),
    ]
    constants = [
        *tensors(arguments), constant("one", np.array([1])), constant("direction", np.array([1])),
        constant("units", np.array([H])), constant("v", np.float32(value)),
        constant("initial_c", np.zeros((1, N, H), np.float32)),
    ]  # fmt: skip
    (node,) = load_onnx(saved(tmp_path, nodes, constants)).values()
    assert node.computed == (("hx",) if value else ()) and node.hx is node.cx is None and node.inputs == ()
    if value:
        with pytest.raises(ValueError, match=says("stack_onnx: nodes[0]", "hx", "computed=()")):
            stack_onnx([node])
        stack_onnx([node._replace(computed=())])


def test_constants_of_any_size_and_depth_are_looked_at(tmp_path):
    """Of a damaged file: shapes of many terabytes, operators that depend on themselves, and what NumPy refuses."""
    arguments, make = layer_of(), helper.make_node
    w, r, b = tensors(arguments)
    huge = make("ConstantOfShape", ["huge"], ["W"])
    path = saved(tmp_path, [huge, node_of(arguments)], [r, b, constant("huge", np.array([1 << 40]))])
    assert_refused(path, "'lstm'", "W from 'W'", "constants")
    circle = [make("Identity", ["W"], ["V"]), make("Identity", ["V"], ["W"])]
    assert_refused(saved(tmp_path, [*circle, node_of(arguments)], [r, b]), "'lstm'", "W from 'W'", "constants")
    deep = [make("Identity", [f"w{i}"], [f"w{i + 1}"]) for i in range(5000)]
    path = saved(tmp_path, [*deep, node_of(arguments, sources=["", "w5000"])], [w, r, b, constant("w0", np.zeros(1))])
    assert load_onnx(path)["lstm"].computed == ("hx",)
    wrong = make("Reshape", ["w", "shape"], ["W"])
    path = saved(
        tmp_path, [wrong, node_of(arguments)], [r, b, constant("w", np.ones(3)), constant("shape", np.array([7]))]
    )
    assert_refused(path, "'lstm'", "Reshape", "cannot be computed")


def test_nodes_in_bodies_see_the_constants_around(tmp_path):
    arguments, value = layer_of(), helper.make_tensor_value_info
    body, other = (
        helper.make_graph([node_of(arguments, name, outputs=[output])], "body", [], [value(output, 1, None)])
        for name, output in (("inner", "Z"), ("other", "Q"))
    )
    chosen = helper.make_node("If", ["which"], ["Y"], then_branch=body, else_branch=other)
    path = saved(tmp_path, [chosen], tensors(arguments), [value("which", onnx.TensorProto.BOOL, [])])
    assert load_onnx(path).keys() == {"inner", "other"}


def test_nodes_are_listed_by_name_or_output(tmp_path):
    arguments = layer_of()
    names = ["", "twice", "twice", "four"]
    nodes = [node_of(arguments, name, outputs=["", f"out_{k}"]) for k, name in enumerate(names)]
    foreign = node_of(arguments, "foreign", outputs=["far"])
    foreign.domain = "com.example"
    path = saved(tmp_path, [*nodes, foreign], tensors(arguments))
    assert list(load_onnx(path)) == ["out_0", "twice", "out_2", "four"]
    assert list(load_onnx(path, ["four", "out_0"])) == ["out_0", "four"]
    assert_refused(path, "five", "out_0, twice, out_2, four", names=["four", "five"])
    with pytest.raises(TypeError, match=says("load_onnx: names", None, "collection", "str")):
        load_onnx(path, "four")


def test_unsupported_node_that_is_not_asked_for_is_skipped(tmp_path):
    arguments = layer_of()
    nodes = [node_of(arguments, "good"), node_of(arguments, "clipped", outputs=["Z"], clip=1.0)]
    path = saved(tmp_path, nodes, tensors(arguments))
    assert list(load_onnx(path, ["good"])) == ["good"]
    assert_refused(path, "'clipped'", "from_onnx: clip", None)


def test_float64_model_loads(tmp_path):
    net = rnnkit.LSTM(INPUT, H, seed=0, dtype="float64")
    arguments = layer_of(net)
    path = saved(tmp_path, [node_of(arguments)], tensors(arguments))
    assert_is_the_network(load_onnx(path)["lstm"], net)


# Data outside of the file


def external(folder, **changed):
    """A model whose tensors are in "data", beside it; `changed` is said of W's."""
    path = simple(folder)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="data", size_threshold=0)
    made = onnx.load(path, load_external_data=False)
    for entry in made.graph.initializer[0].external_data:
        entry.value = changed.get(entry.key, entry.value)
    return written(path, made)


def test_external_data_are_read(tmp_path, monkeypatch):
    path = external(tmp_path)
    assert_is_the_network(load_onnx(path)["lstm"], rnnkit.LSTM(INPUT, H, seed=0))
    monkeypatch.chdir(tmp_path)
    assert_is_the_network(load_onnx("model")["lstm"], rnnkit.LSTM(INPUT, H, seed=0))
    (tmp_path / "inside").mkdir()
    os.rename(tmp_path / "data", tmp_path / "inside" / "data")
    os.symlink("inside/data", tmp_path / "data")
    assert_is_the_network(load_onnx(path)["lstm"], rnnkit.LSTM(INPUT, H, seed=0))


def test_missing_external_data_are_refused(tmp_path):
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
def test_external_data_outside_of_folder_or_file_are_refused(said, facts, tmp_path):
    assert_refused(external(outside(tmp_path), **said), "'lstm'", *facts)


# Files that are refused


def test_file_cut_off_anywhere_is_refused(tmp_path):
    path = simple(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert_refused(path, "ONNX model", "cut-off")


def test_text_folders_and_missing_files_are_refused(tmp_path):
    text = tmp_path / "text"
    text.write_text("no model\n" * 100)
    assert_refused(text, "ONNX model", "cut-off")
    with pytest.raises(FileNotFoundError):
        load_onnx(tmp_path / "none")
    assert_refused(tmp_path, "regular file", "folder")


def test_model_without_a_recurrent_operator_is_refused(tmp_path):
    nodes = [helper.make_node("Relu", ["X"], ["Z"]), helper.make_node("Abs", ["Z"], ["Y"])]
    assert_refused(saved(tmp_path, nodes, []), "RNN, GRU, LSTM or DynamicQuantizeLSTM", "Abs, Relu")
    assert_refused(saved(tmp_path, [], []), "RNN, GRU, LSTM or DynamicQuantizeLSTM", "none")


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
def test_unsupported_node_is_refused_by_name(changed, facts, tmp_path):
    assert_refused(simple(tmp_path, **changed), "'lstm'", *facts)


@pytest.mark.parametrize("name", ["W", "B"])
def test_weights_that_the_model_computes_are_refused(name, tmp_path):
    arguments = layer_of()
    constants = [tensor for tensor in tensors(arguments) if tensor.name != name]
    path = saved(tmp_path, [node_of(arguments)], constants)
    assert_refused(path, "'lstm'", f"{name} from '{name}'", "constants")
    node = helper.make_node("LSTM", ["X", "", "R"], ["Y"], "lstm")
    assert_refused(saved(tmp_path, [node], constants), "'lstm'", "no input W")


def test_weights_of_other_dtypes_or_sizes_are_refused(tmp_path):
    arguments = layer_of()
    w, r, b = tensors(arguments)
    half = onnx.numpy_helper.from_array(arguments["W"].astype(np.float16), "W")
    path = saved(tmp_path, [node_of(arguments)], [half, r, b])
    assert_refused(path, "'lstm'", "from_onnx: W", "float32", "float64", "float16")
    w.dims[2] += 1
    assert_refused(saved(tmp_path, [node_of(arguments)], [w, r, b]), "'lstm'", "cannot reshape array of size 24")


def test_damaged_file_loads_or_is_refused(tmp_path):
    whole = np.frombuffer(simple(tmp_path).read_bytes(), np.uint8)
    rng, loaded = np.random.default_rng(0), []
    for _ in range(500):
        damaged = whole.copy()
        damaged[rng.integers(whole.size, size=3)] = rng.integers(256, size=3)
        (tmp_path / "damaged").write_bytes(damaged.tobytes())
        with suppress(ValueError):
            loaded.append(load_onnx(tmp_path / "damaged"))
    assert 50 < len(loaded) < 450


def test_name_that_is_no_text_has_replacement_characters(tmp_path):
    path = simple(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"\x04lstm", b"\x04ls\xffm"))
    assert list(load_onnx(path)) == ["ls\N{REPLACEMENT CHARACTER}m"]
