"""Build an ONNX graph of a network, with the same weights."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

from perf.cases import Problem, of_mode
from rnnkit import weight_views
from rnnkit.interop.onnx_operators import MODES

_OPSET, _IR_VERSION = 17, 8  # supported by all recent versions of ONNX Runtime


def model(given: Problem) -> bytes:
    """Return the serialized graph: inputs x, and hx, cx, lengths where given; outputs y, hy, and cy of an LSTM."""
    desc = given.desc
    nodes, weights = [], {"order": np.array([0, 0, -1])}
    source, last = "x", desc.num_layers - 1
    for name, states in (("hx", given.hx), ("cx", given.cx)):
        if states is not None:
            parts = [f"{name}_{layer}" for layer in range(desc.num_layers)]
            nodes.append(helper.make_node("Split", [name], parts, axis=0))
    for layer in range(desc.num_layers):
        nodes.append(_layer_node(given, layer, source))
        weights |= _layer_weights(given, layer)
        # (T, D, N, H) to (T, N, D*H)
        nodes.append(helper.make_node("Transpose", [f"raw_{layer}"], [f"swapped_{layer}"], perm=[0, 2, 1, 3]))
        source = "y" if layer == last else f"y_{layer}"
        nodes.append(helper.make_node("Reshape", [f"swapped_{layer}", "order"], [source]))
    outputs = ["y", "hy"] + ["cy"] * desc.has_cell_state
    for name in outputs[1:]:
        parts = [f"{name}_{layer}" for layer in range(desc.num_layers)]
        nodes.append(helper.make_node("Concat", parts, [name], axis=0))
    inputs = {"x": given.x, "hx": given.hx, "cx": given.cx, "lengths": given.lengths}
    graph = helper.make_graph(
        nodes,
        "network",
        [_value(name, 1 if name == "lengths" else 3) for name, array in inputs.items() if array is not None],
        [_value(name, 3) for name in outputs],
        [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in weights.items()],
    )
    result = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    checker.check_model(result)
    return result.SerializeToString()


def _value(name: str, rank: int):
    kind = TensorProto.INT32 if name == "lengths" else TensorProto.FLOAT
    return helper.make_tensor_value_info(name, kind, [f"{name}_{axis}" for axis in range(rank)])


def _layer_node(given: Problem, layer: int, source: str):
    desc = given.desc
    operator = of_mode(desc.mode, MODES, "onnx")
    options = {"hidden_size": desc.hidden_size, "direction": "bidirectional" if desc.bidirectional else "forward"}
    for name, value in operator.attributes.items():
        options[name] = value * desc.num_directions if isinstance(value, list) else value  # a list: one per direction
    inputs = [source, f"w_{layer}", f"r_{layer}", f"b_{layer}", "lengths" if given.lengths is not None else ""]
    inputs += [f"{name}_{layer}" for name, states in (("hx", given.hx), ("cx", given.cx)) if states is not None]
    outputs = [f"raw_{layer}", f"hy_{layer}"] + [f"cy_{layer}"] * desc.has_cell_state
    return helper.make_node(operator.op_type, inputs, outputs, **options)


def _layer_weights(given: Problem, layer: int) -> dict[str, np.ndarray]:
    desc = given.desc
    views = weight_views(desc, given.w)
    suffixes = [f"_l{layer}", f"_l{layer}_reverse"][: desc.num_directions]
    ours = [gate.name for gate in desc.cell.declaration.gates]
    order = [ours.index(name) for name in of_mode(desc.mode, MODES, "onnx").gates.split()]

    def stacked(kind: str) -> np.ndarray:
        """Both directions, the gates in ONNX's order."""
        blocks = [np.split(views[kind + suffix], desc.num_gates) for suffix in suffixes]
        return np.stack([np.concatenate([gates[gate] for gate in order]) for gates in blocks])

    bias = np.concatenate([stacked("bias_ih"), stacked("bias_hh")], axis=1)
    return {f"w_{layer}": stacked("weight_ih"), f"r_{layer}": stacked("weight_hh"), f"b_{layer}": bias}
