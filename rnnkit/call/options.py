"""What a call may ask for beside its arrays, in one object, and the one table of what works where.

Whoever adds an option writes three things: its field with its check, its row of the table, and the kernels' operand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, get_args

import numpy as np

from rnnkit.call import checks
from rnnkit.call.steps import LISTED_ROWS, Steps, steps_of
from rnnkit.descriptor.descriptor import HOST_DTYPES, RNNDescriptor
from rnnkit.errors import BackendError, message, wrong_type
from rnnkit.types import Precision

ZEROS = "zeros"  # the default of `initial`; compared with `is`, which is fast, to see that nothing is asked for


class CallOptions(NamedTuple):
    """What a call asks for, checked, in the order in which it is documented."""

    steps: Steps  # by `lengths`, `resets` and `initial`
    seed: int | None = None  # None where nothing is drawn
    checkpoint_steps: int | None = None
    precision: Precision | None = None  # of `prepare`
    resets: bool = False  # whether they were given, with marks or without
    first_row: int = 0  # its number in the whole batch


def options_of(
    function: str, desc: RNNDescriptor, seq_len: int, batch_size: int, lengths: Any = None, seed: Any = None,
    checkpoint_steps: Any = None, precision: Any = None, resets: Any = None, initial: Any = ZEROS, first_row: Any = 0,
) -> CallOptions:
    """Return the options of a call on so many steps and rows, each checked; None is not asked for."""
    nothing = lengths is seed is checkpoint_steps is precision is resets is None and initial is ZEROS
    if nothing and first_row == 0 and batch_size <= LISTED_ROWS:
        return _unasked(seq_len, batch_size)
    from_hx = checks.initial(function, initial, resets)
    lengths = checks.lengths(function, lengths, seq_len, batch_size)
    steps = steps_of(seq_len, batch_size, lengths, checks.resets(function, resets, seq_len, batch_size), from_hx)
    checks.seed(function, seed)
    return CallOptions(
        steps,
        seed if desc.draws else None,
        checked_checkpoint_steps(function, checkpoint_steps),
        _checked_precision(function, precision),
        resets is not None,
        checks.first_row(function, first_row, batch_size),
    )


def checked_resets(
    function: str, desc: RNNDescriptor, value: Any, rows: int, call: str, place: str
) -> np.ndarray | None:
    """Return the resets of one step, (N,) bool, of which the table must allow `call`; None is none."""
    resets = checks.resets(function, value, rows)
    if resets is not None:
        check(function, desc, options_of(function, desc, 1, rows, resets=resets[None]), call, place)
    return resets


@lru_cache(maxsize=4)  # a training loop asks for the same again and again
def _unasked(seq_len: int, batch_size: int) -> CallOptions:
    return CallOptions(steps_of(seq_len, batch_size))


def checked_checkpoint_steps(function: str, value: Any) -> int | None:
    """Return the number of steps between checkpoints, an int of at least 1, or None for none of them."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise wrong_type(function, "checkpoint_steps", "None or an int", value)
    if value < 1:
        raise ValueError(message(function, "checkpoint_steps", "be at least 1", value))
    return int(value)


def _checked_precision(function: str, value: Any) -> Precision | None:
    if value not in (known := (None, *get_args(Precision))):
        raise ValueError(message(function, "precision", f"be None or one of {', '.join(known[1:])}", repr(value)))
    return value


YES, FORWARDS, NO_PART = "yes", "forward's", "-"  # what a cell of the table may be, or else `Refused`


class Refused(NamedTuple):
    """A cell of the table: the error, with its reason."""

    kind: type[Exception]
    argument: str
    expected: str
    got: Callable[[RNNDescriptor, CallOptions], Any]
    cure: str = ""

    def error(self, function: str, desc: RNNDescriptor, options: CallOptions) -> Exception:
        got = self.got(desc, options)
        return self.kind(message(function, self.argument, self.expected.format(desc=desc), got, self.cure))


_TWO_DIRECTIONS = Refused(
    ValueError, "desc.bidirectional", "be False", lambda desc, _: desc.bidirectional,
    "the reverse direction needs the whole sequence: use infer",
)
_CHECKPOINTS = Refused(
    BackendError, "checkpoint_steps", "be None on CuPy arrays", lambda _, given: given.checkpoint_steps,
    "cuDNN keeps what backward needs of every step: run the network on NumPy arrays",
)
_RESETS = Refused(
    BackendError, "resets", "be None on CuPy arrays", lambda _, given: "some",
    "cuDNN has none: loop over the steps, or run the network on NumPy arrays",
)
_FIRST_ROW = Refused(
    BackendError, "first_row", "be 0 on CuPy arrays", lambda _, given: given.first_row,
    "cuDNN draws for the whole call: give it the whole batch, or run the network on NumPy arrays",
)
_RESET_BEFORE = Refused(
    BackendError, "desc.reset_after", "be True on CuPy arrays", lambda desc, _: desc.reset_after,
    "cuDNN's GRU has the reset after the recurrent product alone: run this one on NumPy arrays",
)
_OWN_CELL = Refused(
    BackendError, "desc.mode", "be one of cuDNN's on CuPy arrays", lambda desc, _: desc.mode,
    "cuDNN runs a closed list: run this one on NumPy arrays",
)
_HALF = Refused(
    TypeError, "desc.dtype", f"be {' or '.join(HOST_DTYPES)} on NumPy arrays", lambda desc, _: desc.dtype,
    "half precision runs on a GPU: move the arrays with cupy.asarray",
)
_DTYPE = Refused(
    ValueError, "precision", "be None for a network of {desc.dtype}", lambda _, given: repr(given.precision)
)
_GPU = Refused(BackendError, "precision", "be None on a GPU", lambda _, given: repr(given.precision))

