"""Models in ONNX's format, and ONNX Runtime to run them."""

import os

import onnx
import onnxruntime as runtime

import rnnkit
from rnnkit.interop.onnx import to_onnx

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


def run(path, names, **inputs):
    session = runtime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    return session.run(names, inputs)


def written(path, made):
    path.write_bytes(made.SerializeToString())
    return path
