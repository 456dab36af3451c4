"""The programs. RecBole is not among them: it needs NumPy 1."""

from __future__ import annotations

from perf.programs import (
    actor_critic,
    darts_models,
    deepecho_models,
    forecasting_models,
    gluonts_models,
    neuralforecast_models,
    pypots_models,
    sb3_models,
    skorch_models,
    tianshou_models,
)
from perf.programs.program import Program

_FILES = (
    sb3_models, actor_critic, tianshou_models, darts_models, neuralforecast_models, forecasting_models, gluonts_models,
    pypots_models, skorch_models, deepecho_models,
)  # fmt: skip
PROGRAMS: tuple[Program, ...] = tuple(program for file in _FILES for program in file.PROGRAMS)
