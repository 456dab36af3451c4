"""The cases of cells that are no modes: those of `rnnkit.cells`, and an LSTM of a user's own.

They are run as the networks of the modes are, beside loops over time (`cell_loops`), with which they are compared.
"""

from dataclasses import replace

from perf import cases
from perf.own_lstm import OwnLSTM
from rnnkit.cells import SLSTM, CoupledLSTM, IndRNN, MinGRU, MinimalGatedUnit, PeepholeLSTM

CELLS = (OwnLSTM, PeepholeLSTM, CoupledLSTM, MinimalGatedUnit, IndRNN, MinGRU, SLSTM)
CASES = tuple(
    case._replace(desc=replace(case.desc, mode=cell), device="cpu")
    for family in ("lm", "small")
    for case in cases.CASES
    if case.name == f"{family}/lstm"
    for cell in CELLS
)
