"""What a cell says of itself: its gates, its states, its own weights, and the equations of one unit.

A cell is a NamedTuple class under the decorator `cell`; its fields, annotated bool, int, float or
Activation, are its parameters.
Its stages are functions of numbers, whose parameters are read by their names and whose results are written to the names
that the stage declares:

    i, r, ...       a gate: first its pre-activation, W x + R h + biases, then what a stage wrote
    c_prev, c       a state before and after the step
    h_prev, h       the hidden state before and after the step (h before a projection, where there is one)
    p, ...          a vector: a weight of the unit's own; stages read it, and write its gradient dp alone; a scalar is
                    one that all units have in common, and dp what a unit adds to its gradient
    di, dc, dh ...  the gradient of the loss by it, in the stages of the gradient; in the end that of a gate is by its
                    pre-activation. dc and dc_prev are one number: it comes from the step after and goes to that before

A stage is one loop over the units. One that waits for a slow function (tanh, sigmoid) of another one's result begins a
new stage: in one loop few units at a time are on their way through a core, and the time of a unit is that of the whole
chain (GRU 0.78, LSTM 0.93, its gradient 0.78 of the time; Zen 3). The stages of the gradient run in reverse order, so
that each can stand behind what it is the gradient of. Nothing here knows of rows, threads or memory.
"""

from collections.abc import Iterable
from contextlib import suppress
from inspect import signature
from itertools import chain
from types import FunctionType
from typing import NamedTuple

from .activations import told_apart
from .derivation import RULE, Derivation
from .rules import CellError, check, check_gradient, place
from .source import is_shipped, source_of
from .uses import Unresolved
from .writing import written


class Gate(NamedTuple):
    """A gate, whose rows of W and R stand at its place among the others'.

    R multiplies what `multiplies` names: h before the step, a state before it ("c_prev") or after it ("c"), or what a
    stage writes under another name. Its product is added to the gate; `apart` is the name of R's product where it is
    kept apart instead. With None for `multiplies` the gate has no rows of R, only of W; without `input` none of W.
    """

    name: str
    multiplies: str | None = "h"
    apart: str | None = None
    input: bool = True


class Vector(NamedTuple):
    """A weight of each unit's own, drawn uniform from low to high; None for both is as the other weights are drawn."""

    name: str
    low: float | None = None
    high: float | None = None


class Scalar(NamedTuple):
    """A weight that all units of a layer have in common, drawn as that of a `Vector` is."""

    name: str
    low: float | None = None
    high: float | None = None


class Stage(NamedTuple):
    """One loop over the units; the number of its phase where that is known before all stages are."""

    function: object
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    is_gradient: bool
    phase: int | None = None


class Product(NamedTuple):
    """A product of weights with what stands under a name: x, h_prev, a state, or what a stage wrote.

    It is added to neighbouring `slots` of the gate buffer. Those of them that are kept `apart` hold nothing else: they
    begin from the biases.
    """

    source: str
    slots: range
    apart: range


class Phase(NamedTuple):
    """Products of R, and the stages up to the next ones, which need all of what these wrote: in front of products the
    threads that share out the units meet.

    Backward the phases come in reverse: the stages of the gradient, then the way back through the products.
    """

    products: tuple[Product, ...]
    forward: tuple[Stage, ...]
    gradient: tuple[Stage, ...]


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
    written = _words(f"@{decorator}: writes", writes)

    def declare(function):
        if not isinstance(function, FunctionType):
            raise CellError(f"@{decorator}: a stage must be a function, got {function!r}")
        _, *reads = signature(function).parameters or ("self",)
        return Stage(function, tuple(reads), written, is_gradient)

    return declare


def cell(gates, states="", vectors="", slots="", smooth=True, scalars=""):
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
        weights = gates, states, vectors, scalars
        kind.declaration = Declaration(kind, *weights, handed_on, stages, smooth)
        check(kind, by_hand)
        if not by_hand:
            found = written(Derivation(kind), Stage)
            kind.declaration = said = Declaration(kind, *weights, found.slots, found.stages, smooth)
            said.equations, said.keeps, said.rule = tuple(stages), found.keeps, RULE
            check_gradient(said)
        with suppress(Unresolved):  # the text of now is kept, if there is one: its file may be edited while this runs
            kind.declaration.shipped or source_of(kind)
        return told_apart(kind)  # or what is kept of a cell without parameters would be taken for another one's

    return declare


