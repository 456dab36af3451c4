"""Decorators that declare a cell: its gates, states and weights, and the equations of one unit.

A cell is a NamedTuple class under the decorator `cell`; its fields, annotated bool, int, float or Activation, are its
parameters. Its stages are functions of numbers. A stage reads the names of its arguments, and its results are written
to the names that its decorator declares:

    i, r, ...       a gate: first its pre-activation, W x + R h + biases, then what a stage wrote
    c_prev, c       a state before and after the step
    h_prev, h       the hidden state before and after the step (h before a projection, if there is one)
    p, ...          a vector (one weight per unit) or a scalar (one weight per layer); stages read it, and
                    accumulate its gradient in dp
    a, ...          a side input: a number that the call gives; or a noise: a number that training draws
    di, dc, dh ...  the gradient of the loss by it, in gradient stages; the final one of a gate is by its
                    pre-activation. dc and dc_prev share memory: the gradient flows from the next step to the previous

A stage is one loop over the units. Start a new stage if a slow function (tanh, sigmoid) depends on the result of
another: a loop with a long dependency chain is latency-bound (split, the GRU takes 0.78 of the time, the LSTM 0.93, its
gradient 0.78; Zen 3). Gradient stages run in reverse order, so that each can be written below its forward stage.
Nothing here depends on rows, threads or memory.
"""

from inspect import signature
from types import FunctionType

from .activations import compare_by_class
from .declaration import (
    Declaration,
    Gate,
    Input,
    Noise,
    Phase,
    Product,
    Scalar,
    Stage,
    Vector,
    as_declarations,
    split_names,
)
from .derivation import DERIVATION_VERSION, Derivation
from .rules import CellError, check, check_gradient, describe_stage
from .running import probe
from .source import freeze
from .writing import source_text, written


def forward(writes):
    """Decorate a function to make it a stage that writes its results to these names."""
    return _stage(writes, is_gradient=False)


def gradient(writes):
    """Decorate a function to make it a stage of the gradient, which writes to these names."""
    return _stage(writes, is_gradient=True)


def _stage(writes, is_gradient):
    decorator = "gradient" if is_gradient else "forward"
    if isinstance(writes, FunctionType):
        raise CellError(f'{describe_stage(writes)} does not name what it writes; write @{decorator}("names")')
    written = split_names(f"@{decorator}: writes", writes)

    def declare(function):
        if not isinstance(function, FunctionType):
            raise CellError(f"@{decorator}: a stage must be a function, got {function!r}")
        _, *reads = signature(function).parameters or ("self",)
        return Stage(function, tuple(reads), written, is_gradient)

    return declare


def cell(gates, states="", vectors="", slots="", smooth=True, scalars="", inputs="", noises=()):
    """Decorate a NamedTuple class to make it a cell; its attribute `declaration` has what is declared.

    Parameters
    ----------
    gates : str or list of Gate
        In the order of their rows in every weight block; a plain name is a gate with W x + R h.
    states : str
        Names of the states other than h.
    vectors : str or list of Vector
        Weights, one per unit: blocks of hidden_size numbers after the biases, in this order.
    scalars : str or list of Scalar
        Weights of a layer, one number each: after the vectors, in this order.
    inputs : str or list of Input
        Side inputs: arrays (T, N, H), (T, N, 1) or (N, H) that a call gives under these names, for stages to read.
    noises : list of Noise
        Random numbers that training draws for each unit, for stages to read.
    slots : str
        Names of extra values that forward stages save for hand-written gradient stages.
    smooth : bool
        Whether the cell is differentiable everywhere.

    Raises
    ------
    CellError
        The declaration or an equation is invalid; the message names the cell, the stage and the line.
    """

    if isinstance(gates, type):
        raise CellError(f'cell {gates.__name__}: gates must name at least one, got none; write @cell(gates="names")')

    def declare(kind):
        if not isinstance(kind, type):
            raise CellError(f"@cell: a cell must be a class, got {kind!r}")
        if not isinstance(smooth, bool):
            raise CellError(f"cell {kind.__name__}: smooth must be a bool, got {smooth!r}")
        stages = [value for value in vars(kind).values() if isinstance(value, Stage)]
        by_hand = any(stage.is_gradient for stage in stages)
        extra_slots = slots if by_hand else _intermediates(kind.__name__, slots, gates, states, stages)
        given = gates, states, vectors, scalars, inputs, noises
        kind.declaration = Declaration(kind, *given, extra_slots, stages, smooth)
        check(kind, by_hand)
        for stage in stages:
            probe(kind, stage)
        try:
            if not by_hand:
                kind.declaration = _derived(kind)
                check_gradient(kind.declaration)
            if not kind.declaration.shipped:
                freeze(kind)
        except RecursionError:
            problem, cure = "has equations that are nested too deeply", "give parts of them names"
            raise CellError(f"cell {kind.__name__}: {problem}; {cure}") from None
        return compare_by_class(kind)  # otherwise caches would confuse two cells without parameters

    return declare


