"""What follows from what a cell declares: its slots, the products of R and the phases of a step."""

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from .rules import CellError
from .source import is_shipped

MEAN_BLOCK = 32
"""Units whose terms of a mean are added together, whatever the machine and the number of threads."""


def mean_blocks(units):
    """Blocks of so many units."""
    return -(-units // MEAN_BLOCK)


class Gate(NamedTuple):
    """A gate, whose rows of W and R stand at its place among the others'.

    R multiplies what `multiplies` names: h before the step, a state before it ("c_prev") or after it ("c"), or what a
    stage writes under another name. Its product is added to the gate; `apart` is the name of R's product where it is
    kept apart instead. With None for `multiplies` the gate has no rows of R, only of W; without `input` none of W.
    With several `heads` R is block-diagonal: the units come in so many heads of neighbours, and each sees its own.
    """

    name: str
    multiplies: str | None = "h"
    apart: str | None = None
    input: bool = True
    heads: int = 1


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


class Input(NamedTuple):
    """A side input: a number of each unit at each step that the call gives, an attention or a time gap say."""

    name: str


class Noise(NamedTuple):
    """A number that training draws for each unit of each sequence, for all its steps or with `per_step` for each.

    `rate` names the cell's parameter, a float from 0 to 1, that is the probability. The number is a dropout factor, 0
    with this probability and else 1/(1 - rate), or a `choice`, 1 with this probability and else 0. In inference it is
    its expectation: 1, or the rate.
    """

    name: str
    rate: str
    per_step: bool = False
    choice: bool = False


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
    begin from the biases. With several heads the units of each of them see those of `source` alone that are theirs.
    """

    source: str
    slots: range
    apart: range
    heads: int = 1


class Phase(NamedTuple):
    """Products of R, and the stages up to the next ones, which need all of what these wrote: in front of products the
    threads that share out the units meet.

    Backward the phases come in reverse: the stages of the gradient, then the way back through the products.
    """

    products: tuple[Product, ...]
    forward: tuple[Stage, ...]
    gradient: tuple[Stage, ...]


def words(argument, given, *kinds):
    """Those of a text, or of a list as they are: names, and what is of these kinds."""
    words = given.split() if isinstance(given, str) else given
    words = tuple(words) if isinstance(words, Iterable) else (words,)
    for word in words:
        if not isinstance(word, (str, *kinds)):
            listed = " or ".join(["names", *(f"{kind.__name__}s" for kind in kinds)])
            raise CellError(f"{argument} must be names in a text, or a list of {listed}, got {word!r}")
    return words


def named(cell, kind, argument, given):
    """A cell's gates or vectors from their names, or as they are given."""
    found = tuple(kind(one) if isinstance(one, str) else one for one in words(f"cell {cell}: {argument}", given, kind))
    for one in found:
        for field in ("name", "multiplies", "apart"):
            value = getattr(one, field, None)
            if not isinstance(value, str) and (field == "name" or value is not None):
                expected = "a name" if field == "name" else "a name or None"
                raise CellError(f"cell {cell}: {field} of {one!r} must be {expected}, got {type(value).__name__}")
        if not isinstance(getattr(one, "input", True), bool):
            raise CellError(f"cell {cell}: input of {one!r} must be a bool, got {type(one.input).__name__}")
        heads = getattr(one, "heads", 1)
        if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1:
            raise CellError(f"cell {cell}: heads of {one!r} must be an int of at least 1, got {heads!r}")
    return found


def _checked_noises(cell, given):
    """A cell's noises; what they name is looked up by `rules`."""
    noises = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    for noise in noises:
        if not isinstance(noise, Noise):
            raise CellError(f"cell {cell}: noises must be a list of Noise(name, rate), got {noise!r}")
        for field, wanted in (("name", str), ("rate", str), ("per_step", bool), ("choice", bool)):
            value = getattr(noise, field)
            if not isinstance(value, wanted):
                raise CellError(f"cell {cell}: {field} of {noise!r} must be a {wanted.__name__}, got {value!r}")
    return noises


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
    input_gates, recurrent_gates : tuple of Gate
        Those of them that have rows of W, and of R.
    sources : tuple of str
        What R multiplies, as gates say it: "h" first, whether a gate has it or not.
    states : tuple of str
        Beside h.
    vectors : tuple of Vector and Scalar
        In the order of their blocks, the scalars last.
    scalars : tuple of Scalar
        Those of them that are one number.
    inputs : tuple of Input
        Side inputs, in the order in which they stand behind x.
    noises : tuple of Noise
        What training draws.
    slots : tuple of str
        What a row of the gate buffer holds, hidden_size numbers each. The gates come first, and each product writes
        neighbours: the gates that W x is added to, by what R multiplies for them, those of h last; then what R's
        products alone write, those of h first; then all else.
    extra_slots : tuple of str
        The slots of which the gates and their products know nothing.
    stages : tuple of Stage
        What the kernels run: as they are written, or the loops that they are cut into with those of their gradient.
    equations : tuple of Stage
        As they are written: without any of the gradient where that is derived.
    means, gradient_means : tuple of str
        Names under which stages write the terms of a mean over the units of a row, and later phases read it.
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
    heads : int
        Of R.
    carries_hidden : bool
        Whether the gradient has a direct part from h to the h before, beside that through R.
    """

    def __init__(self, kind, gates, states, vectors, scalars, inputs, noises, slots, stages, smooth,
                 means=((), ()), phase_of=None):
        self.name, self.shipped = kind.__name__, is_shipped(kind)
        self.gates = named(self.name, Gate, "gates", gates)
        self.scalars = named(self.name, Scalar, "scalars", scalars)
        self.vectors = (*named(self.name, Vector, "vectors", vectors), *self.scalars)
        self.states = words(f"cell {self.name}: states", states)
        self.inputs = named(self.name, Input, "inputs", inputs)
        self.noises = _checked_noises(self.name, noises)
        self.extra_slots = words(f"cell {self.name}: slots", slots)
        self.stages, self.smooth = tuple(stages), smooth
        self.equations, self.keeps, self.rule = self.stages, {}, None
        self.means, self.gradient_means = means
        self.input_gates = tuple(gate for gate in self.gates if gate.input)
        self.recurrent_gates = tuple(gate for gate in self.gates if gate.multiplies is not None)
        self.sources = tuple(dict.fromkeys(["h", *(gate.multiplies for gate in self.recurrent_gates)]))
        self.heads = max((gate.heads for gate in self.recurrent_gates), default=1)
        self._lay_out()
        self._part(stages, phase_of)
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
        self.slots = (*inputs, *alone["h"], *chain(*(alone[source] for source in others)), *written, *self.extra_slots)
        first = len(inputs)
        end = first + len(alone["h"])
        self._input = Product("x", range(first), range(0))
        of_h = Product("h_prev", range(first - len(added["h"]), end), range(first, end), self.heads)
        self._products_of = {"h": [of_h]}
        for source in others:
            runs = [(added[source], False), (alone[source], True)]
            self._products_of[source] = own = []
            for names, is_alone in runs:
                if names:
                    start = self.slots.index(names[0])
                    slots = range(start, start + len(names))
                    own.append(Product(source, slots, slots if is_alone else range(0), self.heads))

    def _of(self, source, chosen):
        return [gate.name for gate in self.gates if gate.multiplies == source and chosen(gate)]

    def _part(self, stages, given):
        """Put each product into the phase behind the stage that writes what it multiplies, or into the one that is
        given for this, and each stage into that of the last product which it reads."""
        at_start = ["h", *(source for source in self.sources if source.removesuffix("_prev") != source)]
        phase_of = dict(given or dict.fromkeys(at_start, 0))  # of the products of a source
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
        back, last = [], max([now, *phase_of.values()])
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
        before = phase.products[: phase.products.index(product)]
        if any(one.source == product.source for one in before):
            return True
        name, later = f"d{product.source}", self.phases[self.phases.index(phase) :]
        return any(name in stage.writes for one in later for stage in one.gradient)

    def given(self):
        """What stages may read beside gates and states: weights, side inputs and noises."""
        return *self.vectors, *self.inputs, *self.noises

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
