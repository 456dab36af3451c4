"""The cells that ONNX's LSTM has: peepholes, coupled gates and activations, as ONNX Runtime computes them and back."""

import os

import numpy as np
import pytest
from combinations import nightly, pairs
from messages import says
from tolerances import assert_close, assert_same_bits

import rnnkit
from rnnkit import cells
from rnnkit.interop.onnx import from_onnx, stack_onnx, to_onnx

T, N, INPUT, H = 5, 4, 3, 2
LENGTHS = [5, 1, 2, 4]
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
HARD = dict(activations=["HardSigmoid", "softsign", "ScaledTanh"], activation_alpha=[0.3, 1.7],
            activation_beta=[0.4, 0.6])  # fmt: skip
THREE = cells.HardSigmoid(0.3, 0.4), cells.Softsign(), cells.ScaledTanh(1.7, 0.6)
# Attributes, whether there is P, and the cell.
KINDS = {
    "peephole": ({}, True, cells.PeepholeLSTM()),
    "peephole-hard": (HARD, True, cells.PeepholeLSTM(*THREE)),
    "coupled": (dict(input_forget=1), False, cells.CoupledLSTM()),
    "coupled-hard": (HARD | dict(input_forget=1), False, cells.CoupledLSTM(*THREE)),
    "hard": (HARD, False, cells.ActivatedLSTM(*THREE)),
    "elu": (dict(activations=["Sigmoid", "Elu", "Affine"], activation_alpha=[0.7, 0.5], activation_beta=[0.1]), False,
            cells.ActivatedLSTM(cells.Sigmoid(), cells.Elu(0.7), cells.Affine(0.5, 0.1))),
    "relus": (dict(activations=["LeakyRelu", "Softplus", "ThresholdedRelu"], activation_alpha=[0.2, 0.1]), False,
              cells.ActivatedLSTM(cells.LeakyRelu(0.2), cells.Softplus(), cells.ThresholdedRelu(0.1))),
    "defaults": (dict(activations=["HardSigmoid", "Relu", "Elu"]), False,
                 cells.ActivatedLSTM(cells.HardSigmoid(0.2, 0.5), cells.Relu(), cells.Elu(1.0))),
    "usual": (dict(activations=["Sigmoid", "Tanh", "Tanh"]), False, "lstm"),
}  # fmt: skip
# Kernels of each cell take seconds to compile.
BY_DEFAULT = "peephole-hard", "coupled", "usual"
RARE = tuple(kind for kind in KINDS if kind not in BY_DEFAULT)


def drawn(directions, peepholes, dtype="float32"):
    rng = np.random.default_rng(0)
    shapes = {"W": (directions, 4 * H, INPUT), "R": (directions, 4 * H, H), "B": (directions, 8 * H)}
    shapes |= {"P": (directions, 3 * H)} if peepholes else {}
    return {name: rng.uniform(-1, 1, shape).astype(dtype) for name, shape in shapes.items()}


def arguments_of(kind, direction="forward", dtype="float32"):
    """Arguments of from_onnx, and the cell that it must find."""
    attributes, peepholes, cell = KINDS[kind]
    directions = DIRECTIONS[direction]
    attributes = {name: one * directions if isinstance(one, list) else one for name, one in attributes.items()}
    return drawn(directions, peepholes, dtype) | attributes | {"direction": direction}, cell


