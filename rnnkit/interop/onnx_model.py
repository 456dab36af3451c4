"""Build an ONNX model with the inputs and outputs of `net.infer`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from rnnkit.descriptor.descriptor import RNNDescriptor

OPSET, IR_VERSION = 17, 8  # supported by all recent versions of ONNX Runtime


def inputs_of(desc: RNNDescriptor) -> tuple[str, ...]:
    """Return the optional inputs of a model, besides x."""
    return ("hx", "cx", "lengths") if desc.has_cell_state else ("hx", "lengths")


def model_of(onnx: Any, desc: RNNDescriptor, layers: list[dict[str, Any]], inputs: Collection[str]) -> Any:
    """Return the model of a float32 network, with `layers` as returned by `to_onnx`.

    An optional input that is not in `inputs` becomes a constant of one row, which the model expands to the batch.
    """
    graph = _Graph(onnx, desc, inputs)
    graph.add_inputs()
    for layer, arguments in enumerate(layers):
        graph.add_layer(layer, **arguments)
    graph.add_outputs()
    return graph.model()


class _Graph:
    """Builder of the graph: nodes, and constants by name."""

    def __init__(self, onnx: Any, desc: RNNDescriptor, inputs: Collection[str]) -> None:
        self._onnx, self._desc, self._inputs, self._nodes = onnx, desc, inputs, []
        self._rows, self._width = desc.num_pseudo_layers, desc.num_directions * desc.hidden_size
        self._states = {"hx": "hy", "cx": "cy"} if desc.has_cell_state else {"hx": "hy"}
        defaults = {name: np.zeros((self._rows, 1, desc.hidden_size), np.float32) for name in self._states}
        defaults |= {"lengths": np.array([-1], np.int32)}
        self._constants = {name: array for name, array in defaults.items() if name not in inputs}
        self._constants |= {"zero": np.array(0, np.int32)}

    def _add(self, operator: str, inputs: list[str], *outputs: str, **attributes: Any) -> None:
        self._nodes.append(self._onnx.helper.make_node(operator, inputs, outputs, outputs[0], **attributes))

    def _constant(self, name: str, *values: int) -> str:
        self._constants[name] = np.array(values, np.int64)
        return name

    def _parts(self, name: str) -> list[str]:
        return [f"{name}_{layer}" for layer in range(self._desc.num_layers)]

    def add_inputs(self) -> None:
        """Expand lengths and initial states to the batch, and split the states by layer."""
        self._add("Shape", ["x"], "seq_len", start=0, end=1)
        self._add("Shape", ["x"], "batch_size", start=1, end=2)
        self._add("Cast", ["seq_len"], "whole", to=self._onnx.TensorProto.INT32)
        self._add("Less", ["lengths", "zero"], "left_out")
        self._add("Where", ["left_out", "whole", "lengths"], "given_lengths")
        self._add("Expand", ["given_lengths", "batch_size"], "sequence_lens")
        sizes = [self._constant("rows", self._rows), "batch_size", self._constant("units", self._desc.hidden_size)]
        self._add("Concat", sizes, "state_shape", axis=0)
        for name in self._states:
            self._add("Expand", [name, "state_shape"], f"initial_{name}")
            self._add("Split", [f"initial_{name}"], *self._parts(name), axis=0)

    def add_layer(
        self, layer: int, op_type: str, W: Any, R: Any, B: Any = None, P: Any = None, **attributes: Any
    ) -> None:
        """Add the operator of a layer, and concatenate the outputs of its directions."""
        names = {f"W_{layer}": W, f"R_{layer}": R, f"B_{layer}": B}
        self._constants |= {name: array for name, array in names.items() if array is not None}
        inputs = [f"y_{layer - 1}" if layer else "x", *(name if names[name] is not None else "" for name in names)]
        inputs += ["sequence_lens", *(f"{name}_{layer}" for name in self._states)]
        if P is not None:
            self._constants[f"P_{layer}"] = P
            inputs.append(f"P_{layer}")
        outputs = [f"layer_{layer}", *(f"{name}_{layer}" for name in self._states.values())]
        self._add(op_type, inputs, *outputs, **attributes)
        self._add("Transpose", [f"layer_{layer}"], f"swapped_{layer}", perm=[0, 2, 1, 3])  # to (T, N, D, H)
        shape = self._constant("joined", 0, 0, self._width)  # 0 keeps the dimension
        last = layer == self._desc.num_layers - 1
        self._add("Reshape", [f"swapped_{layer}", shape], "y" if last else f"y_{layer}")

    def add_outputs(self) -> None:
        """Concatenate the layers' last states; for length 0 use the initial states (ONNX Runtime returns 0)."""
        self._add("Equal", ["sequence_lens", "zero"], "empty")
        self._add("Unsqueeze", ["empty", self._constant("last_axis", 1)], "empty_rows")
        for initial, last in self._states.items():
            self._add("Concat", self._parts(last), f"last_{last}", axis=0)
            self._add("Where", ["empty_rows", f"initial_{initial}", f"last_{last}"], last)

    def model(self) -> Any:
        """Build the model."""
        helper, real, units = self._onnx.helper, self._onnx.TensorProto.FLOAT, self._desc.hidden_size
        value = helper.make_tensor_value_info
        possible = {name: value(name, real, [self._rows, f"rows_of_{name}", units]) for name in self._states}
        possible |= {"lengths": value("lengths", self._onnx.TensorProto.INT32, ["rows_of_lengths"])}
        inputs = [value("x", real, ["T", "N", self._desc.input_size])]
        inputs += [possible[name] for name in possible if name in self._inputs]
        outputs = [value("y", real, ["T", "N", self._width])]
        outputs += [value(name, real, [self._rows, "N", units]) for name in self._states.values()]
        constants = [self._onnx.numpy_helper.from_array(array, name) for name, array in self._constants.items()]
        graph = helper.make_graph(self._nodes, "network", inputs, outputs, constants)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="rnnkit")
