"""What a cell says of itself: its gates, its states, its own weights, and the equations of one unit.

A cell is a NamedTuple class under the decorator `cell`; its fields, annotated bool, int, float or
Activation, are its parameters.
Its stages are functions of numbers, whose parameters are read by their names and whose results are written to the names
that the stage declares:

    i, r, ...       a gate: first its pre-activation, W x + R h + biases, then what a stage wrote
    c_prev, c       a state before and after the step
    h_prev, h       the hidden state before and after the step (h before a projection, where there is one)
    p, ...          a vector: a weight of the unit's own, or a scalar, one that all units have in common; stages read
                    it, and write to dp what they add to its gradient
    a, ...          a side input: a number that the call gives; or a noise, one that training draws
    di, dc, dh ...  the gradient of the loss by it, in the stages of the gradient; in the end that of a gate is by its
                    pre-activation. dc and dc_prev are one number: it comes from the step after and goes to that before

A stage is one loop over the units. One that waits for a slow function (tanh, sigmoid) of another one's result begins a
new stage: in one loop few units at a time are on their way through a core, and the time of a unit is that of the whole
chain (GRU 0.78, LSTM 0.93, its gradient 0.78 of the time; Zen 3). The stages of the gradient run in reverse order, so
that each can stand behind what it is the gradient of. Nothing here knows of rows, threads or memory.
"""

from contextlib import suppress
from inspect import signature
from types import FunctionType

from .activations import told_apart
from .declaration import Declaration, Gate, Input, Noise, Phase, Product, Scalar, Stage, Vector, named, words
from .derivation import RULE, Derivation
from .rules import CellError, check, check_gradient, place
from .source import source_of
from .uses import Unresolved
from .writing import text_of, written


def forward(writes):
    """Make the decorated function a stage that writes its results to these names."""
    return _stage(writes, is_gradient=False)


def gradient(writes):
    """Make the decorated function a stage of the gradient."""
    return _stage(writes, is_gradient=True)


def _stage(writes, is_gradient):
    decorator = "gradient" if is_gradient else "forward"
    if isinstance(writes, FunctionType):
        raise CellError(f'{place(writes)} must be told what it writes, got nothing; write @{decorator}("names")')
    written = words(f"@{decorator}: writes", writes)

    def declare(function):
        if not isinstance(function, FunctionType):
            raise CellError(f"@{decorator}: a stage must be a function, got {function!r}")
        _, *reads = signature(function).parameters or ("self",)
        return Stage(function, tuple(reads), written, is_gradient)

    return declare


def cell(gates, states="", vectors="", slots="", smooth=True, scalars="", inputs="", noises=()):
    """Make the decorated NamedTuple class a cell, and leave what it says in its attribute `declaration`.

    Parameters
    ----------
    gates : str or list of Gate
        In the order of their rows in every weight block; names alone are gates to which R h is added.
    states : str
        Names of the states beside h.
    vectors : str or list of Vector
        Weights of each unit's own: blocks of hidden_size numbers behind the biases, in this order.
    scalars : str or list of Scalar
        Weights of a layer, one number each: behind the vectors, in this order.
    inputs : str or list of Input
        Side inputs: arrays (T, N, H), (T, N, 1) or (N, H) that a call gives by these names, and stages read.
    noises : list of Noise
        What training draws for each unit and stages read.
    slots : str
        Names of what else a stage writes for a gradient that is written by hand to read.
    smooth : bool
        Whether it has a derivative everywhere.

    Raises
    ------
    CellError
        The declaration or an equation is not as it must be; the message names the cell, the stage and the line.
    """

    if isinstance(gates, type):
        raise CellError(f'cell {gates.__name__}: gates must be at least one, got none; write @cell(gates="names")')

    def declare(kind):
        if not isinstance(kind, type):
            raise CellError(f"@cell: a cell must be a class, got {kind!r}")
        if not isinstance(smooth, bool):
            raise CellError(f"cell {kind.__name__}: smooth must be a bool, got {smooth!r}")
        stages = [value for value in vars(kind).values() if isinstance(value, Stage)]
        by_hand = any(stage.is_gradient for stage in stages)
        handed_on = slots if by_hand else _handed_on(kind.__name__, slots, gates, states, stages)
        given = gates, states, vectors, scalars, inputs, noises
        kind.declaration = Declaration(kind, *given, handed_on, stages, smooth)
        check(kind, by_hand)
        if not by_hand:
            kind.declaration = _derived(kind)
            check_gradient(kind.declaration)
        with suppress(Unresolved):  # the text of now is kept, if there is one: its file may be edited while this runs
            kind.declaration.shipped or source_of(kind)
        return told_apart(kind)  # or what is kept of a cell without parameters would be taken for another one's

    return declare


