"""The arrays of an ONNX operator, and the blocks of weights of a network of one layer."""

from __future__ import annotations

import numpy as np

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import suffix_of
from rnnkit.errors import message
from rnnkit.interop.networks import check_shape, gate_order, gate_rows, reordered
from rnnkit.interop.onnx_operators import Operator
from rnnkit.interop.stacks import both_biases


def check_arrays(desc: RNNDescriptor, operator: Operator, layout: int, arrays: dict[str, np.ndarray]) -> None:
    """Check the shapes of the arrays; errors use ONNX's names of dimensions."""
    gates, hidden, directions = len(operator.gates.split()), desc.hidden_size, desc.num_directions
    rows = gate_rows(gates)
    state = (directions, None, hidden), ("num_directions", "batch_size", "hidden_size")
    if layout:
        state = (None, directions, hidden), ("batch_size", "num_directions", "hidden_size")
    expected = {
        "W": ((directions, gates * hidden, desc.input_size), ("num_directions", rows, "input_size")),
        "R": ((directions, gates * hidden, hidden), ("num_directions", rows, "hidden_size")),
        "B": ((directions, 2 * gates * hidden), ("num_directions", f"2*{rows}")),
        "P": ((directions, 3 * hidden), ("num_directions", "3*hidden_size")),
        "initial_h": state,
        "initial_c": state,
    }
    for name, array in arrays.items():
        if name in ("P", "initial_c") and not desc.has_cell_state:
            expected = f"be None with op_type={operator.op_type!r}"
            raise ValueError(message("from_onnx", name, expected, f"shape {array.shape}"))
        check_shape("from_onnx", name, array, *expected[name])


def blocks_of_layer(
    desc: RNNDescriptor,
    operator: Operator,
    W: np.ndarray,
    R: np.ndarray,
    B: np.ndarray | None = None,
    P: np.ndarray | None = None,
    **_: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return the named blocks of a network of one layer."""
    blocks = {}
    for direction in range(desc.num_directions):
        parts = {"weight_ih": W[direction], "weight_hh": R[direction]}
        if B is not None:
            parts["bias_ih"], parts["bias_hh"] = np.split(B[direction], 2)
        for kind, part in parts.items():
            blocks[kind + suffix_of(0, direction)] = reordered(part, operator.gates, gate_order(desc))
        if operator.peepholes:
            names = (name + suffix_of(0, direction) for name in operator.peepholes.split())
            blocks |= zip(names, np.split(P[direction], 3), strict=True)
    return blocks


def arrays_of_layer(
    desc: RNNDescriptor, operator: Operator, cells: list[dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return W, R, B and P of a layer from the blocks of each direction."""
    parts = {"W": [[cell["weight_ih"]] for cell in cells], "R": [[cell["weight_hh"]] for cell in cells]}
    if desc.bias != "none":
        parts["B"] = [both_biases(cell) for cell in cells]
    arrays = {
        name: np.stack([np.concatenate([_rows(desc, block, operator.gates) for block in blocks]) for blocks in halves])
        for name, halves in parts.items()
    }
    if operator.peepholes:
        arrays["P"] = np.stack([np.concatenate([cell[name] for name in operator.peepholes.split()]) for cell in cells])
    return arrays


def _rows(desc: RNNDescriptor, block: np.ndarray, want: str) -> np.ndarray:
    """Return a block with its gates in another order; missing gates are zeros."""
    have = gate_order(desc)
    missing = [name for name in want.split() if name not in have.split()]
    zeros = [np.zeros_like(block[: desc.hidden_size])] * len(missing)
    return reordered(np.concatenate([block, *zeros]), " ".join([have, *missing]), want)
