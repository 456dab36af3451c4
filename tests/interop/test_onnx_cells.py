"""The cells that ONNX's LSTM has: peepholes, coupled gates and activations, as ONNX Runtime computes them and back."""

import os
from functools import partial

import numpy as np
import pytest
from combinations import nightly, pairs
from messages import says
from optional import needs
from refused import refusals
from tolerances import assert_close, assert_same_bits

import rnnkit
from rnnkit import cells, interop
from rnnkit.interop import from_onnx, load_onnx, save_onnx, stack_onnx, to_onnx

T, N, INPUT, H = 5, 4, 3, 2
LENGTHS = [5, 1, 2, 4]
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
HARD = dict(
    activations=["HardSigmoid", "softsign", "ScaledTanh"], activation_alpha=[0.3, 1.7], activation_beta=[0.4, 0.6]
)
THREE = cells.HardSigmoid(0.3, 0.4), cells.Softsign(), cells.ScaledTanh(1.7, 0.6)
ELU = dict(activations=["Sigmoid", "Elu", "Affine"], activation_alpha=[0.7, 0.5], activation_beta=[0.1])
RELUS = dict(activations=["LeakyRelu", "Softplus", "ThresholdedRelu"], activation_alpha=[0.2, 0.1])
RELU_CELL = cells.ActivatedLSTM(cells.LeakyRelu(0.2), cells.Softplus(), cells.ThresholdedRelu(0.1))
DEFAULTS = dict(activations=["HardSigmoid", "Relu", "Elu"])
# Attributes, whether there is P, and the cell.
KINDS = {
    "peephole": ({}, True, cells.PeepholeLSTM()),
    "peephole-hard": (HARD, True, cells.PeepholeLSTM(*THREE)),
    "coupled": (dict(input_forget=1), False, cells.CoupledLSTM()),
    "coupled-hard": (HARD | dict(input_forget=1), False, cells.CoupledLSTM(*THREE)),
    "hard": (HARD, False, cells.ActivatedLSTM(*THREE)),
    "elu": (ELU, False, cells.ActivatedLSTM(cells.Sigmoid(), cells.Elu(0.7), cells.Affine(0.5, 0.1))),
    "relus": (RELUS, False, RELU_CELL),
    "defaults": (DEFAULTS, False, cells.ActivatedLSTM(cells.HardSigmoid(0.2, 0.5), cells.Relu(), cells.Elu(1.0))),
    "usual": (dict(activations=["Sigmoid", "Tanh", "Tanh"]), False, "lstm"),
}
# Kernels of each cell take seconds to compile.
BY_DEFAULT = [kind if kind in ("peephole-hard", "coupled", "usual") else nightly(kind) for kind in KINDS]


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
    onnx, runtime = needs("onnx"), needs("onnxruntime")
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


@pytest.mark.parametrize(("kind", "direction"), pairs(BY_DEFAULT, DIRECTIONS))
def test_operator_gives_what_onnx_runtime_gives(kind, direction):
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
def test_round_trip_gives_the_same_bits(kind, direction):
    arguments, cell = arguments_of(kind, direction, "float64")
    node = from_onnx("LSTM", **arguments)
    (back,) = to_onnx(node.net, reverse=node.reverse)
    again = from_onnx(**back)
    assert again.net.desc == node.net.desc and again.reverse == node.reverse
    assert_same_bits("weights", again.net.weights, node.net.weights)
    forgotten = slice(2 * H, 3 * H) if isinstance(cell, cells.CoupledLSTM) else slice(0)
    for name in "WR":
        arguments[name][:, forgotten] = 0  # what the coupled gate does not have
    for name in "WRP":
        assert_same_bits(name, back.get(name), arguments.get(name))


STACKS = dict(num_layers=2), dict(num_layers=2, bidirectional=True, bias="input")


@pytest.mark.parametrize(("kind", "options"), pairs(BY_DEFAULT, STACKS))
def test_onnx_runtime_runs_a_network_in_a_file(kind, options, tmp_path):
    runtime = needs("onnxruntime")
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