def by_onnx_runtime(arguments, **inputs):
    """Y, Y_h and Y_c of an operator."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    helper, arrays = onnx.helper, {name: arguments[name] for name in "WRBP" if name in arguments}
    attributes = {name: value for name, value in arguments.items() if name not in arrays} | {"hidden_size": H}
    names = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", *(["P"] if "P" in arrays else [])]
    node = helper.make_node("LSTM", names, ["Y", "Y_h", "Y_c"], "lstm", **attributes)
    kinds = {name: onnx.TensorProto.INT32 if name == "sequence_lens" else onnx.TensorProto.FLOAT for name in inputs}
    given = [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in inputs.items()]
    wanted = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("Y", "Y_h", "Y_c")]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([node], "graph", given, wanted, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


@pytest.mark.parametrize(("kind", "direction"), pairs([*BY_DEFAULT, *map(nightly, RARE)], DIRECTIONS))
def test_an_operator_gives_what_onnx_runtime_gives(kind, direction):
    arguments, cell = arguments_of(kind, direction)
    rng, states = np.random.default_rng(1), (DIRECTIONS[direction], N, H)
    x = rng.uniform(-2, 2, (T, N, INPUT)).astype(np.float32)
    h, c = (rng.uniform(-1, 1, states).astype(np.float32) for _ in range(2))
    lengths = np.array(LENGTHS, np.int32)
    expected = by_onnx_runtime(arguments, X=x, sequence_lens=lengths, initial_h=h, initial_c=c)
    node = from_onnx("LSTM", **arguments)
    assert node.net.desc.mode == cell
    for name, ours, other in zip(("y", "hy", "cy"), node.infer(x, h, c, lengths=LENGTHS), expected, strict=True):
        assert_close(name, ours, other, "float32")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_gives_the_same_bits(kind, direction):
    arguments, cell = arguments_of(kind, direction, "float64")
    node = from_onnx("LSTM", **arguments)
    (back,) = to_onnx(node.net, reverse=node.reverse)
    again = from_onnx(**back)
    assert again.net.desc == node.net.desc and again.reverse == node.reverse
    assert_same_bits("weights", again.net.weights, node.net.weights)
    forgotten = slice(2 * H, 3 * H) if isinstance(cell, cells.CoupledLSTM) else slice(0)
    for name in "WRP":
        wanted = arguments.get(name)
        if name in "WR":
            wanted[:, forgotten] = 0  # what the coupled gate does not have
        assert_same_bits(name, back.get(name), wanted)


@pytest.mark.parametrize(("kind", "options"), pairs(
    [*BY_DEFAULT, *map(nightly, RARE)], [dict(num_layers=2), dict(num_layers=2, bidirectional=True, bias="input")]
))  # fmt: skip
def test_onnx_runtime_gives_the_results_of_a_network_in_a_file(kind, options, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    from rnnkit.interop.onnx_files import load_onnx, save_onnx

    net, path = rnnkit.Network(KINDS[kind][2], INPUT, H, seed=0, **options), tmp_path / "model.onnx"
    save_onnx(net, path, inputs=["hx", "cx", "lengths"])
    rng, states = np.random.default_rng(1), (net.desc.num_pseudo_layers, N, H)
    shapes = {"x": (T, N, INPUT), "hx": states, "cx": states}
    inputs = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    session = runtime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    found = session.run(None, inputs | {"lengths": np.array(LENGTHS, np.int32)})
    for name, ours, other in zip(("y", "hy", "cy"), net.infer(**inputs, lengths=LENGTHS), found, strict=True):
        assert_close(name, other, ours, "float32")
    back = stack_onnx(list(load_onnx(path).values()))  # its numbers are float32 now
    assert type(back.desc.mode) is type(net.desc.mode)
    assert_same_bits("y", back.infer(**inputs).y, net.infer(**inputs).y)


REFUSED = [
    (dict(activations=["Tanh", "Tanh"]), "activations",
     ["3 of Sigmoid, Tanh, Relu, Affine, LeakyRelu, ThresholdedRelu, ScaledTanh, HardSigmoid, Elu, Softsign, Softplus",
      "op_type='LSTM'", ["Tanh", "Tanh"]]),
    (dict(activations=["Sigmoid", "Tanh", "Swish"]), "activations", ["3 of Sigmoid", "Swish"]),
    (dict(activations=["Sigmoid", "Tanh", "Tanh", "Relu", "Tanh", "Tanh"], direction="bidirectional"),
     "activations", ["3 of Sigmoid", "'Relu'"]),
    (dict(activations=["LeakyRelu", "Tanh", "Tanh"] * 2, activation_alpha=[0.1, 0.2], direction="bidirectional"),
     "activation_alpha and activation_beta", [(0.1, 0.2)]),
    (dict(activations=["HardSigmoid", "Elu", "Tanh"], activation_alpha=[0.1]),
     "activation_alpha", ["2 numbers", "HardSigmoid, Elu", (0.1,)]),
    (dict(activations=["Sigmoid", "Affine", "Tanh"], activation_alpha=[0.1]),
     "activation_beta", ["1 numbers", "Affine", ()]),
    (dict(activations=["ThresholdedRelu", "Elu", "Tanh"]),
     "activation_alpha", ["2 numbers", "ThresholdedRelu, Elu", ()]),
    (dict(input_forget=1, P=np.ones((1, 3 * H), np.float32)), "P", ["zeros", "input_forget=1"]),
    (dict(P=np.ones((1, 5), np.float32)), "P", ["(num_directions=1, 3*hidden_size=6)", (1, 5)]),
    (dict(input_forget=1, W=np.ones((1, 6, 3), np.float32)),
     "W", ["(num_directions=1, 4*hidden_size=8, input_size=3)", (1, 6, 3)]),
    (dict(input_forget=2), "input_forget", [0, 1, 2]),
    (dict(clip=1.0, input_forget=1), "clip", [None, 1.0]),
]


@pytest.mark.parametrize(("changed", "argument", "facts"), REFUSED)
def test_what_no_cell_has_is_refused_by_name(changed, argument, facts):
    arrays = drawn(DIRECTIONS[changed.get("direction", "forward")], False)
    with pytest.raises(ValueError, match=says(f"from_onnx: {argument}", *facts)):
        from_onnx("LSTM", **arrays | changed)


def test_a_number_that_hides_the_slope_is_refused():
    activations = dict(activations=["Sigmoid", "LeakyRelu", "Tanh"], activation_alpha=[-0.1])
    expected = says("RNNDescriptor: mode, ActivatedLSTM's candidate, alpha", "finite", 0, -0.1)
    with pytest.raises(ValueError, match=expected):
        from_onnx("LSTM", **drawn(1, False), **activations)


def test_peepholes_of_nan_are_no_zeros():
    node = from_onnx("LSTM", **drawn(1, False), P=np.full((1, 3 * H), np.nan, np.float32))
    assert np.isnan(node.infer(np.ones((T, N, INPUT), np.float32)).y).all()


def converters(folder):
    """What a network is handed to, by name."""
    from rnnkit import interop

    return {
        "to_onnx": to_onnx, "to_torch": interop.to_torch, "to_jax": interop.to_jax, "to_flux": interop.to_flux,
        "to_mxnet": interop.to_mxnet, "to_keras": interop.to_keras,
        "save_onnx": lambda net: interop.save_onnx(net, folder / "net"),
        "save_safetensors": lambda net: interop.save_safetensors(net, folder / "net"),
    }  # fmt: skip


@pytest.mark.parametrize("converter", converters(None))
@pytest.mark.parametrize("cell", [cells.IndRNN, cells.SLSTM, cells.PeepholeLSTM], ids=lambda cell: cell.__name__)
def test_a_converter_to_a_library_without_the_cell_names_it(cell, converter, tmp_path):
    if cell is cells.PeepholeLSTM and converter.endswith("onnx"):
        pytest.skip("it has this one")
    modes = '"rnn_relu" or "rnn_tanh" or "lstm" or "gru"'
    modes += " or ActivatedLSTM or PeepholeLSTM or CoupledLSTM" * converter.endswith("onnx")
    with pytest.raises(ValueError, match=says(f"{converter}: net.desc.mode", modes, cell(), "net.save")):
        converters(tmp_path)[converter](rnnkit.Network(cell, 3, 4, seed=0))
    assert os.listdir(tmp_path) == []
