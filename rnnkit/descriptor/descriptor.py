"""The network descriptor. Its notes define the equations and the gate order."""

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
from rnnkit.types import Bias, Cell, DType, InputMode, Mode
from rnnkit_kernels.cells.modes import MODES as MODES
from rnnkit_kernels.cells.modes import modes_with

# Mode-specific options -> what a mode with the option has, for messages.
_MODE_OPTIONS = {"proj_size": "a projection", "cell_clip": "a cell", "reset_after": "two formulas"}


@dataclass(frozen=True, repr=False)
class RNNDescriptor:
    """Mode, sizes and options of a network: immutable, hashable, and validated on construction.

    Parameters
    ----------
    mode : {"rnn_relu", "rnn_tanh", "lstm", "gru"} or cell
        The cell; the notes have the equations of these four. Or a cell of :mod:`rnnkit.cells` or your own cell, with
        its parameters, ``MyCell(slope=0.1)``, or as a class if all parameters have defaults.
    input_size : int
        I, the number of features of x, 1 <= I < 2**31. 0 for a cell whose gates all have ``input=False``: it reads side
        inputs only, and x (T, N, 0) says how many steps and sequences there are.
    hidden_size : int
        H, the number of units of each layer and direction, 1 <= H < 2**31.
    num_layers : int
        L, the number of stacked layers, 1 <= L <= 10,000.
    bidirectional : bool
        Whether each layer also runs over the sequence in reverse (D = 2).
    bias : {"both", "input", "recurrent", "none"}
        Which of the biases bW and bR the network has. True means "both", False "none".
    input_mode : {"linear", "skip"}
        With "skip", layer 0 has no W: x takes the place of W x in each gate, and I must equal H.
    proj_size : int, optional
        P, the size of the projected output, 1 <= P < H. For LSTM, and for cells that use h_prev only through R h. None
        or 0: no projection.
    dropout : float
        Probability in [0, 1] of dropping an output of a layer before the next layer, in `forward` only. The other
        outputs are scaled by 1 / (1 - dropout). It has no effect with one layer.
    cell_clip : tuple of two floats, optional
        Clip the cell state of an LSTM to (low, high), low < high; the bounds may be infinite. cuDNN also clips cx, and
        rounds the bounds to float32.
    reset_after : bool
        Which of the two GRU formulas of the notes to use. False is for the GRU only.
    dtype : {"float32", "float64", "float16", "bfloat16"}
        dtype of all arrays. A NumPy dtype or scalar type is accepted and stored as the string. Half precision runs on a
        GPU only; "bfloat16" needs the package ml_dtypes.
    allow_tf32 : bool
        Allow a GPU to compute float32 faster and less accurately: the factors of products are rounded to TensorFloat-32
        (10 bits of mantissa), and small layers use an algorithm whose tanh has 11 bits. No effect on the CPU.
    learned_initial_state : bool
        Whether the initial states belong to the network: blocks h0, c0 and so on behind the biases of the flat buffer,
        one for each layer and direction, which all sequences share. They take the place of zeros where hx or cx is not
        given, in resets and in streams; dw has their gradients.

    Raises
    ------
    TypeError
        An argument has the wrong type.
    ValueError
        An argument is out of range, or is incompatible with another one.
    ImportError
        `dtype` is "bfloat16" and ml_dtypes is not installed.

    Notes
    -----
    s is the logistic function, * is the elementwise product, and R h is the recurrent product with the previous output.
    h' and c' are the states after the step, h and c those before it.

    rnn_relu, rnn_tanh (Elman, "Finding Structure in Time", 1990); rnn_relu has max(a, 0) in place of tanh(a)::

        h' = tanh(W x + R h + bW + bR)

    lstm, gates i f g o (Hochreiter and Schmidhuber, 1997; forget gate: Gers et al., 2000)::

        i, f, o = s(W x + R h + bW + bR)        g = tanh(W x + R h + bW + bR)
        c' = f*c + i*g                          h' = o*tanh(c')

    With `cell_clip`, c' is clipped. With `proj_size`, the output is P h', without bias (Sak et al., arXiv 1402.1128).

    gru, gates r z n, with `reset_after=True` (arXiv 1406.1078v1, cuDNN, PyTorch)::

        r, z = s(W x + R h + bW + bR)           h' = (1 - z)*n + z*h
        n = tanh(Wn x + bWn + r*(Rn h + bRn))

    With `reset_after=False` (arXiv 1406.1078v3, ONNX) R multiplies r*h::

        n = tanh(Wn x + bWn + Rn (r*h) + bRn)

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
    learned_initial_state: bool = False

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
        # Unpickle through the constructor, which validates. Cached properties are not pickled.
        return partial(RNNDescriptor, **{field.name: getattr(self, field.name) for field in fields(self)}), ()

    @lazy
    def _hash(self) -> int:
        # Every call looks up its layout by the descriptor: hashing all fields each time would dominate that.
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    @lazy
    def cell(self) -> Any:
        """The cell that kernels run, with its parameters in this dtype (`rnnkit_kernels.cells`)."""
        return cell_of(self.mode, self)

    @lazy
    def num_gates(self) -> int:
        """G, the number of gates of the mode."""
        return len(self.cell.declaration.gates)

    @lazy
    def num_input_gates(self) -> int:
        """Number of gates with rows of W."""
        return len(self.cell.declaration.input_gates)

    @lazy
    def num_recurrent_gates(self) -> int:
        """Number of gates with rows of R."""
        return len(self.cell.declaration.recurrent_gates)

    @lazy
    def states(self) -> tuple[str, ...]:
        """Names of all states except h."""
        return self.cell.declaration.states

    @lazy
    def states_size(self) -> int:
        """Elements per sequence of all states except h: H for each."""
        return len(self.states) * self.hidden_size

    @lazy
    def inputs_size(self) -> int:
        """Elements per sequence and step of all side inputs: H for each."""
        return len(self.cell.declaration.inputs) * self.hidden_size

    @lazy
    def draws_noise(self) -> bool:
        """Whether the cell draws noise in training: one of its noises has a rate above 0."""
        return any(getattr(self.cell, noise.rate) > 0 for noise in self.cell.declaration.noises)

    @lazy
    def draws(self) -> bool:
        """Whether training is random: by dropout between layers, or by noise of the cell."""
        return self.dropout > 0 or self.draws_noise

    @lazy
    def evaluating(self) -> RNNDescriptor:
        """The same network in evaluation mode, without dropout and noise: `forward` then computes what `infer` does.

        Use it for gradients of inference. Both descriptors share the weights. A workspace belongs to the descriptor
        that was passed to `forward`.
        """
        arguments = {field.name: getattr(self, field.name) for field in fields(self)} | {"dropout": 0.0}
        return self if not self.draws else (_EvalDescriptor if self.draws_noise else RNNDescriptor)(**arguments)

    @lazy
    def row_size(self) -> int:
        """Columns of the engine's input rows: those of x, then those of the side inputs."""
        return self.input_size + self.inputs_size

    @lazy
    def num_directions(self) -> int:
        """D: 2 if bidirectional, else 1."""
        return 2 if self.bidirectional else 1

    @lazy
    def num_pseudo_layers(self) -> int:
        """L*D, the size of the first dimension of hx. A pseudo-layer is layer * D + direction."""
        return self.num_layers * self.num_directions

    @lazy
    def output_size(self) -> int:
        """P, the output size of one direction: H, or proj_size with a projection."""
        return self.proj_size or self.hidden_size

    @lazy
    def has_cell_state(self) -> bool:
        """Whether the cell has a state besides h, such as the cell state of an LSTM."""
        return bool(self.states)

    @lazy
    def projected(self) -> bool:
        """Whether the output is projected to proj_size."""
        return self.proj_size is not None

    @lazy
    def has_bias_ih(self) -> bool:
        """Whether the network has the bias bW."""
        return self.bias in ("both", "input") and self.num_input_gates > 0

    @lazy
    def has_bias_hh(self) -> bool:
        """Whether the network has the bias bR."""
        return self.bias in ("both", "recurrent") and self.num_recurrent_gates > 0

    @lazy
    def np_dtype(self) -> np.dtype:
        """The NumPy dtype of all arrays."""
        return np_dtype(self.dtype)

    def layer_input_size(self, layer: int) -> int:
        """Return the number of input features of a layer.

        Parameters
        ----------
        layer : int
            0..num_layers - 1.

        Returns
        -------
        int
            I for layer 0, D*P for the others.
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
            False for layer 0 with ``input_mode="skip"``, and for a cell whose gates have no W.
        """
        return (layer > 0 or self.input_mode == "linear") and self.num_input_gates > 0


