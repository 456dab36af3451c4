"""What a network is, in one frozen object, whose notes are the one place for the equations and the order of gates."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from rnnkit.common.lazy import lazy
from rnnkit.descriptor.fields import FIELDS, np_dtype
from rnnkit.descriptor.fields import HOST_DTYPES as HOST_DTYPES
from rnnkit.descriptor.modes import cell_of, check_rounded, has_option, text_of_mode
from rnnkit.errors import message, wrong_type
from rnnkit.kernels.cells.modes import MODES as MODES
from rnnkit.kernels.cells.modes import modes_with
from rnnkit.types import Bias, Cell, DType, InputMode, Mode

ADDED = {"allow_tf32"}  # fields that older files do not have
# Options that not every mode has: what belongs to them.
_MODE_OPTIONS = {"proj_size": "a projection", "cell_clip": "a cell", "reset_after": "two formulas"}


@dataclass(frozen=True, repr=False)
class RNNDescriptor:
    """A network's mode, sizes and options: frozen, hashable, and valid or not born.

    Parameters
    ----------
    mode : {"rnn_relu", "rnn_tanh", "lstm", "gru"} or cell
        The cell; the equations of these four stand in the notes. A cell of :mod:`rnnkit.cells` or of
        your own is given with its parameters, ``MyCell(slope=0.1)``, or as its class where they all have defaults.
    input_size : int
        I, the number of features of x, 1 <= I < 2**31.
    hidden_size : int
        H, the number of units of each layer and direction, 1 <= H < 2**31.
    num_layers : int
        L, 1 <= L <= 10,000.
    bidirectional : bool
        Whether each layer also runs over the sequence in reverse (D = 2).
    bias : {"both", "input", "recurrent", "none"}
        Which of the biases bW and bR there are; True stands for "both", False for "none".
    input_mode : {"linear", "skip"}
        With "skip" layer 0 has no W and takes x as W x would be, the same for each gate; I must equal H.
    proj_size : int, optional
        P, the size to which the output is projected, 1 <= P < H: of an LSTM, and of a cell in whose equations the
        hidden state of the step before does not stand unit by unit. 0 stands for None.
    dropout : float
        Probability in [0, 1] with which an output of a layer is dropped on its way to the next layer, in the training
        forward only; the others are scaled by 1 / (1 - dropout).  With one layer it has nothing to act on.
    cell_clip : tuple of two floats, optional
        (low, high), low < high, to which an LSTM's cell state is clipped; infinite bounds are allowed.  A GPU clips the
        initial one too, and rounds the bounds to float32.
    reset_after : bool
        Which of the two GRU formulas; False belongs to the GRU alone.
    dtype : {"float32", "float64", "float16", "bfloat16"}
        Type of all arrays; a NumPy dtype or scalar type is accepted and stored as the string.  Half precision runs on a
        GPU only, and "bfloat16" needs the package ml_dtypes.
    allow_tf32 : bool
        Whether a GPU may compute float32 faster and coarser: factors of products rounded to TensorFloat-32, with 10
        bits of mantissa, and for small layers an algorithm whose tanh has 11; on the CPU float32 stays float32.

    Raises
    ------
    TypeError
        An argument has the wrong type.
    ValueError
        An argument is out of range, or does not go with the others.
    ImportError
        `dtype` is "bfloat16" and ml_dtypes is not installed.

    Notes
    -----
    Both biases are written out, s is the logistic function, * works element by element, and R h is the recurrent
    product with the previous output.

    rnn_relu, rnn_tanh (Elman, "Finding Structure in Time", 1990)::

        h' = act(W x + R h + bW + bR)

    lstm, gates i f g o (Hochreiter and Schmidhuber, 1997; forget gate: Gers et al., 2000)::

        i, f, o = s(W x + R h + bW + bR)        g = tanh(W x + R h + bW + bR)
        c' = f*c + i*g                          clipped to cell_clip, where that is given
        h' = o*tanh(c')                         with projection P (o*tanh(c')), no bias (Sak et al., arXiv 1402.1128)

    gru, gates r z n (arXiv 1406.1078: v1, cuDNN and PyTorch reset after the product, v3 and ONNX before it)::

        r, z = s(W x + R h + bW + bR)           h' = (1 - z)*n + z*h
        n = tanh(Wn x + bWn + r*(Rn h + bRn))   reset_after=True
        n = tanh(Wn x + bWn + Rn (r*h) + bRn)   reset_after=False

    Examples
    --------
    >>> desc = RNNDescriptor("lstm", 3, 5, num_layers=2, bidirectional=True)
    >>> desc
    RNNDescriptor('lstm', 3, 5, num_layers=2, bidirectional=True)
    >>> desc.num_gates, desc.num_pseudo_layers, desc.layer_input_size(1)
    (4, 4, 10)
    """

    mode: Mode | Cell
    input_size: int
    hidden_size: int
    num_layers: int = 1
    bidirectional: bool = False
    _: KW_ONLY
    bias: Bias | bool = "both"
    input_mode: InputMode = "linear"
    proj_size: int | None = None
    dropout: float = 0.0
    cell_clip: tuple[float, float] | None = None
    reset_after: bool = True
    dtype: DType = "float32"
    allow_tf32: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, FIELDS[field.name](field.name, getattr(self, field.name)))
        _check_combination(self)

    def __repr__(self) -> str:
        given = [repr(self.mode), str(self.input_size), str(self.hidden_size)]
        given += [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)[3:] if getattr(self, f.name) != f.default]
        return f"RNNDescriptor({', '.join(given)})"

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        # Through the constructor: what is unpickled is checked too, and the cached properties stay behind.
        return partial(RNNDescriptor, **{field.name: getattr(self, field.name) for field in fields(self)}), ()

    @lazy
    def _hash(self) -> int:
        # Every call looks its layout up by the descriptor; hashing a dozen fields anew would take longest there.
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    @lazy
    def cell(self) -> Any:
        """The mode's cell with its parameters, of the dtype (`rnnkit.kernels.cells`)."""
        return cell_of(self.mode, self)

    @lazy
    def num_gates(self) -> int:
        """G, the number of gates of the mode."""
        return len(self.cell.declaration.gates)

    @lazy
    def num_input_gates(self) -> int:
        """Number of the gates that have rows of W."""
        return len(self.cell.declaration.input_gates)

    @lazy
    def num_recurrent_gates(self) -> int:
        """Number of the gates that have rows of R."""
        return len(self.cell.declaration.recurrent_gates)

    @lazy
    def states(self) -> tuple[str, ...]:
        """Names of the states beside the hidden one."""
        return self.cell.declaration.states

    @lazy
    def states_size(self) -> int:
        """Numbers that a sequence has of all states beside the hidden one."""
        return len(self.states) * self.hidden_size

    @lazy
    def inputs_size(self) -> int:
        """Numbers that a step of a sequence has of all side inputs: hidden_size of each."""
        return len(self.cell.declaration.inputs) * self.hidden_size

    @lazy
    def draws_noise(self) -> bool:
        """Whether training draws noises of its cell: one of them has a rate above 0."""
        return any(getattr(self.cell, noise.rate) > 0 for noise in self.cell.declaration.noises)

    @lazy
    def draws(self) -> bool:
        """Whether training draws anything: dropout between layers, or noises of the cell."""
        return self.dropout > 0 or self.draws_noise

    @lazy
    def evaluating(self) -> RNNDescriptor:
        """The same network without what training draws: its forward computes what infer does, for gradients of that.

        Both have the same weights; a workspace belongs to the one that forward was given.
        """
        given = {field.name: getattr(self, field.name) for field in fields(self)} | {"dropout": 0.0}
        return self if not self.draws else (_EvalDescriptor if self.draws_noise else RNNDescriptor)(**given)

    @lazy
    def row_size(self) -> int:
        """Numbers in a row of the network's input inside of the engine: those of x, then those of the side inputs."""
        return self.input_size + self.inputs_size

    @lazy
    def num_directions(self) -> int:
        """D, 1 or 2."""
        return 2 if self.bidirectional else 1

    @lazy
    def num_pseudo_layers(self) -> int:
        """L*D, the number of rows of hx; pseudo-layer = layer * D + direction."""
        return self.num_layers * self.num_directions

    @lazy
    def output_size(self) -> int:
        """P, the size of one direction's output: proj_size, or hidden_size without projection."""
        return self.proj_size or self.hidden_size

    @lazy
    def has_cell_state(self) -> bool:
        """Whether there are states beside the hidden one."""
        return bool(self.states)

    @lazy
    def projected(self) -> bool:
        """Whether the output is projected to proj_size."""
        return self.proj_size is not None

    @lazy
    def has_bias_ih(self) -> bool:
        """Whether there is bW."""
        return self.bias in ("both", "input") and self.num_input_gates > 0

    @lazy
    def has_bias_hh(self) -> bool:
        """Whether there is bR."""
        return self.bias in ("both", "recurrent") and self.num_recurrent_gates > 0

    @lazy
    def np_dtype(self) -> np.dtype:
        """The NumPy dtype of all arrays."""
        return np_dtype(self.dtype)

    def layer_input_size(self, layer: int) -> int:
        """Return the number of features that come into a layer.

        Parameters
        ----------
        layer : int
            0..num_layers - 1.

        Returns
        -------
        int
            I for layer 0, D*P above.
        """
        return self.input_size if layer == 0 else self.num_directions * self.output_size

    def has_input_weight(self, layer: int) -> bool:
        """Return whether a layer has W.

        Parameters
        ----------
        layer : int
            0..num_layers - 1.

        Returns
        -------
        bool
            False for layer 0 with ``input_mode="skip"`` only.
        """
        return layer > 0 or self.input_mode == "linear"


class _EvalDescriptor(RNNDescriptor):
    """A network whose cell would draw noises, and does not."""

    draws_noise = False  # type: ignore[assignment]
    evaluating = property(lambda self: self)  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{super().__repr__()}.evaluating"

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        plain = RNNDescriptor(**{field.name: getattr(self, field.name) for field in fields(self)})
        return getattr, (plain, "evaluating")


def check_descriptor(function: str, desc: Any) -> None:
    if not isinstance(desc, RNNDescriptor):
        raise wrong_type(function, "desc", "an RNNDescriptor", desc)


def only_with(option: str) -> str:
    """Say which modes have an option, for a message about another one."""
    return " and ".join(f'mode="{mode}"' for mode in modes_with(option)).join(("only ", f" has {_MODE_OPTIONS[option]}"))


def _check_combination(desc: RNNDescriptor) -> None:
    def refuse(name: str, expected: str, cure: str = "") -> None:
        raise ValueError(message("RNNDescriptor", name, expected, getattr(desc, name), cure))

    if desc.input_mode == "skip" and desc.input_size != desc.hidden_size:
        refuse("input_size", f'equal hidden_size={desc.hidden_size} with input_mode="skip"')
    for option in _MODE_OPTIONS:
        default = RNNDescriptor.__dataclass_fields__[option].default
        if getattr(desc, option) != default and not has_option(desc.mode, option):
            cure = only_with(option) if isinstance(desc.mode, str) else ""
            refuse(option, f"be {default} with {text_of_mode(desc.mode)}", cure)
    declaration = None if isinstance(desc.mode, str) else desc.mode.declaration
    if declaration and desc.hidden_size % declaration.heads:
        refuse("hidden_size", f"be a multiple of the {declaration.heads} heads of {declaration.name}")
    if desc.bias == "recurrent" and not desc.num_recurrent_gates:
        refuse("bias", f"be another one with {text_of_mode(desc.mode)}, which has no R")
    if desc.proj_size is not None and desc.proj_size >= desc.hidden_size:
        refuse("proj_size", f"be below hidden_size={desc.hidden_size}")
    check_rounded("RNNDescriptor", desc.mode, desc.np_dtype)
    if desc.cell_clip is not None:
        with np.errstate(over="ignore"):
            low, high = map(desc.np_dtype.type, desc.cell_clip)
        if not low < high:
            refuse("cell_clip", f"be (low, high) with low < high in {desc.dtype}")
    if desc.allow_tf32 and desc.dtype != "float32":
        refuse("allow_tf32", f'be False with dtype="{desc.dtype}"', 'only dtype="float32" has TensorFloat-32 products')
