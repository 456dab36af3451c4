"""The flat weights of a Keras layer, by operations of Keras, which every backend differentiates."""

from __future__ import annotations

from typing import Any

from keras import ops

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.interop.keras import ORDERS
from rnnkit.interop.networks import gate_order
from rnnkit.network.classes import class_of, mode_of


def descriptor_of(layer: Any) -> RNNDescriptor:
    """Return the descriptor of a built layer."""
    cell = layer.cell
    name = layer.kind_of_keras
    mode = mode_of("RNN", nonlinearity=cell.activation.__name__) if name == "SimpleRNN" else mode_of(name)
    resets_after = bool(getattr(cell, "reset_after", True))
    bias = "none" if not cell.use_bias else "both" if name == "GRU" and resets_after else "input"
    options = {"bias": bias, "dtype": str(cell.compute_dtype), "reset_after": resets_after}
    return RNNDescriptor(mode, int(cell.kernel.shape[0]), cell.units, **options)


def network_of(layer: Any) -> tuple[RNNDescriptor, Any]:
    """Return the descriptor and the flat weights: kernels transposed, gates in the engine's order."""
    desc, cell = descriptor_of(layer), layer.cell
    wanted, size = gate_order(desc), desc.hidden_size
    have = ORDERS[class_of(desc.mode)].split()
    order = [have.index(gate) for gate in wanted.split()]

    def gates(array: Any) -> Any:  # (..., G*H)
        if order == sorted(order):
            return array
        return ops.concatenate([array[..., number * size : (number + 1) * size] for number in order], -1)

    blocks = [ops.transpose(gates(ops.convert_to_tensor(one))) for one in (cell.kernel, cell.recurrent_kernel)]
    if cell.use_bias:
        blocks.append(gates(ops.convert_to_tensor(cell.bias)))
    return desc, ops.concatenate([ops.reshape(one, (-1,)) for one in blocks])
