"""Convert ONNX's operators RNN, GRU and LSTM to networks, and back.

An operator is one layer: forward, in reverse or in both directions. `onnx_operators` maps operators to cells. Names and
shapes are those of ONNX's documentation; D is num_directions, G the number of gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rnnkit.common.arrays import on_host
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import suffix_of, weight_views
from rnnkit.errors import message, wrong_type
from rnnkit.interop.networks import (
    Network,
    blocks_of,
    check_shape,
    common_dtype,
    network,
    real_array,
)
from rnnkit.interop.onnx_arrays import arrays_of_layer, blocks_of_layer, check_arrays
from rnnkit.interop.onnx_node import OnnxNode
from rnnkit.interop.onnx_operators import CELLS, MODES, OPERATORS, mode_of_operator, operator_of
from rnnkit.interop.stacks import cells_of

DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def from_onnx(
    op_type: str,
    W: Any,
    R: Any,
    B: Any = None,
    *,
    P: Any = None,
    sequence_lens: Any = None,
    initial_h: Any = None,
    initial_c: Any = None,
    hidden_size: int | None = None,
    direction: str = "forward",
    layout: int = 0,
    linear_before_reset: int = 0,
    input_forget: int = 0,
    clip: float | None = None,
    activations: Sequence[str] = (),
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
) -> OnnxNode:
    """Return one of ONNX's recurrent operators: a network of one layer, and the operator's constant inputs.

    Parameters
    ----------
    op_type : {"RNN", "GRU", "LSTM"}
        The operator.
    W : array_like (D, G*H, I), float32 or float64
        Input weights, with the gates in ONNX's order.
    R : array_like (D, G*H, H)
        Recurrent weights.
    B : array_like (D, 2*G*H), optional
        Both biases, the one of W first; None is a network without biases.
    P : array_like (D, 3*H), optional
        Peepholes of an LSTM, i, o and f: nonzero values select :class:`rnnkit.cells.PeepholeLSTM`.
    sequence_lens, initial_h, initial_c : array_like, optional
        Constant lengths (N,) and initial states (D, N, H), with layout 1 (N, D, H): defaults of `OnnxNode.infer`.
    hidden_size : int, optional
        H; None takes it from R.
    direction : {"forward", "reverse", "bidirectional"}
        D is 2 with "bidirectional", else 1.
    layout : {0, 1}
        0 is time-major, 1 is batch-major.
    linear_before_reset : {0, 1}
        For a GRU: 1 is ``reset_after=True``, 0 is ``reset_after=False``.
    input_forget : {0, 1}
        1 selects :class:`rnnkit.cells.CoupledLSTM`, which has no gate f: its rows in W, R and B are ignored.
    clip : None
        Must be None: rnnkit cannot clip the inputs of activations (its ``cell_clip`` clips the cell state).
    activations : sequence of str
        Activations of each direction: Sigmoid and Tanh for a GRU, Tanh or Relu for an RNN, any three for an LSTM, the
        same in both directions. Other than Sigmoid, Tanh and Tanh select :class:`rnnkit.cells.ActivatedLSTM`.
    activation_alpha, activation_beta : sequence of float
        One number for each activation that takes it, in order; empty for ONNX's defaults.

    Returns
    -------
    OnnxNode
        `net` has copies of the weights; `infer` returns the operator's results.

    Raises
    ------
    TypeError, ValueError
        An array has a wrong dtype or shape, or an attribute is unsupported.

    Examples
    --------
    >>> W, R = np.zeros((1, 6, 3), np.float32), np.zeros((1, 6, 2), np.float32)
    >>> node = from_onnx("GRU", W, R, direction="reverse")
    >>> node.net
    <GRU: RNNDescriptor('gru', 3, 2, bias='none', reset_after=False), 30 weights>
    >>> node.infer(np.ones((4, 5, 3), np.float32)).y.shape
    (4, 1, 5, 2)
    """
    _check_choice("op_type", op_type, tuple(OPERATORS))
    _check_choice("direction", direction, tuple(DIRECTIONS))
    _check_choice("layout", layout, (0, 1))
    _check_choice("linear_before_reset", linear_before_reset, (0, 1) if op_type == "GRU" else (0,))
    _check_choice("input_forget", input_forget, (0, 1) if op_type == "LSTM" else (0,))
    _check_choice("clip", clip, (None,), "rnnkit's cell_clip clips the cell state, not the inputs of activations")
    arrays = {"W": W, "R": R, "B": B, "P": P, "initial_h": initial_h, "initial_c": initial_c}
    last = {"W": "input_size", "R": "hidden_size"}
    values = {name: value for name, value in arrays.items() if value is not None or name in last}
    arrays = {name: real_array("from_onnx", name, value) for name, value in values.items()}
    for name in last:
        check_shape("from_onnx", name, arrays[name], (None,) * 3, ("num_directions", "gates*hidden_size", last[name]))
    mode = mode_of_operator(
        op_type,
        DIRECTIONS[direction],
        activations,
        activation_alpha,
        activation_beta,
        "P" in arrays and bool(arrays["P"].any()),
        input_forget,
    )
    desc = RNNDescriptor(
        mode,
        arrays["W"].shape[2],
        arrays["R"].shape[2] if hidden_size is None else hidden_size,
        1,
        direction == "bidirectional",
        bias="none" if B is None else "both",
        reset_after=op_type != "GRU" or bool(linear_before_reset),
        dtype=common_dtype("from_onnx", arrays),
    )
    operator = operator_of(mode)
    check_arrays(desc, operator, layout, arrays)
    net = network(desc, blocks_of_layer(desc, operator, **arrays))
    states = arrays.get("initial_h"), arrays.get("initial_c")
    return OnnxNode(net, direction == "reverse", layout, *states, sequence_lens)


def to_onnx(net: Network, reverse: bool = False) -> list[dict[str, Any]]:
    """Return the arrays and attributes of ONNX's operators for a network, one operator for each layer.

    Parameters
    ----------
    net : RNN, GRU, LSTM or Network
        A network in float32 or float64 that ONNX supports: no projection, no cell clip; of the cells only PeepholeLSTM,
        CoupledLSTM and ActivatedLSTM.
    reverse : bool
        Whether the operators read each sequence in reverse; only for a network of one direction.

    Returns
    -------
    list of dict
        Arguments of `from_onnx`: op_type, the arrays W, R, B (if it has biases) and P (peepholes), and attributes.

    Raises
    ------
    TypeError, ValueError
        `net` is not a network, ONNX does not support it, or it has two directions and `reverse` is True.

    Notes
    -----
    ONNX has both biases or none: one that the network lacks is zeros.  With ``input_mode="skip"``, which ONNX lacks, W
    is the identity for each gate.

    Examples
    --------
    >>> from rnnkit import GRU
    >>> (layer,) = to_onnx(GRU(3, 2, seed=0))
    >>> layer["op_type"], layer["W"].shape, layer["B"].shape, layer["linear_before_reset"]
    ('GRU', (1, 6, 3), (1, 12), 1)
    """
    return arguments_of("to_onnx", net, reverse)


def arguments_of(function: str, net: Network, reverse: bool) -> list[dict[str, Any]]:
    """Return the arguments of `from_onnx` for each layer of a network; `function` is named in errors."""
    blocks = blocks_of(function, net, "ONNX does not support others", CELLS, MODES, proj_size=[None], cell_clip=[None])
    desc = net.desc
    if reverse and desc.bidirectional:
        raise ValueError(message(function, "reverse", "be False for a bidirectional network", reverse))
    operator = operator_of(desc.mode)
    values = operator.attributes.items()
    attributes = {name: value * desc.num_directions if isinstance(value, list) else value for name, value in values}
    attributes["hidden_size"] = desc.hidden_size
    attributes["direction"] = "bidirectional" if desc.bidirectional else "reverse" if reverse else "forward"
    if operator.op_type == "GRU":
        attributes["linear_before_reset"] = int(desc.reset_after)
    if desc.input_mode == "skip":
        identity = np.tile(np.eye(desc.hidden_size, dtype=desc.np_dtype), (desc.num_gates, 1))
        blocks |= {"weight_ih" + suffix_of(0, direction): identity for direction in range(desc.num_directions)}
    layers = [arrays_of_layer(desc, operator, cells) for cells in cells_of(desc, blocks)]
    return [{"op_type": operator.op_type} | arrays | attributes for arrays in layers]


def stack_onnx(nodes: Sequence[OnnxNode]) -> Network:
    """Stack the layers of several operators to one network.

    Parameters
    ----------
    nodes : sequence of OnnxNode
        The layers, the lowest first, all of one kind, size and direction.  The caller must make sure that each reads
        the outputs of the one below (both directions concatenated): the nodes do not show it.

    Returns
    -------
    RNN, GRU, LSTM or Network
        A network with copies of their weights.

    Raises
    ------
    TypeError, ValueError
        A node differs from the first, its input size does not fit the layer below, it runs in reverse, or it has
        constant lengths, or initial states that are constants other than zeros or that the model computes.

    Examples
    --------
    >>> from rnnkit import LSTM
    >>> net = LSTM(3, 5, num_layers=2, bidirectional=True, seed=0)
    >>> same = stack_onnx([from_onnx(**layer) for layer in to_onnx(net)])
    >>> same.desc == net.desc, bool((same.weights == net.weights).all())
    (True, True)
    """
    if not isinstance(nodes, (list, tuple)) or not all(isinstance(node, OnnxNode) for node in nodes):
        raise wrong_type("stack_onnx", "nodes", "a list of OnnxNode", nodes)
    for number, node in enumerate(nodes):
        if not isinstance(node.net, Network):
            raise wrong_type("stack_onnx", f"nodes[{number}].net", "an rnnkit network", node.net)
    if not nodes:
        raise ValueError(message("stack_onnx", "nodes", "hold at least one OnnxNode", "none"))
    desc = replace(nodes[0].net.desc, num_layers=len(nodes))
    named = {}
    for layer, node in enumerate(nodes):
        _check_layer(f"nodes[{layer}]", node, replace(desc, num_layers=1, input_size=desc.layer_input_size(layer)))
        for name, block in weight_views(node.net.desc, on_host(node.net.weights)).items():
            named[name.replace("_l0", f"_l{layer}")] = block
    return network(desc, named)


def _check_choice(name: str, value: Any, choices: tuple[Any, ...], why: str = "") -> None:
    if isinstance(value, np.ndarray) or value not in choices:
        expected = f"be {' or '.join(map(repr, choices))}"
        raise ValueError(message("from_onnx", name, expected, repr(value), why))


def _check_layer(name: str, node: OnnxNode, expected: RNNDescriptor) -> None:
    if node.net.desc != expected:
        raise ValueError(message("stack_onnx", f"{name}.net.desc", f"be {expected}", node.net.desc))
    if node.reverse:
        cure = "the engine has no reverse-only layers: run the nodes one after the other"
        raise ValueError(message("stack_onnx", f"{name}.reverse", "be False", True, cure))
    constants = [state for state in ("hx", "cx") if getattr(node, state) is not None and np.any(getattr(node, state))]
    constants += ["lengths"] * (node.lengths is not None)
    computed = [state for state in ("hx", "cx") if state in node.computed and state not in node.inputs]
    if computed:
        cure = f"pass them to infer of the network, and stack {name}._replace(computed=())"
        expected = "have no states that the model computes"
        raise ValueError(message("stack_onnx", name, expected, ", ".join(computed), cure))
    if constants:
        cure = f"pass them to infer, and stack {name}._replace({constants[0]}=None)"
        expected = "have no constant lengths or initial states"
        raise ValueError(message("stack_onnx", name, expected, ", ".join(constants), cure))
