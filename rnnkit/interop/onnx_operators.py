"""Map cells to ONNX's operators and back: gates, activations, peepholes.

ONNX Runtime's LSTM with input_forget has f = 1 - i; W, R, B and P still have rows of f, but it ignores them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rnnkit.errors import message, wrong_type
from rnnkit_kernels.cells.activated_lstm import ActivatedLSTM
from rnnkit_kernels.cells.activations import ACTIVATIONS
from rnnkit_kernels.cells.coupled_lstm import CoupledLSTM
from rnnkit_kernels.cells.peephole_lstm import PeepholeLSTM

# Operators, and their default activations in one direction.
OPERATORS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
CELLS = ActivatedLSTM, PeepholeLSTM, CoupledLSTM
# Activations without a clear default of alpha and beta: ONNX refers to the operator of the same name, but that has no
# default, or ONNX Runtime uses another one.
UNCLEAR = "Affine", "ScaledTanh", "ThresholdedRelu"


class Operator(NamedTuple):
    """ONNX operator that computes a cell.

    Attributes
    ----------
    op_type : str
        Name of the operator.
    gates : str
        Gates in ONNX's order, by our names; those that the cell lacks are zeros.
    peepholes : str
        Our vectors, in the order of P.
    attributes : dict
        Attributes of the node; a list holds the values of one direction.
    """

    op_type: str
    gates: str
    peepholes: str
    attributes: dict[str, Any]


MODES = {
    "rnn_relu": Operator("RNN", "a", "", {"activations": ["Relu"]}),
    "rnn_tanh": Operator("RNN", "a", "", {"activations": ["Tanh"]}),
    "lstm": Operator("LSTM", "i o f g", "", {}),
    "gru": Operator("GRU", "z r n", "", {"linear_before_reset": 1}),
}


def operator_of(mode: Any) -> Operator:
    """Return the operator of one of `MODES` or `CELLS`."""
    if isinstance(mode, str):
        return MODES[mode]
    attributes: dict[str, Any] = {"input_forget": 1} if isinstance(mode, CoupledLSTM) else {}
    if mode != type(mode)():
        attributes["activations"] = [type(activation).__name__ for activation in mode]
        for name in ("alpha", "beta"):
            numbers = [getattr(activation, name) for activation in mode if name in activation._fields]
            attributes |= {f"activation_{name}": numbers} if numbers else {}
    peepholes = "peephole_i peephole_o peephole_f" if isinstance(mode, PeepholeLSTM) else ""
    return Operator("LSTM", MODES["lstm"].gates, peepholes, attributes)


def mode_of_operator(
    op_type: str,
    num_directions: int,
    activations: Sequence[str],
    alpha: Sequence[float],
    beta: Sequence[float],
    peepholes: bool,
    input_forget: int,
) -> Any:
    """Return the mode or cell that an operator computes; names of activations are case-insensitive."""
    if isinstance(activations, str) or not isinstance(activations, Sequence):
        raise wrong_type("from_onnx", "activations", "a list of names", activations)
    usual = OPERATORS[op_type]
    given = [str(name) for name in activations] or usual * num_directions
    known = {name.lower(): name for name in ACTIVATIONS}
    names = [known.get(name.lower(), name) for name in given]
    first = names[: len(usual)]  # of the first direction
    modes = {mode: op.attributes.get("activations", usual) for mode, op in MODES.items() if op.op_type == op_type}
    complete = names == first * num_directions and len(first) == len(usual)
    if not complete or not set(names) <= set(ACTIVATIONS) or (op_type != "LSTM" and first not in modes.values()):
        which = " or ".join(str(activations * num_directions) for activations in modes.values())
        if op_type == "LSTM":
            which = f"3 of {', '.join(ACTIVATIONS)}" + ", the same in both directions" * (num_directions == 2)
        got = list(activations)
        raise ValueError(message("from_onnx", "activations", f"be {which} with op_type={op_type!r}", got))
    numbers = {"alpha": _numbers("alpha", names, alpha), "beta": _numbers("beta", names, beta)}
    found = [_activation(name, numbers) for name in names]
    if found != found[: len(first)] * num_directions:
        expected = "be the same in both directions"
        raise ValueError(message("from_onnx", "activation_alpha and activation_beta", expected, (*alpha, *beta)))
    if op_type != "LSTM":
        return next(mode for mode, names in modes.items() if names == first)
    if peepholes and input_forget:
        cure = "rnnkit has no peephole LSTM with coupled input and forget gates"
        raise ValueError(message("from_onnx", "P", "be zeros with input_forget=1", "others", cure))
    kind = PeepholeLSTM if peepholes else CoupledLSTM if input_forget else ActivatedLSTM
    mode = kind(*found[: len(first)])
    return "lstm" if mode == ActivatedLSTM() else mode


def _numbers(kind: str, names: list[str], given: Sequence[float]) -> list[float]:
    """Return the numbers of one kind, one for each activation that takes it; ONNX's defaults if none is given."""
    takers = [name for name in names if kind in ACTIVATIONS[name]._fields]
    unclear = [name for name in takers if name in UNCLEAR]
    if isinstance(given, (str, bytes)) or not hasattr(given, "__len__"):
        raise wrong_type("from_onnx", f"activation_{kind}", "a list of numbers", given)
    if len(given) == len(takers):
        return list(given)
    if len(given) or unclear:
        expected = f"hold {len(takers)} numbers, for {', '.join(takers)}" if takers else "be ()"
        cure = "" if unclear else "leave it empty for ONNX's defaults" if takers else f"{', '.join(names)} take none"
        raise ValueError(message("from_onnx", f"activation_{kind}", expected, tuple(given), cure))
    return [ACTIVATIONS[name]._field_defaults[kind] for name in takers]


def _activation(name: str, numbers: dict[str, list[float]]) -> Any:
    kind = ACTIVATIONS[name]
    return kind(*(numbers[field].pop(0) for field in kind._fields))
