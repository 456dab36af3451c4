"""The cases of cells that are no modes: those of `rnnkit.cells` in which R multiplies h, for gates that are neighbours,
and an LSTM of a user's own.

They are run as the networks of the modes are, beside loops over time (`cell_loops`), with which they are compared.
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