def _handed_on(cell, slots, gates, states, stages):
    """The names beside those that are declared that stages write: what they hand on to later ones."""
    if slots:
        expected = "be declared with gradients written by hand alone"
        raise CellError(f"cell {cell}: slots must {expected}, got {slots!r}; what a stage writes later ones may read")
    gates = _named(cell, Gate, "gates", gates)
    known = {"h", *_words(f"cell {cell}: states", states)}
    known |= {name for gate in gates for name in (gate.name, gate.apart, gate.multiplies)}
    return list(dict.fromkeys(name for stage in stages for name in stage.writes if name not in known))


def _words(argument, given, *kinds):
    """Those of a text, or of a list as they are: names, and what is of these kinds."""
    words = given.split() if isinstance(given, str) else given
    words = tuple(words) if isinstance(words, Iterable) else (words,)
    for word in words:
        if not isinstance(word, (str, *kinds)):
            listed = " or ".join(["names", *(f"{kind.__name__}s" for kind in kinds)])
            raise CellError(f"{argument} must be names in a text, or a list of {listed}, got {word!r}")
    return words


def _named(cell, kind, argument, given):
    """A cell's gates or vectors from their names, or as they are given."""
    found = tuple(kind(one) if isinstance(one, str) else one for one in _words(f"cell {cell}: {argument}", given, kind))
    for one in found:
        for field in ("name", "multiplies", "apart"):
            value = getattr(one, field, None)
            if not isinstance(value, str) and (field == "name" or value is not None):
                expected = "a name" if field == "name" else "a name or None"
                raise CellError(f"cell {cell}: {field} of {one!r} must be {expected}, got {type(value).__name__}")
        if not isinstance(getattr(one, "input", True), bool):
            raise CellError(f"cell {cell}: input of {one!r} must be a bool, got {type(one.input).__name__}")
    return found


