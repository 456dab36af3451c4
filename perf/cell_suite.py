"""Cases of cells that are not modes: those of `rnnkit.cells` in which R multiplies h for adjacent gates, and a user's
LSTM.

They run like the networks of modes, against loops over time (`cell_loops`), which also check their results.
"""

from dataclasses import replace

from perf import cases
from perf.own_lstm import OwnLSTM
from rnnkit.cells import (
    JANET,
    NBR,
    RAN,
    SLSTM,
    STAR,
    UGRNN,
    CoupledLSTM,
    IndRNN,
    LiGRU,
    MinGRU,
    MinimalGatedUnit,
    PeepholeLSTM,
)

CELLS = (
    OwnLSTM, PeepholeLSTM, CoupledLSTM, MinimalGatedUnit, IndRNN, MinGRU, SLSTM, JANET, LiGRU, UGRNN, RAN, STAR, NBR,
)  # fmt: skip
CASES = tuple(
    case._replace(desc=replace(case.desc, mode=cell), device="cpu")
    for family in ("lm", "small")
    for case in cases.CASES
    if case.name == f"{family}/lstm"
    for cell in CELLS
)
