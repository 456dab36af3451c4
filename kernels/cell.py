"""What the time loop asks of a cell, and how a cell answers.

A cell is a NamedTuple type whose fields are its parameters; it implements the methods below in its file. A row of the
gate buffer holds a few columns ("slots") of hidden_size numbers each. First they receive the pre-activations, then
`activate` leaves there what the gradient needs. Rows are given by their offset in a flat array (`at`, `before`,
`after`), units by their range first..last within the row. Gradients mirror the forward methods.

Numba picks the implementation by the cell's type while compiling. Jitted functions handed over as arguments would be
as fast, but a kernel that takes them never hits the disk cache.
"""

from functools import wraps

from numba.extending import overload

from .jit import OPTIONS

_IMPLEMENTATIONS = {}


def _method(function):
    """Let kernels, and Python, call `function(cell, ...)`: what the cell's type implements, or else this body."""

    @wraps(function)
    def method(cell, *arguments):
        return _IMPLEMENTATIONS.get((method, type(cell)), function)(cell, *arguments)

    @overload(method, jit_options=OPTIONS, strict=False)
    def choose(cell, *arguments):
        return _IMPLEMENTATIONS.get((method, cell.instance_class), function)

    return method


def implements(method, *cells):
    """Register the decorated function as what `method` does for these cell types."""

    def register(function):
        for cell in cells:
            _IMPLEMENTATIONS[method, cell] = function
        return function

    return register


@_method
def input_slots(cell):
    """Column of each gate's input product W x, in the order of the gates in the weights."""


@_method
def recurrent_slots(cell):
    """Column of each gate's recurrent product R h, for the gates that the first product of a step computes."""


@_method
def second_slots(cell):
    """Where a second product within the step multiplies the last gate's R: (its column, the multiplicand's), or ()."""
    return ()


@_method
def recurrent_columns(cell):
    """(first column, number of columns) of the gradients that the step's last product takes back through R."""


@_method
def carries_state(cell):
    """Whether `differentiate` leaves a direct part of the gradient of h before the step, that R's part adds to."""
    return False


@_method
def begin(cell, gates, at, bias, first, last):
    """Prepare a row before its recurrent product: fill in what that product starts from."""


@_method
def activate(
    cell, gates, at, first, last, cells, before, next_cells, after, hidden, hidden_before, target, hidden_after
):
    """Gate mathematics of a row: pre-activations to activated gates, the new cell and the new hidden state.

    The new states must not stand where the old ones are: the loop over units would not be vectorised. An activation
    that waits for another one begins a second loop: in one, few units at a time are on their way through a core, and
    the time of a unit is that of the whole chain (GRU 0.78, LSTM 0.93, its gradient 0.78 of the time; Zen 3).
    """


@_method
def complete(cell, gates, hidden, target, first_row, last_row, panels, piece, member, members, sync):
    """What follows `activate` for all rows of a step, where a second product follows within the step."""


@_method
def differentiate(
    cell, gates, at, dgates, dat, first, last, dh, dh_at, cells, before, after, dcells, dc_at, hidden, hidden_before,
    carry, carry_at
):
    """Gradient of `activate` for a row: from dh and dcells after the step to dgates, dcells and carry before it."""


@_method
def complete_gradient(
    cell, gates, dgates, hidden, carry, first_row, last_row, panels, zeros, piece, member, members, sync
):
    """Gradient of `complete`: what follows `differentiate` for all rows of a step."""