class Declaration:
    """What follows from a cell's gates, states, vectors and stages.

    Attributes
    ----------
    name : str
        Of the cell.
    shipped : bool
        Whether the cell is one of this package, whose source is among those of the kernels.
    gates : tuple of Gate
        In the order of their rows in every weight block.
    states : tuple of str
        Beside h.
    vectors : tuple of Vector and Scalar
        In the order of their blocks, the scalars last.
    scalars : tuple of Scalar
        Those of them that are one number.
    slots : tuple of str
        What a row of the gate buffer holds, hidden_size numbers each. The gates come first, and each product writes
        neighbours: the gates that W x is added to, by what R multiplies for them, those of h last; then what R's
        products alone write, those of h first; then all else.
    kept : tuple of str
        The slots of which the gates and their products know nothing.
    stages : tuple of Stage
        What the kernels run: as they are written, or the loops that they are cut into with those of their gradient.
    equations : tuple of Stage
        As they are written: without any of the gradient where that is derived.
    keeps : dict of str to str
        Of a gradient that is derived: the slots that it reads, and what they hold then.
    rule : int or None
        Version of the rules by which the gradient is derived; None of one that is written by hand.
    smooth : bool
        Whether it has a derivative everywhere.
    products : tuple of Product
        That of W with x, then those of the phases, in their order.
    phases : tuple of Phase
        Of a step, in the order in which they run forward. The first product of the first is that of h, of no slots
        where there is none.
    carries_hidden : bool
        Whether the gradient has a direct part from h to the h before, beside that through R.
    """

    def __init__(self, kind, gates, states, vectors, scalars, slots, stages, smooth):
        self.name, self.shipped = kind.__name__, is_shipped(kind)
        self.gates = _named(self.name, Gate, "gates", gates)
        self.scalars = _named(self.name, Scalar, "scalars", scalars)
        self.vectors = (*_named(self.name, Vector, "vectors", vectors), *self.scalars)
        self.states = _words(f"cell {self.name}: states", states)
        self.kept = _words(f"cell {self.name}: slots", slots)
        self.stages, self.smooth = tuple(stages), smooth
        self.equations, self.keeps, self.rule = self.stages, {}, None
        self.input_gates = tuple(gate for gate in self.gates if gate.input)
        self.recurrent_gates = tuple(gate for gate in self.gates if gate.multiplies is not None)
        self.sources = tuple(dict.fromkeys(["h", *(gate.multiplies for gate in self.recurrent_gates)]))
        self._lay_out()
        self._part(stages)
        self.carries_hidden = self.adds_to_source(self.products[1])

    def _lay_out(self):
        """Find the slots, and of each source the products."""
        _, *others = self.sources
        added = {source: self._of(source, lambda gate: gate.input and gate.apart is None) for source in self.sources}
        alone = {source: self._of(source, lambda gate: gate.apart is not None) for source in self.sources}
        apart = [gate.name for gate in self.gates if gate.apart is not None]
        alone = {source: [gate.apart for gate in self.gates if gate.name in names] for source, names in alone.items()}
        for source in self.sources:
            alone[source] += self._of(source, lambda gate: not gate.input)
        input_only = [gate.name for gate in self.gates if gate.multiplies is None]
        inputs = [*chain(*(added[source] for source in others)), *apart, *input_only, *added["h"]]
        written = [source for source in others if source.removesuffix("_prev") not in self.states]
        self.slots = (*inputs, *alone["h"], *chain(*(alone[source] for source in others)), *written, *self.kept)
        first = len(inputs)
        end = first + len(alone["h"])
        self._input = Product("x", range(first), range(0))
        self._products_of = {"h": [Product("h_prev", range(first - len(added["h"]), end), range(first, end))]}
        for source in others:
            runs = [(added[source], False), (alone[source], True)]
            self._products_of[source] = own = []
            for names, is_alone in runs:
                if names:
                    start = self.slots.index(names[0])
                    slots = range(start, start + len(names))
                    own.append(Product(source, slots, slots if is_alone else range(0)))

    def _of(self, source, chosen):
        return [gate.name for gate in self.gates if gate.multiplies == source and chosen(gate)]

    def _part(self, stages):
        """Put each product into the phase behind the stage that writes what it multiplies, and each stage into that of
        the last product which it reads."""
        at_start = ["h", *(source for source in self.sources if source.removesuffix("_prev") != source)]
        phase_of = dict.fromkeys(at_start, 0)  # of the products of a source
        now, steps = 0, []
        for stage in (one for one in stages if not one.is_gradient):
            awaited = [phase_of[source] for source in phase_of if set(self._written_by(source)) & set(stage.reads)]
            now = max([now, *awaited]) if stage.phase is None else stage.phase
            steps.append((now, stage))
            for name in stage.writes:
                if name in self.sources:
                    phase_of.setdefault(name, now + 1)
        for source in self.sources:
            phase_of.setdefault(source, now + 1)  # never written: `rules` refuses it
        back, last = [], max(phase_of.values())
        now = last
        for stage in (one for one in reversed(stages) if one.is_gradient):
            awaited = [phase_of[source] - 1 for source in self.sources if f"d{source}" in stage.reads and
                       source not in ("h", *self.states)]
            now = min([now, *awaited]) if stage.phase is None else stage.phase
            back.append((now, stage))
        self.phases = tuple(
            Phase(
                tuple(one for source in self.sources if phase_of[source] == n for one in self._products_of[source]),
                tuple(stage for phase, stage in steps if phase == n),
                tuple(stage for phase, stage in back if phase == n),
            ) for n in range(last + 1)
        )  # fmt: skip
        self.products = (self._input, *chain(*(phase.products for phase in self.phases)))

    def _written_by(self, source):
        """Names of the slots that R's products with a source write."""
        return [name for product in self._products_of[source] for name in self.names_of(product)]

    def adds_to_source(self, product):
        """Whether the gradient of what a product of R multiplies has a part already where that through R comes: one of
        another product, of stages that run before, or of a state that others have."""
        if product.source.removesuffix("_prev") in self.states:
            return True
        phase = next(phase for phase in self.phases if product in phase.products)
        if any(one.source == product.source for one in phase.products[: phase.products.index(product)]):
            return True
        name, later = f"d{product.source}", self.phases[self.phases.index(phase) :]
        return any(name in stage.writes for one in later for stage in one.gradient)

    def names_of(self, product):
        """Names of the slots that a product writes."""
        return self.slots[product.slots.start : product.slots.stop]

    def rows_of(self, slots, gates=None):
        """Numbers of the gates, all or those given, whose rows of a weight matrix belong to these slots."""
        gates = self.gates if gates is None else gates
        own = {gate.apart or gate.name: number for number, gate in enumerate(gates)}
        own = own | {gate.name: number for number, gate in enumerate(gates)}
        return [own[self.slots[slot]] for slot in slots]

    def reads_hidden(self):
        """Whether an equation has h of the step before in it, unit by unit."""
        return self.carries_hidden or any("h_prev" in stage.reads for stage in self.stages)


__all__ = [
    "CellError", "Declaration", "Gate", "Phase", "Product", "Scalar", "Stage", "Vector", "cell", "forward", "gradient",
]  # fmt: skip
