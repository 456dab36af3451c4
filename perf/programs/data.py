"""Small generated data."""

from __future__ import annotations

import numpy as np


def waves(count: int, length: int) -> np.ndarray:
    """Noisy waves of different periods and phases, (count, length) in float32."""
    rng = np.random.default_rng(0)
    steps = np.arange(length) * rng.uniform(0.2, 0.6, (count, 1)) + rng.uniform(0, 6, (count, 1))
    return (np.sin(steps) + 0.05 * rng.standard_normal((count, length))).astype(np.float32)
