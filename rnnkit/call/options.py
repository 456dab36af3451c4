"""Options of a call, and the support table: which option works in which call, on which arrays.

To add an option, add its field with a check, its row of the table, and the operand of the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, get_args

import numpy as np

from rnnkit.call import checks
from rnnkit.call.mask import Mask
from rnnkit.call.steps import LISTED_ROWS, Steps, steps_of
from rnnkit.descriptor.descriptor import HOST_DTYPES, RNNDescriptor
from rnnkit.errors import BackendError, message, wrong_type
from rnnkit.types import CallPrecision, Precision

MAX_CUDNN_STEPS = 65535  # of a sequence, in cuDNN 9.19 and 9.28
ZEROS = "zeros"  # the default of `initial`; the fast path compares it with `is`


class CallOptions(NamedTuple):
    """The options of a call, checked, in the order of the documentation."""

    steps: Steps  # that run, by `lengths`, `mask`, `resets` and `initial`
    seed: int | None = None  # None if nothing is random
    checkpoint_steps: int | None = None
    precision: Precision | None = None  # of the products; None: that of the dtype
    resets: bool = False  # whether `resets` was given, even if all are 0
    first_row: int = 0  # its index in the whole batch
    masked: bool = False  # whether `mask` was given, even if all are 1
    mask: Mask | None = None  # None: no step is skipped

    @property
    def seq_len(self) -> int:
        """Number of steps, with those that are skipped."""
        return self.steps.seq_len if self.mask is None else self.mask.seq_len


def options_of(
    function: str,
    desc: RNNDescriptor,
    seq_len: int,
    batch_size: int,
    lengths: Any = None,
    seed: Any = None,
    checkpoint_steps: Any = None,
    precision: Any = None,
    resets: Any = None,
    initial: Any = ZEROS,
    first_row: Any = 0,
    mask: Any = None,
) -> CallOptions:
    """Check and return the options of a call on `seq_len` steps and `batch_size` rows; None means not given."""
    all_default = lengths is seed is checkpoint_steps is precision is resets is mask is None and initial is ZEROS
    if all_default and first_row == 0 and batch_size <= LISTED_ROWS:
        return _default_options(seq_len, batch_size)
    from_hx, shape = checks.initial(function, initial, resets), (seq_len, batch_size)
    lengths = checks.lengths(function, lengths, *shape)
    marks = checks.marks(function, "resets", resets, *shape)
    skipping = (
        None if mask is None else _skipping(function, checks.marks(function, "mask", mask, *shape), lengths, marks)
    )
    if skipping is not None:
        lengths, shape = skipping.counts, (skipping.longest, batch_size)
        marks = None if marks is None else skipping.taken(marks)
    seed = checks.seed(function, seed)
    return CallOptions(
        steps_of(*shape, lengths, marks, from_hx),
        seed if desc.draws else None,
        checked_checkpoint_steps(function, checkpoint_steps),
        checked_precision(function, precision, Precision if function == "prepare" else CallPrecision),
        resets is not None,
        checks.first_row(function, first_row, batch_size),
        mask is not None,
        skipping,
    )


def _skipping(function: str, listed: np.ndarray, lengths: Any, resets: Any) -> Mask | None:
    """Return the mask of a batch, (T, N) bool, or None if it skips no step within the lengths."""
    checks.no_reset_is_skipped(function, resets, listed, lengths)
    if lengths is not None:
        listed = listed & (np.arange(len(listed))[:, None] < lengths)
    mask = Mask(np.ascontiguousarray(listed), lengths)
    return mask if mask.skips else None


def marks_of_step(
    function: str, desc: RNNDescriptor, resets: Any, mask: Any, rows: int, call: str, place: str
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Check `resets` and `mask` of one step, and that `call` supports them. Return which rows to reset and which to
    skip, (N,) bool; None: none."""
    if resets is mask is None:  # a step of a small network takes 2 us
        return None, None
    anew, listed = checks.marks(function, "resets", resets, rows), checks.marks(function, "mask", mask, rows)
    if listed is not None:
        checks.no_reset_is_skipped(function, anew, listed, None)
    of_call = {name: None if one is None else one[None] for name, one in (("resets", anew), ("mask", listed))}
    check(function, desc, options_of(function, desc, 1, rows, **of_call), call, place)
    skipped = None if listed is None else ~listed
    return (anew if anew is not None and anew.any() else None), (
        skipped if mask is not None and skipped.any() else None
    )