CALLS = "forward", "backward", "infer", "plan.infer", "plan.step", "stream.step", "stream.run"
NUMPY, CUPY, QUANTIZED = PLACES = "NumPy arrays", "CuPy arrays", "quantized weights"


class Row(NamedTuple):
    """An option of a call or of the network: whether it is asked for, and its cells by call and by place."""

    asked: Callable[[RNNDescriptor, CallOptions], bool]
    cells: dict[str, str | Refused]


def _row(asked: Callable[[RNNDescriptor, CallOptions], bool], calls: Any, *places: str | Refused) -> Row:
    return Row(asked, dict(zip((*CALLS, *PLACES), (*calls, *places), strict=True)))


_EVERY_CALL = (YES,) * 7
_SEQUENCES = YES, FORWARDS, YES, YES, NO_PART, NO_PART, YES
_RESETTING = YES, FORWARDS, *(YES,) * 5
_FORWARD = YES, FORWARDS, *(NO_PART,) * 5
_TRAINING = YES, YES, *(NO_PART,) * 5
_PLANS = *(NO_PART,) * 3, *(YES,) * 4
_BEFORE_STEPS = *(YES,) * 4, *(_TWO_DIRECTIONS,) * 3

TABLE = {  # a row by its name on the page: what asks for it, its cells by CALLS, those by PLACES
    "`lengths`": _row(lambda _, given: given.steps.padded, _SEQUENCES, YES, YES, YES),
    "`resets`, `initial`": _row(lambda _, given: given.resets, _RESETTING, YES, _RESETS, YES),
    "`seed`": _row(lambda _, given: given.seed is not None, _FORWARD, YES, YES, NO_PART),
    "`first_row`": _row(lambda _, given: given.first_row > 0, _FORWARD, YES, _FIRST_ROW, NO_PART),
    "`checkpoint_steps`": _row(
        lambda _, given: given.checkpoint_steps is not None, _FORWARD, YES, _CHECKPOINTS, NO_PART
    ),
    "`prepare(precision=...)`": _row(lambda _, given: given.precision is not None, _PLANS, YES, _GPU, YES),
    "`dropout`": _row(lambda desc, _: desc.dropout > 0, _TRAINING, YES, YES, NO_PART),
    "`bidirectional`": _row(lambda desc, _: desc.bidirectional, _BEFORE_STEPS, YES, YES, YES),
    "`proj_size`": _row(lambda desc, _: desc.projected, _EVERY_CALL, YES, YES, YES),
    "`reset_after=False`": _row(lambda desc, _: not desc.reset_after, _EVERY_CALL, YES, _RESET_BEFORE, YES),
    "a cell of `rnnkit.cells` or your own": _row(
        lambda desc, _: not isinstance(desc.mode, str), _EVERY_CALL, YES, _OWN_CELL, YES
    ),
    "`inputs`, of a cell with side inputs": _row(
        lambda desc, _: desc.inputs_size > 0, _RESETTING, YES, _OWN_CELL, YES
    ),
    '`dtype="float64"`': _row(lambda desc, _: desc.dtype == "float64", _EVERY_CALL, YES, YES, _DTYPE),
    '`dtype="float16"` or `"bfloat16"`': _row(
        lambda desc, _: desc.dtype not in HOST_DTYPES, _EVERY_CALL, _HALF, YES, _DTYPE
    ),
}


def _refusals(*columns: str) -> tuple[tuple[Callable[[RNNDescriptor, CallOptions], bool], Refused], ...]:
    cells = ((row.asked, row.cells[column]) for column in columns for row in TABLE.values())
    return tuple((asked, cell) for asked, cell in cells if isinstance(cell, Refused))


_REFUSALS = {place: {call: _refusals(call, place) for call in CALLS} for place in PLACES}


def refusal(desc: RNNDescriptor, options: CallOptions, call: str, place: str) -> Refused | None:
    """Return what the table has against a call at a place, if there is anything."""
    return next((refused for asked, refused in _REFUSALS[place][call] if asked(desc, options)), None)


def check(function: str, desc: RNNDescriptor, options: CallOptions, call: str, place: str) -> None:
    """Raise what the table has against a call at a place."""
    for asked, refused in _REFUSALS[place][call]:  # every call comes here: `refusal` takes 0.3 us more
        if asked(desc, options):
            raise refused.error(function, desc, options)
