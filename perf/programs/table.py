"""The programs. Not among them: RecBole and nakdimon, which need NumPy 1; madmom, which Python 3.11 cannot build."""

from __future__ import annotations

from perf.programs import (
    actor_critic,
    darts_models,
    deepecho_models,
    forecasting_models,
    g2p_models,
    gluonts_models,
    medaka_models,
    nam_models,
    neuralforecast_models,
    pypots_models,
    ribodetector_models,
    sb3_models,
    silero_models,
    skorch_models,
    tianshou_models,
    tirex_models,
)
from perf.programs.converted import Converted
from perf.programs.program import Program

_FILES = (
    sb3_models, actor_critic, tianshou_models, darts_models, neuralforecast_models, forecasting_models, gluonts_models,
    pypots_models, skorch_models, deepecho_models, medaka_models, ribodetector_models, g2p_models, nam_models,
    tirex_models, silero_models,
)  # fmt: skip
PROGRAMS: tuple[Program | Converted, ...] = tuple(program for file in _FILES for program in file.PROGRAMS)
