"""A plan whose weights change between calls, and its steps in reused buffers: for a model that learns what it codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnkit.call import checks
from rnnkit.call.options import check
from rnnkit.call.side_inputs import with_inputs
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.states import concatenate_states, split_states
from rnnkit.errors import message
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
        checks.weights("repack", w, self.desc, self._network.weights)
        self._network.repack(w)

    def steps(self, batch_size: int) -> BufferedSteps:
        """Return buffers for steps of a batch; they use the weights of the last `repack`."""
        check("steps", self.desc, self._options, "plan.step", self._place)
        return BufferedSteps(self.desc, self._network, batch_size)


class BufferedSteps:
    """Steps of one batch in reused buffers, bit-identical to `Plan.step`; a step of 64 rows takes half of its time.

    Attributes
    ----------
    batch_size : int
    """

    def __init__(self, desc: RNNDescriptor, network: Any, batch_size: int) -> None:
        self.batch_size, self._desc, self._network, self._side = batch_size, desc, network, 0
        hy, cy, self._scratch = network.buffers(batch_size)
        self._sides = (hy, cy), (np.empty_like(hy), np.empty_like(cy))
        self.begin()

    def begin(self, hx: np.ndarray | None = None, cx: Any = None) -> None:
        """Start from these states, as `Plan.step` takes them; they are copied."""
        checks.hidden("begin", "hx", hx, self.batch_size, self._desc, self._sides[0][0])
        checks.cell_state("begin", "cx", cx, self.batch_size, self._desc, self._sides[0][0])
        for own, given in zip(self._sides[self._side], (hx, concatenate_states(self._desc, cx)), strict=True):
            own[...] = 0 if given is None else given

    def step(self, x: np.ndarray) -> np.ndarray:
        """Run one time step on x (N, I), and return y (N, P), which is valid until the next step."""
        before, after = self._sides[self._side], self._sides[1 - self._side]
        checks.inputs("step", x, checks.STEP_DIMS, self._desc, before[0])
        if len(x) != self.batch_size:
            raise ValueError(message("step", "x", f"have batch_size={self.batch_size} rows", len(x)))
        x = with_inputs("step", self._desc, x, None) if self._desc.inputs_size else x
        self._network.step(x, *before, (*after, self._scratch))
        self._side = 1 - self._side
        return after[0][-1]

    @property
    def states(self) -> tuple[np.ndarray, Any]:
        """Copies of hx and cx, the latter None, an array or a tuple."""
        hx, cx = self._sides[self._side]
        return hx.copy(), split_states(self._desc, cx.copy()) if self._desc.has_cell_state else None
