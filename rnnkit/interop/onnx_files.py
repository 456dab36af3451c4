"""Load recurrent operators from ONNX files; save networks as ONNX models that ONNX Runtime runs.

The package onnx reads and writes the format; it is imported when a file is read or written.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from inspect import signature
from os import PathLike
from typing import Any

import numpy as np

from rnnkit.common import archive
from rnnkit.errors import message, wrong_type
from rnnkit.interop.networks import Network
from rnnkit.interop.onnx import OPERATORS, arguments_of, from_onnx
from rnnkit.interop.onnx_constants import Constants
from rnnkit.interop.onnx_model import inputs_of, model_of
from rnnkit.interop.onnx_node import OnnxNode
from rnnkit.interop.onnx_quantized import IN_8_BITS, QUANTIZATION, dequantized
from rnnkit.interop.packages import package

INPUTS = "X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"  # RNN and GRU have the first six
STATES = {"sequence_lens": "lengths", "initial_h": "hx", "initial_c": "cx"}  # inputs that a model may compute
ATTRIBUTES = signature(from_onnx).parameters.keys() - {"op_type", *INPUTS}
MAX_BYTES = 2**31 - 2**20  # of weights: Protocol Buffers limit a file to 2 GiB


def load_onnx(path: str | PathLike[str], names: Collection[str] | None = None) -> dict[str, OnnxNode]:
    """Return the RNN, GRU and LSTM operators of an ONNX model.

    An LSTM with weights of 8 bits (DynamicQuantizeLSTM of com.microsoft, as ONNX Runtime's quantize_dynamic writes it)
    comes prepared with int8 weights; its network has the weights in float32.

    Parameters
    ----------
    path : str or path-like
        Name of the file.  External tensor data is read only for the weights of these operators, and only from the
        model's folder or below.
    names : collection of str, optional
        Names of the operators to return; None is all.

    Returns
    -------
    dict of str to OnnxNode
        Operators by name, in the order of the model, including those in subgraphs (Loop, If, Scan).  A node without a
        name, or with the name of an earlier node, is named after its first output.

    Raises
    ------
    ImportError
        The package onnx is not installed.
    OSError
        The file, or one with its data, cannot be opened (FileNotFoundError: it does not exist).
    ValueError
        The file is damaged or not an ONNX model, has no such operator, or an operator is unsupported, for example
        because the model computes its weights.
    """
    listed = isinstance(names, Collection) and not isinstance(names, str) and all(isinstance(n, str) for n in names)
    if names is not None and not listed:
        raise wrong_type("load_onnx", "names", "None or a collection of names", names)
    return _File("load_onnx", path).nodes(names)


def save_onnx(net: Network, path: str | PathLike[str], reverse: bool = False, *, inputs: Collection[str] = ()) -> None:
    """Write a network as an ONNX model; in ONNX Runtime it has the results of ``net.infer``.

    Parameters
    ----------
    net : RNN, GRU, LSTM or Network
        A float32 network that ONNX supports: no projection, no cell clip; of the cells only PeepholeLSTM, CoupledLSTM
        and ActivatedLSTM.
    path : str or path-like
        Name of the file, used unchanged.  Written atomically, as by ``net.save``.
    reverse : bool
        Whether the model reads each sequence in reverse; only for a network of one direction.
    inputs : collection of {"hx", "cx", "lengths"}
        Inputs of the model besides x, which every run must then pass.  Without hx and cx (LSTM) the initial states are
        zeros, without lengths all sequences have T steps.

    Raises
    ------
    ImportError
        The package onnx is not installed.
    OSError
        The file cannot be written.
    TypeError, ValueError
        ONNX or ONNX Runtime does not support `net`, it has 2 GiB of weights, or it has two directions and `reverse` is
        True; `inputs` has an unknown name, or cx without a cell state; or `path` is not a regular file.

    Notes
    -----
    The inputs are x (T, N, I), hx and cx, (L*D, N, H) or (L*D, 1, H) for all sequences, and lengths (N,) int32, where
    -1 is T.  The outputs are y (T, N, D*H), hy and cy.  T and N may differ from run to run, but N must not be 0: ONNX
    Runtime's GRU and LSTM would crash.  Dropout is not written, as it only acts in training.
    """
    layers = arguments_of("save_onnx", net, reverse)
    if net.desc.dtype != "float32":
        why = "ONNX Runtime runs these operators only in float32"
        raise ValueError(message("save_onnx", "net.desc.dtype", 'be "float32"', repr(net.desc.dtype), why))
    nbytes = sum(value.nbytes for layer in layers for value in layer.values() if isinstance(value, np.ndarray))
    if nbytes > MAX_BYTES:
        raise ValueError(message("save_onnx", "net", f"have weights of at most {MAX_BYTES} bytes", nbytes))
    known = inputs_of(net.desc)
    if isinstance(inputs, str) or not isinstance(inputs, Collection):
        raise wrong_type("save_onnx", "inputs", "a collection of names", inputs)
    if any(name not in known for name in inputs):
        raise ValueError(message("save_onnx", "inputs", f"be among {', '.join(known)}", ", ".join(map(repr, inputs))))
    model = model_of(package("save_onnx", "onnx"), net.desc, layers, inputs)
    with archive.replacing("save_onnx", path) as file:
        file.write(model.SerializeToString())


class _File:
    """An ONNX model that was read, with the names for its errors."""

    def __init__(self, function: str, path: str | PathLike[str]) -> None:
        name = archive.name_of(function, path)
        self._function, self._where = function, f"path {name!r}"
        self._folder = os.path.realpath(os.path.dirname(os.fsdecode(name)))
        self._onnx = package(function, "onnx")
        from google.protobuf.message import DecodeError  # installed with onnx

        with archive.open_regular(function, path) as file:
            data = file.read()
        try:
            self._model = self._onnx.load_model_from_string(data)
        except DecodeError as error:
            raise self._error("be a complete ONNX model", f"a cut-off one or another kind ({error})") from error
        if not self._model.opset_import:  # stored last, so missing in a truncated file
            raise self._error("be a complete ONNX model", "a cut-off one or another kind (without opset_import)")

    def _error(self, expected: str, got: Any, cure: str = "") -> ValueError:
        return ValueError(message(self._function, self._where, expected, got, cure))

    def nodes(self, names: Collection[str] | None) -> dict[str, OnnxNode]:
        """Return the operators with these names, or all."""
        found = {}
        for node, constants in self._recurrent(self._model.graph, None):
            output = next(filter(None, node.output), "")
            name = _text(output if not node.name or node.name in found else node.name)
            found[name] = node, constants
        if not found:
            kinds = sorted({_text(node.op_type) for node in self._model.graph.node})
            raise self._error(
                "hold an RNN, GRU, LSTM or DynamicQuantizeLSTM", f"the operators {', '.join(kinds)[:200] or 'none'}"
            )
        missing = [name for name in names or () if name not in found]
        if missing:
            raise self._error(f"hold {', '.join(missing)}", f"the recurrent operators {', '.join(found)}"[:400])
        wanted = found if names is None else names
        return {name: self._node(name, *entry) for name, entry in found.items() if name in wanted}

    def _recurrent(self, graph: Any, outer: Constants | None) -> Iterator[tuple[Any, Constants]]:
        """Yield the recurrent nodes of a graph and its subgraphs, each with the constants in its scope."""
        versions = [entry.version for entry in self._model.opset_import if entry.domain in ("", "ai.onnx")]
        constants = Constants(self._onnx, graph, self._array, max(versions, default=17), outer)
        for node in graph.node:
            for attribute in node.attribute:
                for body in (attribute.g, *attribute.graphs):
                    yield from self._recurrent(body, constants)
            is_standard = node.op_type in OPERATORS and node.domain in ("", "ai.onnx")
            if is_standard or (node.domain, node.op_type) == IN_8_BITS:
                yield node, constants

    def _node(self, name: str, node: Any, constants: Constants) -> OnnxNode:
        try:
            inputs, computed, own = self._inputs(node, constants)
            attributes = {entry.name: self._onnx.helper.get_attribute_value(entry) for entry in node.attribute}
            unknown = sorted(set(attributes) - set(ATTRIBUTES))
            if unknown:
                raise ValueError(f"the attribute {', '.join(unknown)} is unknown")
            attributes = {key: _text(value) for key, value in attributes.items()}
            is_quantized = node.op_type == IN_8_BITS[1]
            kind, inputs = ("LSTM", dequantized(inputs)) if is_quantized else (node.op_type, inputs)
            found = from_onnx(kind, **inputs, **attributes)._replace(computed=computed, inputs=own)
            return found.prepare(precision="int8") if is_quantized else found
        except (TypeError, ValueError) as error:
            text = f"the operator {name!r} is unsupported: {error}"
            raise ValueError(f"{self._function}: {self._where}: {text}") from error

    def _inputs(
        self, node: Any, constants: Constants
    ) -> tuple[dict[str, np.ndarray], tuple[str, ...], tuple[str, ...]]:
        """Return the constant inputs of a node, without states of zeros, the names of the states that the model
        computes, and of those which are its inputs."""
        known = {"LSTM": INPUTS, IN_8_BITS[1]: (*INPUTS, *QUANTIZATION)}.get(node.op_type, INPUTS[:6])
        if len(node.input) > len(known):
            raise ValueError(f"it has {len(node.input)} inputs, but a {node.op_type} takes at most {len(known)}")
        sources = {name: source for name, source in zip(known, node.input, strict=False) if source}
        for name in ("W", "R"):
            if name not in sources:
                raise ValueError(f"it has no input {name}")
        arrays, computed, own = {}, [], []
        for name, source in sources.items():
            if name == "X" or (name.startswith("initial") and constants.is_zero(source)):
                continue
            arrays[name] = constants.get(source)
            if arrays[name] is None and name not in STATES:
                raise ValueError(f"it takes {name} from {source!r}, which the model computes, not from constants alone")
            if arrays[name] is None:
                computed.append(STATES[name])
                own += [STATES[name]] * constants.is_input(source)
        return {name: array for name, array in arrays.items() if array is not None}, tuple(computed), tuple(own)

    def _array(self, tensor: Any) -> np.ndarray:
        if tensor.data_type not in self._onnx.helper.get_all_tensor_dtypes():
            raise ValueError(f"{tensor.name!r} has the unknown data type {tensor.data_type}")
        if min(tensor.dims, default=0) < 0:  # reshape would interpret -1
            raise ValueError(f"{tensor.name!r} has the shape {tuple(tensor.dims)}")
        if tensor.data_location == self._onnx.TensorProto.EXTERNAL:
            tensor = self._onnx.TensorProto(
                name=tensor.name, dims=tensor.dims, data_type=tensor.data_type, raw_data=self._external(tensor)
            )
        return self._onnx.numpy_helper.to_array(tensor)

    def _external(self, tensor: Any) -> bytes:
        """Read the bytes of a tensor from a file in the model's folder; path, offset and length are validated."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        path = os.path.realpath(os.path.join(self._folder, entries.get("location", "")))
        if os.path.commonpath([path, self._folder]) != self._folder:
            raise ValueError(f"data of {tensor.name!r} is in {entries['location']!r}, outside of the model's folder")
        if not os.path.exists(path):
            text = f"the data of the tensor {tensor.name!r} is missing: there is no file {path!r}"
            raise FileNotFoundError(f"{self._function}: {self._where}: {text}")
        with archive.open_regular(self._function, path) as file:
            size = os.fstat(file.fileno()).st_size
            start = int(entries.get("offset", 0))
            length = int(entries.get("length", size - start))
            if start < 0 or length < 0 or start + length > size:
                raise ValueError(f"the data is in bytes {start} to {start + length} of {path!r}, which has only {size}")
            file.seek(start)
            return file.read(length)


def _text(value: Any) -> Any:
    """Decode bytes: Protocol Buffers return them for string attributes, and for text that is not UTF-8."""
    if isinstance(value, list):
        return [_text(item) for item in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