def derived(kind):
    """Return a cell's declaration with the derived gradient, even if it has a hand-written one. Raises CellError."""
    declaration = kind.declaration
    if declaration.derivation_version is not None:
        return declaration
    stages = [stage for stage in declaration.equations if not stage.is_gradient]
    vectors = [vector for vector in declaration.vectors if vector not in declaration.scalars]
    extra_slots = _intermediates(declaration.name, "", declaration.gates, declaration.states, stages)
    twin = type(declaration.name, (kind,), {"__slots__": ()})
    given = declaration.gates, declaration.states, vectors, declaration.scalars, declaration.inputs, declaration.noises
    twin.declaration = Declaration(kind, *given, extra_slots, stages, declaration.smooth)
    return _derived(twin)


def _derived(kind):
    """Return the declaration of a cell with forward stages only, completed with the stages of its gradient."""
    declaration, found = kind.declaration, written(Derivation(kind), Stage)
    vectors = [vector for vector in declaration.vectors if vector not in declaration.scalars]
    given = declaration.gates, declaration.states, vectors, declaration.scalars, declaration.inputs, declaration.noises
    whole = Declaration(kind, *given, found.slots, found.stages, declaration.smooth, found.means, found.phase_of)
    whole.equations, whole.keeps, whole.derivation_version = declaration.equations, found.keeps, DERIVATION_VERSION
    whole.as_written = declaration
    return whole


def derived_source(kind):
    """Return the loops that the engine derives from a cell's forward equations, with their gradient, as Python source.

    Parameters
    ----------
    kind : cell
        The class, or an instance.

    Returns
    -------
    str
        The function of each loop and what it writes, forward, then backward. The first line says what each slot holds
        when the gradient reads it. The text is for reading only. Kernels run exactly these functions, unless the
        cell's gradient is written by hand.

    Raises
    ------
    TypeError
        `kind` is not a cell.
    CellError
        The cell's gradient is written by hand, and cannot be derived from its forward stages.

    Examples
    --------
    >>> from rnnkit.cells import MinGRU, derived_source
    >>> print(derived_source(MinGRU))
    # z holds sigmoid(z), n holds n
    @forward("z h")
    def output(self, z, n, h_prev):
        z1 = sigmoid(z)
        return z1, fma(z1, n, (1 - z1) * h_prev)
    <BLANKLINE>
    @gradient("dz dn dh_prev")
    def through_output(self, dh, n, h_prev, z):
        t = 1 - z
        return dh * (n - h_prev) * (z * t), dh * z, dh * t
    """
    kind = kind if isinstance(kind, type) else type(kind)
    if not isinstance(getattr(kind, "declaration", None), Declaration):
        raise TypeError(f"derived_source: kind must be a cell, got {kind.__name__}")
    declaration = derived(kind)
    forward_stages = [stage for stage in declaration.stages if not stage.is_gradient]
    gradient_stages = [stage for stage in reversed(declaration.stages) if stage.is_gradient]
    texts = []
    for stage in (*forward_stages, *gradient_stages):
        decorator = "gradient" if stage.is_gradient else "forward"
        texts.append(f'@{decorator}("{" ".join(stage.writes)}")\n{source_text(stage.function).rstrip()}')
    saved = ", ".join(f"{slot} holds {text}" for slot, text in declaration.keeps.items())
    return f"# {saved}\n" + "\n\n".join(texts)


def _intermediates(cell, slots, gates, states, stages):
    """Return the undeclared names that stages write, for later stages to read."""
    if slots:
        cure = "remove them: later stages can read any name that a stage writes"
        raise CellError(f"cell {cell}: slots are only for gradients that are written by hand, got {slots!r}; {cure}")
    gates = as_declarations(cell, Gate, "gates", gates)
    known = {"h", *split_names(f"cell {cell}: states", states)}
    known |= {name for gate in gates for name in (gate.name, gate.apart, gate.multiplies)}
    return list(dict.fromkeys(name for stage in stages for name in stage.writes if name not in known))


__all__ = [
    "CellError", "Declaration", "Gate", "Input", "Noise", "Phase", "Product", "Scalar", "Stage", "Vector", "cell",
    "forward", "gradient",
]  # fmt: skip
