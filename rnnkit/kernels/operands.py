"""What a kernel of the time loop works with, each bundle in one place: arrays by the names of what they hold.

A new operand of the stages is one field of `Operands` (or `Gradients`), and a name in `stages.places`.
"""

from typing import NamedTuple

import numpy as np

from .machine.matrix import CallMatrix, Matrix


class Sizes(NamedTuple):
    """Sizes of one layer: hidden_size H, output_size P (H without a projection), input_size of its input product."""

    hidden: int
    output: int
    input: int


class Operands(NamedTuple):
    """What the stages and products of a step read and write.

    A position is a valid step (t, n) of a pass; positions are counted step by step. The gate buffer has a row for each
    position. For all other arrays the row lists say which row belongs to a position.
    """

    gates: Matrix
    hidden_prev: Matrix
    hidden: Matrix
    states_prev: Matrix
    states: Matrix
    units: Matrix | None = None  # h before a projection, without one `hidden`: set by the kernel
    vectors: Matrix | None = None  # one row for all positions: set by the kernel
    inputs: CallMatrix | Matrix | None = None  # a cell's side inputs, behind x in its rows; bound by the kernel
    noises: Matrix | None = None  # of a sequence; None where nothing is drawn: stages read what is expected of them
    step_noises: Matrix | None = None  # of each of its steps


class Gradients(NamedTuple):
    """What flows back through a step, by what it is the gradient of."""

    y: Matrix
    x: Matrix
    gates: Matrix  # behind those in a row stand the sums that means are made of, and that of the projection's sum
    units: Matrix
    hidden: Matrix
    states: Matrix
    cuts: np.ndarray | None = None  # of each position 1 where the next step starts anew; empty where none does
    reset_hidden: Matrix | None = None  # of what states are reset to; without data for zeros
    reset_states: Matrix | None = None
    inputs: Matrix | None = None  # of the pseudo-layer's own
    vectors: Matrix | None = None  # of each sequence those of a chunk of steps, added up


class Facts(NamedTuple):
    """What all passes of a layer have in common."""

    sizes: Sizes
    products: tuple  # `products.PackedProduct`s
    places: np.ndarray  # of their weights in the flat ones
    offsets: np.ndarray  # in the packed ones


class LayerPass(NamedTuple):
    """One direction of one layer, forward. Step t of a call has the positions starts[t]:starts[t + 1]."""

    reverse: bool
    facts: Facts
    starts: np.ndarray
    x: CallMatrix
    operands: Operands  # the gates counted from the first position whose gates are kept


class Ends(NamedTuple):
    """Where the states of all sequences stand in a layer pass before the first step and after the last."""

    index: int  # of the pseudo-layer
    hidden_initial: Matrix
    hidden_final: Matrix
    states_initial: Matrix
    states_final: Matrix


class LayerPassBack(NamedTuple):
    """The same backward: what it was forward, and what is computed of it."""

    forward: LayerPass
    gradients: Gradients  # y, x and those of states each a CallMatrix; the gates counted from the first of a chunk
    buffer: np.ndarray
    offsets: np.ndarray  # of what the buffer has room for


class Given(NamedTuple):
    """What a forward call is given, flat: the input, the weights (which may be empty where they are packed already),
    the initial states of all pseudo-layers (empty for zeros), and where their final ones go (empty without any)."""

    x: np.ndarray
    w: np.ndarray
    hx: np.ndarray
    cx: np.ndarray
    hy: np.ndarray
    cy: np.ndarray


class CallPosition(NamedTuple):
    """Which of the calls for some steps each this is."""

    sums_biases: bool  # the first, where the weights are read where they are
    is_first: bool
    is_last: bool


class Arrays(NamedTuple):
    """What a backward call is given, read as if flat: the weights, the input, and the gradients of the output (empty
    for zeros), the input (empty if not wanted), the states (of those beside h any array where there are none), the
    weights (empty if not wanted), and the initial states that steps start anew from (empty where none does)."""

    w: np.ndarray
    x: np.ndarray
    dy: np.ndarray
    dx: np.ndarray
    dhx: np.ndarray
    dcx: np.ndarray
    dw: np.ndarray
    dhx_reset: np.ndarray
    dcx_reset: np.ndarray
    dw_is_new: bool  # not yet written: the first rows of the call do, others are added
    wants_dhx: bool  # else dhx is undefined after the call
    goes_back: bool  # through the steps; else the gates' gradients are there, and dw alone is wanted


class Schedule(NamedTuple):
    """How a call is worked on: decided before it by the planner, from the sizes alone."""

    bounds: np.ndarray  # where to cut the rows of every step, for as many teams as have rows of their own; else empty
    panel_grain: int  # panels that a thread takes at a time, 0 for its share
    num_passes: int  # layer passes of the call
    split: bool  # whether each of two has a buffer of its own, and half of the team, if its size is even
    pipelined: bool  # whether the second reads what the first writes (backward: the gradient that it writes)
    lag: int  # steps after which the first lets the second go on, where they run at once
    chunk: int  # steps whose input products (backward: gates' gradients) are there at a time
    keeps_gates: bool  # of all steps; else those of a chunk overwrite the ones before
    threads: int  # most threads that it pays to have


class Step(NamedTuple):
    """What a phase of a step works with."""

    sizes: Sizes
    weights: tuple  # `products.LayerWeights`; backward a `weight_gradient.Term` for each of the layer's products
    operands: Operands
    gradients: Gradients  # forward None
    zeros: np.ndarray
    panel_grain: int
    from_last: bool  # whether weights are read from the last panel on
    wants_prev: bool  # backward: whether the gradient of h before the step is needed
