"""Derives the slots, the products with R and the phases of a step from what a cell declares."""

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from .rules import CellError
from .source import is_shipped

MEAN_BLOCK = 32
"""Units per partial sum of a mean: fixed, so that a mean is bit-identical on any CPU and number of threads."""


def mean_blocks(units):
    """Return the number of blocks for so many units."""
    return -(-units // MEAN_BLOCK)


class Gate(NamedTuple):
    """A gate. The order of gates is that of their rows in W and R.

    `multiplies` names what R multiplies: "h" (before the step), a state before ("c_prev") or after the step ("c"), or a
    name that a stage writes. None means that the gate has no rows of R, `input=False` that it has no rows of W. R's
    product is added to the gate; `apart` names it if it is kept separate instead, as GRU's Rn h. With several `heads`
    R is block-diagonal: the units are split into contiguous heads, and each head reads only its own units.
    """

    name: str
    multiplies: str | None = "h"
    apart: str | None = None
    input: bool = True
    heads: int = 1


class Vector(NamedTuple):
    """A weight per unit, initialised uniformly in [low, high]; None for both: like the other weights."""

    name: str
    low: float | None = None
    high: float | None = None


class Scalar(NamedTuple):
    """A weight that all units of a layer share, initialised like a `Vector`."""

    name: str
    low: float | None = None
    high: float | None = None


class Input(NamedTuple):
    """A side input: a number for each unit and step that the call gives, for example an attention or a time gap."""

    name: str


class Noise(NamedTuple):
    """A random number for each unit of each sequence: training draws it once, or with `per_step` anew at each step.

    `rate` names the cell's parameter that is the probability, a float from 0 to 1. The number is a dropout factor: 0
    with this probability, else 1/(1 - rate). With `choice` it is 1 with this probability, else 0. Inference uses the
    expectation: 1, or the rate.
    """

    name: str
    rate: str
    per_step: bool = False
    choice: bool = False


class Stage(NamedTuple):
    """One loop over the units. `phase` is the number of its phase for generated stages, None for written ones."""

    function: object
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    is_gradient: bool
    phase: int | None = None


class Product(NamedTuple):
    """A product of a weight matrix and an operand `source`: the name of h_prev, a state, or what a stage wrote; None is
    the input of the layer. A name would not do: a cell may call a value x.

    It is added to contiguous `slots` of the gate buffer. Those in `apart` hold only this product, and start from the
    biases. With several heads, the units of a head read only the units of `source` in the same head.
    """

    source: str | None
    slots: range
    apart: range
    heads: int = 1


class Phase(NamedTuple):
    """Products with R, then the stages up to the next products or to one that reads a mean. Both need all units of a
    row, so threads that split the units synchronise before each phase.

    Backward runs the phases in reverse: the stages of the gradient, then backward through the products.
    """

    products: tuple[Product, ...]
    forward: tuple[Stage, ...]
    gradient: tuple[Stage, ...]


def split_names(argument, given, *kinds):
    """Split a text into names, or return the elements of a list: names, or instances of `kinds`."""
    names = given.split() if isinstance(given, str) else given
    names = tuple(names) if isinstance(names, Iterable) else (names,)
    for name in names:
        if not isinstance(name, (str, *kinds)):
            listed = " or ".join(["names", *(f"{kind.__name__}s" for kind in kinds)])
            raise CellError(f"{argument} must be a text of names, or a list of {listed}, got {name!r}")
    return names


def as_declarations(cell, kind, argument, given):
    """Return a cell's gates, vectors, scalars or side inputs; names become instances of `kind`."""
    names = split_names(f"cell {cell}: {argument}", given, kind)
    found = tuple(kind(one) if isinstance(one, str) else one for one in names)
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
    """Return a cell's noises after type checks; `rules` checks the names of their rates."""
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
    """All that the engine knows of a cell.

    Attributes
    ----------
    name : str
        Name of the cell.
    shipped : bool
        Whether the cell is built in, so that the digest of kernel sources covers its source.
    gates : tuple of Gate
        In the order of their rows in every weight block.
    input_gates, recurrent_gates : tuple of Gate
        The gates with rows of W, and those with rows of R.
    sources : tuple of str
        The operands of R, as gates name them; the first is always "h", even if no gate uses it.
    states : tuple of str
        The states other than h.
    vectors : tuple of Vector and Scalar
        In the order of their blocks, the scalars last.
    scalars : tuple of Scalar
        The scalars among `vectors`.
    inputs : tuple of Input
        Side inputs, in the order of their columns after x.
    noises : tuple of Noise
        Random numbers that training draws.
    slots : tuple of str
        Names of the slots of a row of the gate buffer, hidden_size numbers each. Each product writes contiguous slots.
        First come the gates to which W x is added, grouped by the operand of R, those of h last. Slots that only
        products with R write follow, those of h first. Then come all others.
    extra_slots : tuple of str
        Slots that are neither gates nor written by products.
    stages : tuple of Stage
        The stages that kernels run: as written, or the generated loops and those of their gradient.
    equations : tuple of Stage
        The stages as written, without gradient stages if the gradient is derived.
    as_written : Declaration or None
        For a derived gradient: the declaration whose stages are the equations alone.
    means, gradient_means : tuple of str
        Names of means over the units of a row: stages write their terms, later phases read the mean.
    keeps : dict of str to str
        For a derived gradient: slot that it reads -> saved expression.
    derivation_version : int or None
        Version of the rules that derived the gradient; None if it is written by hand.
    smooth : bool
        Whether the cell is differentiable everywhere.
    products : tuple of Product
        The product of W with x, then those of the phases in order.
    phases : tuple of Phase
        The phases of a step, in forward order. The first product of phase 0 is R h; it has no slots if no gate uses h.
    heads : int
        Number of heads of R.
    carries_hidden : bool
        Whether dh_prev has a direct term in addition to that through R.
    """

    def __init__(
        self,
        kind,
        gates,
        states,
        vectors,
        scalars,
        inputs,
        noises,
        slots,
        stages,
        smooth,
        means=((), ()),
        phase_of=None,
    ):
        self.name, self.shipped = kind.__name__, is_shipped(kind)
        self.gates = as_declarations(self.name, Gate, "gates", gates)
        self.scalars = as_declarations(self.name, Scalar, "scalars", scalars)
        self.vectors = (*as_declarations(self.name, Vector, "vectors", vectors), *self.scalars)
        self.states = split_names(f"cell {self.name}: states", states)
        self.inputs = as_declarations(self.name, Input, "inputs", inputs)
        self.noises = _checked_noises(self.name, noises)
        self.extra_slots = split_names(f"cell {self.name}: slots", slots)
        self.stages, self.smooth = tuple(stages), smooth
        self.equations, self.keeps, self.derivation_version, self.as_written = self.stages, {}, None, None
        self.means, self.gradient_means = means
        self.input_gates = tuple(gate for gate in self.gates if gate.input)
        self.recurrent_gates = tuple(gate for gate in self.gates if gate.multiplies is not None)
        self.sources = tuple(dict.fromkeys(["h", *(gate.multiplies for gate in self.recurrent_gates)]))
        self.heads = max((gate.heads for gate in self.recurrent_gates), default=1)
        self._assign_slots()
        self._assign_phases(stages, phase_of)
        self.carries_hidden = self.adds_to_source(self.products[1])

    def _assign_slots(self):
        """Assign the slots, and make the products of each source."""
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
        self._input = Product(None, range(first), range(0))
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

    def _assign_phases(self, stages, given):
        """Assign phases. A product is in the phase after the stage that writes its operand, or in the `given` one; a
        stage is in the phase of the last product that it reads."""
        at_start = ["h", *(source for source in self.sources if source.removesuffix("_prev") != source)]
        phase_of = dict(given or dict.fromkeys(at_start, 0))  # source -> phase of its products
        now, steps = 0, []
        for stage in (one for one in stages if not one.is_gradient):
            awaited = [phase_of[source] for source in phase_of if set(self._written_by(source)) & set(stage.reads)]
            now = max([now, *awaited]) if stage.phase is None else stage.phase
            steps.append((now, stage))
            for name in stage.writes:
                if name in self.sources:
                    phase_of.setdefault(name, now + 1)
        for source in self.sources:
            phase_of.setdefault(source, now + 1)  # never written: an error in `rules`
        backward, last = [], max([now, *phase_of.values()])
        now = last
        for stage in (one for one in reversed(stages) if one.is_gradient):
            awaited = [
                phase_of[source] - 1
                for source in self.sources
                if f"d{source}" in stage.reads and source not in ("h", *self.states)
            ]
            now = min([now, *awaited]) if stage.phase is None else stage.phase
            backward.append((now, stage))
        self.phases = tuple(
            Phase(
                tuple(one for source in self.sources if phase_of[source] == n for one in self._products_of[source]),
                tuple(stage for phase, stage in steps if phase == n),
                tuple(stage for phase, stage in backward if phase == n),
            ) for n in range(last + 1)
        )  # fmt: skip
        self.products = (self._input, *chain(*(phase.products for phase in self.phases)))

    def _written_by(self, source):
        """Return the names of the slots that products of R with a source write."""
        return [name for product in self._products_of[source] for name in self.names_of(product)]

    def adds_to_source(self, product):
        """Whether backward through a product of R adds to the gradient of its operand, instead of writing it: other
        products or stages contribute earlier, or the operand is a state."""
        if product.source.removesuffix("_prev") in self.states:
            return True
        phase = next(phase for phase in self.phases if product in phase.products)
        before = phase.products[: phase.products.index(product)]
        if any(one.source == product.source for one in before):
            return True
        name, later = f"d{product.source}", self.phases[self.phases.index(phase) :]
        return any(name in stage.writes for one in later for stage in one.gradient)

    def given(self):
        """Return what stages may read other than gates and states: weights, side inputs and noises."""
        return *self.vectors, *self.inputs, *self.noises

    def names_of(self, product):
        """Return the names of the slots that a product writes."""
        return self.slots[product.slots.start : product.slots.stop]

    def rows_of(self, slots, gates=None):
        """Return the numbers of the gates (all, or those given) whose rows of a weight matrix belong to these slots."""
        gates = self.gates if gates is None else gates
        own = {gate.apart or gate.name: number for number, gate in enumerate(gates)}
        own = own | {gate.name: number for number, gate in enumerate(gates)}
        return [own[self.slots[slot]] for slot in slots]

    def reads_hidden(self):
        """Whether an equation uses h_prev elementwise."""
        return self.carries_hidden or any("h_prev" in stage.reads for stage in self.stages)
