"""Operand bundles of the time-loop kernels: arrays by the names of what they hold.

A new operand of the stages is one field of `Operands` (or `Gradients`), and a name in `stages.operand_places`.
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
    """Arrays that the stages and products of a step read and write.

    A position is a valid step (t, n) of a pass; positions are counted step by step. The gate buffer has a row for each
    position. For all other arrays the row lists say which row belongs to a position.
    """

    gates: Matrix
    hidden_prev: Matrix
    hidden: Matrix
    states_prev: Matrix
    states: Matrix
    units: Matrix | None = None  # h before a projection, else `hidden`; set by the kernel
    vectors: Matrix | None = None  # one row for all positions; set by the kernel
    inputs: CallMatrix | Matrix | None = None  # a cell's side inputs, the last columns of x; set by the kernel
    noises: Matrix | None = None  # of a sequence; None without noise: stages then read its expectation
    step_noises: Matrix | None = None  # of each of its steps


class Gradients(NamedTuple):
    """Gradients that flow back through a step, each named after its operand."""

    y: Matrix
    x: Matrix
    gates: Matrix  # a row ends in the block sums of means, and the gradient of the projection's output
    units: Matrix
    hidden: Matrix
    states: Matrix
    reset_marks: np.ndarray | None = None  # 1 at positions whose next step starts from a reset state; empty without any
    reset_hidden: Matrix | None = None  # of the states that steps are reset to; without data for zeros
    reset_states: Matrix | None = None
    inputs: Matrix | None = None  # of this pseudo-layer
    vectors: Matrix | None = None  # per sequence, summed over the steps of a chunk


class LayerConstants(NamedTuple):
    """Constants shared by all passes of a layer."""

    sizes: Sizes
    products: tuple  # `products.PackedProduct`s
    weight_starts: np.ndarray  # of their weights in the flat weights
    offsets: np.ndarray  # of their weights in the packed weights


class LayerPass(NamedTuple):
    """One direction of one layer, forward. Step t of a call has the positions starts[t]:starts[t + 1]."""

    reverse: bool
    constants: LayerConstants
    starts: np.ndarray
    x: CallMatrix
    operands: Operands  # its gates start at the first position whose gates are saved


class EndStates(NamedTuple):
    """Rows of the states of all sequences in a layer pass, before the first step and after the last."""

    index: int  # of the pseudo-layer
    hidden_initial: Matrix
    hidden_final: Matrix
    states_initial: Matrix
    states_final: Matrix


class LayerPassBackward(NamedTuple):
    """The backward pass of a layer pass: the forward pass, and its gradients."""

    forward: LayerPass
    gradients: Gradients  # y, x and those of states are CallMatrix; the gates start at the first position of a chunk
    buffer: np.ndarray  # or a tuple of `formats`, for products of reduced precision
    offsets: np.ndarray  # of the parts of the buffer


class ForwardArrays(NamedTuple):
    """Arrays of a forward call, flat: the input, the weights (may be empty if they are packed already), the initial
    states of all pseudo-layers (empty for zeros), and the targets of their final states (empty: not wanted)."""

    x: np.ndarray
    w: np.ndarray
    hx: np.ndarray
    cx: np.ndarray
    hy: np.ndarray
    cy: np.ndarray


class CallPosition(NamedTuple):
    """Position of a call among those that run a few steps each."""

    sums_biases: bool  # the first call, if weights are read in place
    is_first: bool
    is_last: bool


class BackwardArrays(NamedTuple):
    """Arrays of a backward call, read as if flat: the weights, the input, and the gradients of the output (empty for
    zeros), the input (empty if not wanted), the states (dcx: any array if h is the only state), the weights (empty if
    not wanted), and the states that steps are reset to (empty without resets)."""

    w: np.ndarray
    x: np.ndarray
    dy: np.ndarray
    dx: np.ndarray
    dhx: np.ndarray
    dcx: np.ndarray
    dw: np.ndarray
    dhx_reset: np.ndarray
    dcx_reset: np.ndarray
    dw_is_new: bool  # dw is uninitialised: the first rows of the call write it, others are added
    wants_dhx: bool  # else dhx is undefined after the call
    runs_steps: bool  # run the steps; else the gates' gradients are computed already, and only dw is wanted


class Schedule(NamedTuple):
    """How a call splits its work: decided beforehand by the scheduler, from the sizes only."""

    bounds: np.ndarray  # where to split the rows of every step among teams with rows of their own; else empty
    panel_grain: int  # panels of a work-stealing block; 0: a static split
    num_passes: int  # layer passes of the call
    split: bool  # whether each of two passes has its own buffer, and half of the team if its size is even
    pipelined: bool  # whether the second pass reads what the first writes (backward: its gradient of the input)
    lag: int  # steps after which the first pass lets the second continue, if they run at once
    chunk: int  # steps whose input products (backward: gates' gradients) are in the buffer at a time
    keeps_gates: bool  # of all steps; else those of a chunk overwrite the previous ones
    threads: int  # the largest number of useful threads


class Step(NamedTuple):
    """Operands of the phases of a step."""

    sizes: Sizes
    weights: tuple  # `products.LayerWeights`; backward one `weight_gradient.Term` per product of the layer
    operands: Operands
    gradients: Gradients  # None in the forward pass
    zeros: np.ndarray
    panel_grain: int
    reverse_panels: bool  # read the panels of weights in reverse order
    needs_dh_prev: bool  # backward: whether the gradient of h before the step is needed