@lru_cache(maxsize=4)  # a training loop uses the same sizes in each call
def _default_options(seq_len: int, batch_size: int) -> CallOptions:
    return CallOptions(steps_of(seq_len, batch_size))


def checked_checkpoint_steps(function: str, value: Any) -> int | None:
    """Return the number of steps between checkpoints, an int of at least 1, or None without checkpoints."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise wrong_type(function, "checkpoint_steps", "None or an int", value)
    if value < 1:
        raise ValueError(message(function, "checkpoint_steps", "be at least 1", value))
    return int(value)


def checked_precision(function: str, value: Any, names: Any = Precision) -> Precision | None:
    """Return an argument `precision`; raise unless it is None or one of these names, a Literal."""
    if value not in (known := (None, *get_args(names))):
        raise ValueError(message(function, "precision", f"be None or one of {', '.join(known[1:])}", repr(value)))
    return value


YES, FROM_FORWARD, NOT_APPLICABLE = "yes", "forward's", "-"  # entries of the table, other than `Unsupported`


class Unsupported(NamedTuple):
    """An entry of the table for an option that is not supported: the error and its reason."""

    kind: type[Exception]
    argument: str
    expected: str
    got: Callable[[RNNDescriptor, CallOptions], Any]
    cure: str = ""

    def error(self, function: str, desc: RNNDescriptor, options: CallOptions) -> Exception:
        got = self.got(desc, options)
        return self.kind(message(function, self.argument, self.expected.format(desc=desc), got, self.cure))


_TWO_DIRECTIONS = Unsupported(
    ValueError,
    "desc.bidirectional",
    "be False",
    lambda desc, _: desc.bidirectional,
    "the reverse direction needs the whole sequence: use infer",
)
_HALF = Unsupported(
    TypeError,
    "desc.dtype",
    f"be {' or '.join(HOST_DTYPES)} on NumPy arrays",
    lambda desc, _: desc.dtype,
    "half precision runs on a GPU: move the arrays with cupy.asarray",
)
_HALF_OF_OTHERS = Unsupported(
    BackendError,
    "desc.dtype",
    f"be {' or '.join(HOST_DTYPES)} for what cuDNN does not have",
    lambda desc, _: desc.dtype,
    "only cuDNN computes in half precision: it has the built-in modes, without resets, masks and checkpoints",
)
_DTYPE = Unsupported(
    ValueError, "precision", "be None for a network of {desc.dtype}", lambda _, options: repr(options.precision)
)
_GPU = Unsupported(BackendError, "precision", "be None on a GPU", lambda _, options: repr(options.precision))

CALLS = "forward", "backward", "infer", "plan.infer", "plan.step", "stream.step", "stream.run"
NUMPY, CUPY, REDUCED = PLACES = "NumPy arrays", "CuPy arrays", "reduced precision"


class Row(NamedTuple):
    """An option of a call or of the network: whether it is used, and its entries by call and by place."""

    is_used: Callable[[RNNDescriptor, CallOptions], bool]
    entries: dict[str, str | Unsupported]


def _row(is_used: Callable[[RNNDescriptor, CallOptions], bool], calls: Any, *places: str | Unsupported) -> Row:
    return Row(is_used, dict(zip((*CALLS, *PLACES), (*calls, *places), strict=True)))


_EVERY_CALL = (YES,) * 7
_SEQUENCES = YES, FROM_FORWARD, YES, YES, NOT_APPLICABLE, NOT_APPLICABLE, YES
_RESETTING = YES, FROM_FORWARD, *(YES,) * 5
_FORWARD = YES, FROM_FORWARD, *(NOT_APPLICABLE,) * 5
_TRAINING = YES, YES, *(NOT_APPLICABLE,) * 5
_WHOLE_SEQUENCE_ONLY = *(YES,) * 4, *(_TWO_DIRECTIONS,) * 3

TABLE = {  # by the title in the docs: whether the option is used, its entries by CALLS, those by PLACES
    "`lengths`": _row(lambda _, options: options.steps.padded, _SEQUENCES, YES, YES, YES),
    "`mask`": _row(lambda _, options: options.masked, _RESETTING, YES, YES, YES),
    "`resets`, `initial`": _row(lambda _, options: options.resets, _RESETTING, YES, YES, YES),
    "`seed`": _row(lambda _, options: options.seed is not None, _FORWARD, YES, YES, YES),
    "`first_row`": _row(lambda _, options: options.first_row > 0, _FORWARD, YES, YES, YES),
    "`checkpoint_steps`": _row(lambda _, options: options.checkpoint_steps is not None, _FORWARD, YES, YES, YES),
    "`precision`": _row(lambda _, options: options.precision is not None, _RESETTING, YES, _GPU, YES),
    "`dropout`": _row(lambda desc, _: desc.dropout > 0, _TRAINING, YES, YES, YES),
    "`bidirectional`": _row(lambda desc, _: desc.bidirectional, _WHOLE_SEQUENCE_ONLY, YES, YES, YES),
    "`proj_size`": _row(lambda desc, _: desc.projected, _EVERY_CALL, YES, YES, YES),
    "`reset_after=False`": _row(lambda desc, _: not desc.reset_after, _EVERY_CALL, YES, YES, YES),
    "a cell of `rnnkit.cells` or your own": _row(
        lambda desc, _: not isinstance(desc.mode, str), _EVERY_CALL, YES, YES, YES
    ),
    "`inputs`, of a cell with side inputs": _row(lambda desc, _: desc.inputs_size > 0, _RESETTING, YES, YES, YES),
    "`learned_initial_state`": _row(lambda desc, _: desc.learned_initial_state, _EVERY_CALL, YES, YES, YES),
    '`dtype="float64"`': _row(lambda desc, _: desc.dtype == "float64", _EVERY_CALL, YES, YES, _DTYPE),
    '`dtype="float16"` or `"bfloat16"`': _row(
        lambda desc, _: desc.dtype not in HOST_DTYPES, _EVERY_CALL, _HALF, YES, _DTYPE
    ),
    "the same for what cuDNN does not have": _row(
        lambda desc, options: desc.dtype not in HOST_DTYPES and not is_of_cudnn(desc, options),
        _EVERY_CALL,
        _HALF,
        _HALF_OF_OTHERS,
        _DTYPE,
    ),
}


def is_of_cudnn(desc: RNNDescriptor, options: CallOptions) -> bool:
    """Return whether cuDNN has a network with these options; kernels made from the equations run any other one."""
    if not isinstance(desc.mode, str) or not desc.reset_after:
        return False
    others = options.resets or options.masked or options.first_row > 0 or options.checkpoint_steps is not None
    return not others and (options.steps.seq_len <= MAX_CUDNN_STEPS or _longest(options.steps) <= MAX_CUDNN_STEPS)


def _longest(steps: Steps) -> int:
    return int(steps.lengths.max(initial=0))


def _unsupported_entries(*columns: str) -> tuple[tuple[Callable[[RNNDescriptor, CallOptions], bool], Unsupported], ...]:
    entries = ((row.is_used, row.entries[column]) for column in columns for row in TABLE.values())
    return tuple((is_used, entry) for is_used, entry in entries if isinstance(entry, Unsupported))


_UNSUPPORTED = {place: {call: _unsupported_entries(call, place) for call in CALLS} for place in PLACES}


def unsupported(desc: RNNDescriptor, options: CallOptions, call: str, place: str) -> Unsupported | None:
    """Return the entry by which the table refuses this call at this place, or None."""
    return next((entry for is_used, entry in _UNSUPPORTED[place][call] if is_used(desc, options)), None)


def check(function: str, desc: RNNDescriptor, options: CallOptions, call: str, place: str) -> None:
    """Raise if the table refuses this call at this place."""
    for is_used, entry in _UNSUPPORTED[place][call]:  # in every call: `unsupported` would take 0.3 us more
        if is_used(desc, options):
            raise entry.error(function, desc, options)
