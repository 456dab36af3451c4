"""A plan whose weights change between calls: for a model that learns what it codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnkit.call import checks
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.network.plan import Plan, checked_options
from rnnkit.types import States


class ChangingPlan(Plan[States]):
    """A plan on the CPU whose weights change between calls; not thread-safe.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    w : ndarray (num_weights,), desc.dtype
        The first weights.
    """

    def __init__(self, desc: RNNDescriptor, w: np.ndarray) -> None:
        super().__init__(desc, w, checked_options(desc, w, None))

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a ChangingPlan cannot be copied or pickled: it does not store its flat weights")

    def repack(self, w: np.ndarray) -> None:
        """Replace the weights. This takes a tenth of the time of a new plan, because the memory is the same."""
        checks.weights("repack", w, self.desc, self.packed.weights)
        self.packed.repack(w)
