"""The programs."""

from __future__ import annotations

from perf.programs import actor_critic, skorch_models
from perf.programs.program import Program

PROGRAMS: tuple[Program, ...] = (*actor_critic.PROGRAMS, *skorch_models.PROGRAMS)