class _EvalDescriptor(RNNDescriptor):
    """Evaluation mode of a network whose cell draws noise."""

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
    """Return a text that names the modes with an option, for the message about another mode."""
    modes = " and ".join(f'mode="{mode}"' for mode in modes_with(option))
    return f"only {modes} has {_MODE_OPTIONS[option]}"


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
    has_w = declaration is None or bool(declaration.input_gates)
    if has_w and desc.input_size == 0:
        refuse("input_size", "be at least 1", "only a cell whose gates all have input=False has no x")
    if not has_w:
        cell = f"{text_of_mode(desc.mode)}, which has no W"
        if desc.input_size > 0:
            refuse("input_size", f"be 0 with {cell}")
        if desc.num_layers > 1:
            refuse("num_layers", f"be 1 with {cell}", "a second layer could not read the first")
        if desc.bias == "input":
            refuse("bias", f'be "both", "recurrent" or "none" with {cell}')
    if declaration and desc.hidden_size % declaration.heads:
        refuse("hidden_size", f"be a multiple of the {declaration.heads} heads of {declaration.name}")
    if desc.bias == "recurrent" and not desc.num_recurrent_gates:
        refuse("bias", f'be "both", "input" or "none" with {text_of_mode(desc.mode)}, which has no R')
    if desc.proj_size is not None and desc.proj_size >= desc.hidden_size:
        refuse("proj_size", f"be below hidden_size={desc.hidden_size}")
    check_rounded("RNNDescriptor", desc.mode, desc.np_dtype)
    if desc.cell_clip is not None:
        with np.errstate(over="ignore"):
            low, high = map(desc.np_dtype.type, desc.cell_clip)
        if not low < high:
            refuse("cell_clip", f"be (low, high) with low < high in {desc.dtype}")
    if desc.learned_initial_state and declaration:
        initial = {f"{state}0" for state in ("h", *declaration.states)}
        if taken := initial & {vector.name for vector in declaration.vectors}:
            cure = f"{declaration.name} has a vector {min(taken)}, which names its initial state"
            refuse("learned_initial_state", "be False", cure)
    if desc.allow_tf32 and desc.dtype != "float32":
        refuse("allow_tf32", f'be False with dtype="{desc.dtype}"', 'only dtype="float32" has TensorFloat-32 products')
