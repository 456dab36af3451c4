"""What an ONNX graph computes from constants alone, as exporters write it around weights and states of zeros."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

_ZEROS_STAY = (
    "Cast CastLike Concat Expand Flatten Gather Identity Neg Reshape Slice Split Squeeze Tile Transpose Unsqueeze"
).split()
"""Operators whose results are zeros if their first input is, of Concat all inputs."""
_GROWING = "ConstantOfShape", "Expand", "Range", "Tile", "Pad"
_EVALUATED = {
    *_ZEROS_STAY, *_GROWING, "Abs", "Add", "Constant", "DequantizeLinear", "Div", "Equal", "Exp", "Floor", "Gemm",
    "Less", "MatMul", "Max", "Min", "Mod", "Mul", "Pow", "QuantizeLinear", "ReduceProd", "ReduceSum", "Shape", "Size",
    "Sqrt", "Sub", "Sum", "Tanh", "Where",
}  # fmt: skip
"""Operators that are evaluated if all of their inputs are constants."""
_LARGEST = 1 << 28  # elements of a result: a damaged file must not fill the memory
_DEEPEST = 200  # operators in a chain


class Constants:
    """The constants in the scope of a node: initializers, and what operators compute from them, when it is asked for.

    Parameters
    ----------
    onnx : module
    outer : Constants, optional
        Those of the graph around a subgraph.
    array_of : callable
        From a TensorProto to its array.
    """

    def __init__(self, onnx: Any, graph: Any, array_of: Any, opset: int, outer: Constants | None = None) -> None:
        self._onnx, self._array_of, self._opset, self._outer = onnx, array_of, opset, outer
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._found: dict[str, Any] = {}
        self._makers = {name: node for node in graph.node for name in node.output if name}

    def get(self, name: str, depth: int = 0) -> np.ndarray | None:
        """Return the array of this name; None if the model computes it from its inputs.

        Raises
        ------
        ValueError
            A tensor is damaged, or an operator cannot be evaluated.
        """
        if name in self._found:
            return self._found[name]
        if name in self._tensors:
            self._found[name] = self._array_of(self._tensors[name])
        elif name in self._makers:
            self._found[name] = None  # a cycle ends here
            self._evaluate(self._makers[name], depth)
        else:
            return None if self._outer is None else self._outer.get(name, depth)
        return self._found[name]

    def is_zero(self, name: str, depth: int = 0) -> bool:
        """Return whether a value is zeros, of whatever shape the model computes."""
        node = self._makers.get(name)
        if node is None and name not in self._tensors:
            return self._outer is not None and self._outer.is_zero(name, depth)
        if node is not None and _is_standard(node) and depth <= _DEEPEST:
            if node.op_type == "ConstantOfShape":
                values = [entry.t for entry in node.attribute if entry.name == "value"]
                return not values or not self._array_of(values[0]).any()
            if node.op_type in _ZEROS_STAY:
                data = node.input[: None if node.op_type == "Concat" else 1]
                return all(self.is_zero(one, depth + 1) for one in data)
        known = self.get(name, depth)
        return known is not None and not known.any()

    def is_input(self, name: str, depth: int = 0) -> bool:
        """Return whether a value is an input of the model, or a part of one."""
        node = self._makers.get(name)
        if node is None:
            return name not in self._tensors and (self._outer is None or self._outer.is_input(name, depth))
        is_part = _is_standard(node) and node.op_type in _ZEROS_STAY and depth <= _DEEPEST
        return is_part and bool(node.input) and self.is_input(node.input[0], depth + 1)

    def _evaluate(self, node: Any, depth: int) -> None:
        """Compute the outputs of a node if all of its inputs are constants."""
        if not _is_standard(node) or node.op_type not in _EVALUATED or depth > _DEEPEST:
            return
        tensors = [entry.t for entry in node.attribute if entry.name == "value" and entry.HasField("t")]
        if node.op_type == "Constant" and tensors:  # whose data may be in another file
            self._found[node.output[0]] = self._array_of(tensors[0])
            return
        inputs = {name: self.get(name, depth + 1) for name in node.input if name}
        if any(array is None for array in inputs.values()) or self._grows_too_large(node, inputs):
            return
        from onnx.reference import ReferenceEvaluator

        versions = [self._onnx.helper.make_opsetid("", self._opset)]
        kinds = [self._onnx.helper.make_tensor_value_info(name, 0, None) for name in inputs]
        made = [self._onnx.helper.make_tensor_value_info(name, 0, None) for name in node.output if name]
        graph = self._onnx.helper.make_graph([node], "constants", kinds, made)
        try:
            model = self._onnx.helper.make_model(graph, opset_imports=versions)
            results = ReferenceEvaluator(model).run(None, inputs)
        except Exception as error:  # the evaluator raises whatever NumPy does
            text = f"the constants of the operator {node.op_type} cannot be computed: {type(error).__name__}: {error}"
            raise ValueError(text) from error
        self._found |= dict(zip((name for name in node.output if name), map(np.asarray, results), strict=True))

    def _grows_too_large(self, node: Any, inputs: dict[str, Any]) -> bool:
        """Whether the result may be larger than what is computed here."""
        if node.op_type not in _GROWING:
            return False
        arrays = [inputs[name] for name in node.input if name]
        if node.op_type == "Range":
            start, limit, step = (float(array) for array in arrays)
            return step == 0 or not abs((limit - start) / step) < _LARGEST
        if node.op_type == "Pad":
            return True
        sizes = arrays[-1].astype(np.float64).ravel()
        data = 1 if node.op_type == "ConstantOfShape" else arrays[0].size
        return not abs(prod(sizes.tolist())) * data < _LARGEST


def _is_standard(node: Any) -> bool:
    return node.domain in ("", "ai.onnx") and not any(entry.HasField("g") or entry.graphs for entry in node.attribute)