def derived(kind):
    """What a cell says of itself with the gradient that follows from its forward equations, if it is written by hand
    too. Raises CellError."""
    declaration = kind.declaration
    if declaration.rule is not None:
        return declaration
    stages = [stage for stage in declaration.equations if not stage.is_gradient]
    vectors = [vector for vector in declaration.vectors if vector not in declaration.scalars]
    handed_on = _handed_on(declaration.name, "", declaration.gates, declaration.states, stages)
    twin = type(declaration.name, (kind,), {"__slots__": ()})
    given = declaration.gates, declaration.states, vectors, declaration.scalars, declaration.inputs, declaration.noises
    twin.declaration = Declaration(kind, *given, handed_on, stages, declaration.smooth)
    return _derived(twin)


def _derived(kind):
    """The declaration of a cell, of which only the forward stages are there, with those of its gradient."""
    declaration, found = kind.declaration, written(Derivation(kind), Stage)
    vectors = [vector for vector in declaration.vectors if vector not in declaration.scalars]
    given = declaration.gates, declaration.states, vectors, declaration.scalars, declaration.inputs, declaration.noises
    whole = Declaration(kind, *given, found.slots, found.stages, declaration.smooth, found.means, found.phase_of)
    whole.equations, whole.keeps, whole.rule = declaration.equations, found.keeps, RULE
    return whole


def derived_source(kind):
    """The loops that a cell's forward equations are cut into, with the gradient that is derived from them, as Python.

    Parameters
    ----------
    kind : cell
        The class, or an instance.

    Returns
    -------
    str
        Of each loop what it writes and its function, forward, then back; and what the gradient finds in which slot. To
        be read by people: it is what kernels run, but for cells whose gradient is written by hand.

    Raises
    ------
    TypeError
        `kind` is no cell.
    CellError
        The gradient of one that is written by hand cannot be derived from its forward stages.

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
    back = [stage for stage in reversed(declaration.stages) if stage.is_gradient]
    texts = []
    for stage in (*forward_stages, *back):
        decorator = "gradient" if stage.is_gradient else "forward"
        texts.append(f'@{decorator}("{" ".join(stage.writes)}")\n{text_of(stage.function).rstrip()}')
    kept = ", ".join(f"{slot} holds {text}" for slot, text in declaration.keeps.items())
    return f"# {kept}\n" + "\n\n".join(texts)


def _handed_on(cell, slots, gates, states, stages):
    """The names beside those that are declared that stages write: what they hand on to later ones."""
    if slots:
        expected = "be declared with gradients written by hand alone"
        raise CellError(f"cell {cell}: slots must {expected}, got {slots!r}; what a stage writes later ones may read")
    gates = named(cell, Gate, "gates", gates)
    known = {"h", *words(f"cell {cell}: states", states)}
    known |= {name for gate in gates for name in (gate.name, gate.apart, gate.multiplies)}
    return list(dict.fromkeys(name for stage in stages for name in stage.writes if name not in known))


__all__ = [
    "CellError", "Declaration", "Gate", "Input", "Noise", "Phase", "Product", "Scalar", "Stage", "Vector", "cell",
    "forward", "gradient",
]  # fmt: skip
