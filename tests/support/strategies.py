"""Random problems that shrink to small ones; only combinations that a descriptor accepts.

Of these, those whose kernels the default part has (`problems.FLOAT32`; one layer of one direction, which is a kernel
of its own, in float32 alone). The stress suite draws from all.
"""

from hypothesis import strategies as st
from problems import CLIP, Problem

MODES = ("rnn_tanh", "rnn_relu", "lstm", "gru")
COMMON_MODES = ("rnn_tanh", "lstm", "gru")

# Vector kernels break at their tails: sizes below, at and above the widths of 2 to 16 lanes and their multiples, and
# batches around the 5 and 6 rows that one register tile holds.
WIDTHS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 47, 64, 65)
BATCHES = (1, 2, 5, 6, 7, 20, 21)

SMALL = st.integers(1, 5)
STEPS = st.integers(0, 5)


@st.composite
def problems(draw, sizes=SMALL, batches=SMALL, steps=STEPS, layers=3, **fixed):
    """A Problem; `fixed` sets fields of it instead of drawing them."""

    def field(name, strategy):
        return fixed[name] if name in fixed else draw(strategy, label=name)

    dtype = field("dtype", st.sampled_from(["float64", "float32"]))
    mode = field("mode", st.sampled_from(MODES if dtype == "float64" else COMMON_MODES))
    lstm = mode == "lstm"
    hidden_size = draw(sizes, label="hidden_size")
    input_mode = field("input_mode", st.sampled_from(["linear", "skip"]))
    projections = st.none() | st.integers(1, hidden_size - 1) if lstm and hidden_size > 1 else st.none()
    seq_len = field("seq_len", steps)
    batch_size = draw(batches, label="batch_size")
    some_lengths = st.lists(st.integers(0, seq_len), min_size=batch_size, max_size=batch_size).map(tuple)
    bidirectional = field("bidirectional", st.booleans())
    fewest = 2 if dtype == "float64" and not bidirectional else 1
    all_formulas = mode == "gru" and dtype == "float64"
    return Problem(
        mode=mode,
        input_size=hidden_size if input_mode == "skip" else draw(sizes, label="input_size"),
        hidden_size=hidden_size,
        num_layers=field("num_layers", st.integers(fewest, layers)),
        bidirectional=bidirectional,
        bias=field("bias", st.sampled_from(["both", "input", "recurrent", "none"])),
        input_mode=input_mode,
        proj_size=field("proj_size", projections),
        dropout=field("dropout", st.sampled_from([0.0, 0.5])),
        cell_clip=field("cell_clip", st.sampled_from([None, CLIP]) if lstm else st.none()),
        reset_after=field("reset_after", st.sampled_from([True, False])) if all_formulas else True,
        dtype=dtype,
        seq_len=seq_len,
        batch_size=batch_size,
        lengths=field("lengths", st.none() | some_lengths),
        states=field("states", st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1), label="seed"),
    )


def wide_problems(**fixed):
    """Problems whose sizes stand around the vector width."""
    sizes, batches = st.sampled_from(WIDTHS), st.sampled_from(BATCHES)
    return problems(sizes=sizes, batches=batches, steps=st.integers(1, 3), layers=2, **fixed)
