"""A case in an engine: the callable to time, and its results under rnnkit's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rnnkit.common.arrays import on_host


class Subject(NamedTuple):
    """One case in one engine."""

    run: Callable[[], Any]  # the timed callable
    results: Callable[[Any], dict[str, np.ndarray | None]]  # results of `run`, under rnnkit's names
    finish: Callable[[], Any] = int  # waits until all is computed
    memory: Callable[[], int] | None = None  # bytes held on the GPU
    release: Callable[[], Any] = int  # frees unused memory


def named(y: Any, hy: Any, cy: Any) -> dict[str, np.ndarray | None]:
    """Return the outputs of a network on the host, by their names; None where it has no cell state."""
    several = {f"cy[{number}]": one for number, one in enumerate(cy)} if isinstance(cy, tuple) else {"cy": cy}
    return {name: None if one is None else on_host(one) for name, one in {"y": y, "hy": hy, **several}.items()}