def chosen(names, alpha=(), **more):
    return dict(activations=names.split(), activation_alpha=alpha) | more


def ones(*shape):
    return np.ones(shape, np.float32)


BOTH = dict(direction="bidirectional")
NAMES = "Sigmoid, Tanh, Relu, Affine, LeakyRelu, ThresholdedRelu, ScaledTanh, HardSigmoid, Elu, Softsign, Softplus"
W_SHAPE = "(num_directions=1, 4*hidden_size=8, input_size=3)"
REFUSED = [
    (chosen("Tanh Tanh"), f"activations | 3 of {NAMES} | op_type='LSTM' | ['Tanh', 'Tanh']"),
    (chosen("Sigmoid Tanh Swish"), "activations | 3 of Sigmoid | Swish"),
    (chosen("Sigmoid Tanh Tanh Relu Tanh Tanh", **BOTH), "activations | 3 of Sigmoid | 'Relu'"),
    (
        chosen("LeakyRelu Tanh Tanh LeakyRelu Tanh Tanh", [0.1, 0.2], **BOTH),
        "activation_alpha and activation_beta | (0.1, 0.2)",
    ),
    (chosen("HardSigmoid Elu Tanh", [0.1]), "activation_alpha | 2 numbers | HardSigmoid, Elu | (0.1,)"),
    (chosen("Sigmoid Affine Tanh", [0.1]), "activation_beta | 1 numbers | Affine | ()"),
    (chosen("ThresholdedRelu Elu Tanh"), "activation_alpha | 2 numbers | ThresholdedRelu, Elu | ()"),
    (dict(input_forget=1, P=ones(1, 3 * H)), "P | zeros | input_forget=1"),
    (dict(P=ones(1, 5)), "P | (num_directions=1, 3*hidden_size=6) | (1, 5)"),
    (dict(input_forget=1, W=ones(1, 6, 3)), f"W | {W_SHAPE} | (1, 6, 3)"),
    (dict(input_forget=2), "input_forget | 0 | 1 | 2"),
    (dict(clip=1.0, input_forget=1), "clip | None | 1.0"),
]
SLOPE = "mode, ActivatedLSTM's candidate, alpha | finite | 0 | -0.1"


def given(changed):
    return partial(from_onnx, "LSTM", **drawn(DIRECTIONS[changed.get("direction", "forward")], False) | changed)


@refusals(
    from_onnx=[(given(changed), text) for changed, text in REFUSED],
    RNNDescriptor=[(given(chosen("Sigmoid LeakyRelu Tanh", [-0.1])), SLOPE)],
)
def test_attributes_that_no_cell_has_are_refused(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()


def test_peepholes_of_nan_are_not_zeros():
    node = from_onnx("LSTM", **drawn(1, False), P=np.full((1, 3 * H), np.nan, np.float32))
    assert np.isnan(node.infer(np.ones((T, N, INPUT), np.float32)).y).all()


CONVERTERS = "to_onnx to_torch to_jax to_flux to_mxnet to_keras save_onnx save_safetensors".split()


@pytest.mark.parametrize("converter", CONVERTERS)
@pytest.mark.parametrize("cell", [cells.IndRNN, cells.SLSTM, cells.PeepholeLSTM], ids=lambda cell: cell.__name__)
def test_converter_to_a_library_without_the_cell_names_it(cell, converter, tmp_path):
    if cell is cells.PeepholeLSTM and converter.endswith("onnx"):
        pytest.skip("it has this one")
    modes = '"rnn_relu" or "rnn_tanh" or "lstm" or "gru"'
    modes += " or ActivatedLSTM or PeepholeLSTM or CoupledLSTM" * converter.endswith("onnx")
    net, path = rnnkit.Network(cell, 3, 4, seed=0), [tmp_path / "net"] * converter.startswith("save")
    with pytest.raises(ValueError, match=says(f"{converter}: net.desc.mode", modes, cell(), "net.save")):
        getattr(interop, converter)(net, *path)
    assert os.listdir(tmp_path) == []
