"""What a cell says of itself: its gates, its states, and the equations of one unit.

A cell is a NamedTuple class under the decorator `cell`; its fields are its parameters. Its stages are functions of
numbers, whose parameters are read by their names and whose results are written to the names that the stage declares:

    i, r, ...       a gate: first its pre-activation, W x + R h + biases, then what a stage wrote
    c_prev, c       a state before and after the step
    h_prev, h       the hidden state before and after the step (h before a projection, where there is one)
    di, dc, dh ...  the gradient of the loss by it, in the stages of the gradient; in the end that of a gate is by its
                    pre-activation. dc and dc_prev are one number: it comes from the step after and goes to that before

A stage is one loop over the units. One that waits for a slow function (tanh, sigmoid) of another one's result begins a
new stage: in one loop few units at a time are on their way through a core, and the time of a unit is that of the whole
chain (GRU 0.78, LSTM 0.93, its gradient 0.78 of the time; Zen 3). The stages of the gradient run in reverse order, so
that each can stand behind what it is the gradient of. Nothing here knows of rows, threads or memory.
"""

from inspect import signature
from typing import NamedTuple


class Gate(NamedTuple):
    """A gate, whose rows of W and R stand at its place among the others'.

    R multiplies h, or what a stage writes under the name `multiplies`, and is added to the gate; `apart` is the name of
    R's product where it is kept apart instead.
    """

    name: str
    multiplies: str = "h"
    apart: str | None = None


class Stage(NamedTuple):
    """One loop over the units."""

    function: object
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    is_gradient: bool


def forward(writes):
    """Make the decorated function a stage that writes its results to these names."""
    return _stage(writes, is_gradient=False)


def gradient(writes):
    """Make the decorated function a stage of the gradient."""
    return _stage(writes, is_gradient=True)


def _stage(writes, is_gradient):
    def declare(function):
        _, *reads = signature(function).parameters
        return Stage(function, tuple(reads), tuple(writes.split()), is_gradient)

    return declare


def cell(gates, states="", smooth=True):
    """Make the decorated NamedTuple class a cell, and leave what it says in its attribute `declaration`."""

    def declare(kind):
        stages = [value for value in vars(kind).values() if isinstance(value, Stage)]
        kind.declaration = Declaration(gates, states.split(), stages, smooth)
        return kind

    return declare


class Declaration:
    """What follows from a cell's gates, states and stages.

    Attributes
    ----------
    gates : tuple of Gate
        In the order of their rows in every weight block.
    states : tuple of str
        Beside h.
    slots : tuple of str
        What a row of the gate buffer holds, hidden_size numbers each. The gates come first, and R h of one step writes
        neighbours: gates that it is not added to, gates that it is, products that are kept apart; then all else.
    smooth : bool
        Whether it has a derivative everywhere.
    forward, gradient : tuple of two tuples of Stage
        In the order in which they run, before and after the product of R with what a stage wrote; all in the first
        without one.
    """

    def __init__(self, gates, states, stages, smooth):
        self.gates = tuple(Gate(name) for name in gates.split()) if isinstance(gates, str) else tuple(gates)
        self.states, self.smooth = tuple(states), smooth
        added = [gate.name for gate in self.gates if gate.multiplies == "h" and gate.apart is None]
        apart = [gate.apart for gate in self.gates if gate.apart is not None]
        others = [gate.name for gate in self.gates if gate.name not in added]
        multiplied = [gate.multiplies for gate in self.gates if gate.multiplies != "h"]
        self.slots = (*others, *added, *apart, *dict.fromkeys(multiplied))
        self.multiplied = multiplied[0] if multiplied else None
        self.input_slots = range(len(self.gates))
        self.recurrent_slots = range(len(others), len(others) + len(added) + len(apart))
        self.second_slots = range(len(multiplied))
        self.apart_slots = range(len(self.gates), len(self.gates) + len(apart))
        steps = [stage for stage in stages if not stage.is_gradient]
        back = [stage for stage in reversed(stages) if stage.is_gradient]
        self.forward = _cut(steps, [gate.name for gate in self.gates if gate.multiplies != "h"])
        self.gradient = _cut(back, [f"d{self.multiplied}"])
        self.carries_hidden = any("dh_prev" in stage.writes for stage in back)

    def rows_of(self, slots):
        """Numbers of the gates whose rows of a weight matrix belong to these slots."""
        own = {gate.apart or gate.name: number for number, gate in enumerate(self.gates)}
        own = own | {gate.name: number for number, gate in enumerate(self.gates)}
        return [own[self.slots[slot]] for slot in slots]


def _cut(stages, awaited):
    """The stages before and from the first one that reads one of the names."""
    first = next((i for i, stage in enumerate(stages) if set(awaited) & set(stage.reads)), len(stages))
    return tuple(stages[:first]), tuple(stages[first:])
