"""prepare: weights copied and packed once, for many calls of infer or step."""

from __future__ import annotations

from typing import Any, Generic

import numpy as np

from rnnkit import checks
from rnnkit.arrays import copy_of, library_of
from rnnkit.descriptor import RNNDescriptor
from rnnkit.engine import Infer, backend, check_call
from rnnkit.errors import message, wrong_type
from rnnkit.states import apart, joined
from rnnkit.stream import Stream
from rnnkit.types import States


class Plan(Generic[States]):
    """A network's weights, packed for inference: immutable, and safe to use from any number of threads.

    Attributes
    ----------
    desc : RNNDescriptor
        The network.
    """

    def __init__(self, desc: RNNDescriptor, w: Any) -> None:
        self.desc = desc
        self._flat = copy_of(w)  # what the plan is pickled as
        self._network = backend("prepare", desc, w).prepare(desc, self._flat)

    def __reduce__(self) -> tuple[Any, ...]:
        return prepare, (self.desc, self._flat)  # packed anew: for the CPU that it is unpickled on

    def __repr__(self) -> str:
        return f"<Plan of {self.desc}>"

    def infer(self, x: Any, hx: Any = None, cx: Any = None, *, lengths: Any = None) -> Infer[States]:
        """Run the network over a batch of sequences, as :func:`rnnkit.infer` does, on the CPU to the same bits.

        Parameters
        ----------
        x : ndarray (T, N, I), desc.dtype
            Input, time-major.
        hx : ndarray (L*D, N, P), optional
            Initial hidden states; None is zeros.
        cx : ndarray (L*D, N, H), optional
            Initial cell states, LSTM only; None is zeros.
        lengths : array_like (N,) of int, optional
            Length of each sequence, 0..T, in any order; None is T for all.

        Returns
        -------
        Infer
            y (T, N, D*P), hy (L*D, N, P), cy (L*D, N, H; None but for the LSTM).

        Raises
        ------
        TypeError, ValueError
            An argument has the wrong type, dtype, shape or value.
        """
        steps = check_call("infer", self.desc, x, hx, cx, lengths, self._network.weights)
        y, hy, cy = self._network.infer(x, hx, joined(self.desc, cx), steps)
        return Infer(y, hy, apart(self.desc, cy))

    def step(self, x: Any, hx: Any, cx: Any = None) -> Infer[States]:
        """Run all layers over one time step; on the CPU a loop of steps gives the bits of :meth:`infer`.

        Parameters
        ----------
        x : ndarray (N, I), desc.dtype
            Input of the step.
        hx : ndarray (L, N, P)
            Hidden states before the step; None is zeros.
        cx : ndarray (L, N, H), optional
            Cell states before the step, LSTM only; None is zeros.

        Returns
        -------
        Infer
            y (N, P), and the states after the step, hy (L, N, P) and cy (L, N, H; None but for the LSTM).

        Raises
        ------
        TypeError, ValueError
            An argument has the wrong type, dtype, shape or value, or the network has two directions: the reverse one
            has no step before the sequence ends.
        """
        desc = self.desc
        if desc.num_directions != 1:
            raise self._two_directions("step")
        checks.step("step", x, hx, cx, desc, self._network.weights)
        if len(desc.states) < 2:
            return Infer(*self._network.step(x, hx, cx))
        y, hy, cy = self._network.step(x, hx, joined(desc, cx))
        return Infer(y, hy, apart(desc, cy))

    def stream(self, num_streams: int) -> Stream:
        """Return what holds the states of many streams and steps all or some of them.

        Parameters
        ----------
        num_streams : int
            How many, at least 1.

        Returns
        -------
        Stream
            With states of zeros, on the device of the weights.

        Raises
        ------
        TypeError, ValueError
            `num_streams` is no int of at least 1, or the network has two directions.
        """
        if isinstance(num_streams, bool) or not isinstance(num_streams, (int, np.integer)):
            raise wrong_type("stream", "num_streams", "an int", num_streams)
        if num_streams < 1:
            raise ValueError(message("stream", "num_streams", "be at least 1", num_streams))
        if self.desc.num_directions != 1:
            raise self._two_directions("stream")
        return Stream(self, self._network, int(num_streams))

    def _two_directions(self, function: str) -> ValueError:
        cure = "the reverse direction needs the whole sequence: use infer"
        return ValueError(message(function, "desc.bidirectional", "be False", "True", cure))


def prepare(desc: RNNDescriptor, w: Any) -> Plan[Any]:
    """Copy and pack the weights once, for many calls of inference.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    w : ndarray (num_weights,), desc.dtype
        The flat weight buffer; later changes of it do not reach the plan.

    Returns
    -------
    Plan
        With the methods ``infer``, ``step`` and ``stream``.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type, dtype or shape.

    Examples
    --------
    >>> import numpy as np
    >>> import rnnkit
    >>> desc = rnnkit.RNNDescriptor("gru", 3, 5)
    >>> plan = prepare(desc, rnnkit.init_weights(desc, seed=0))
    >>> plan.step(np.ones((4, 3), np.float32), None).y.shape
    (4, 5)
    """
    checks.descriptor("prepare", desc)
    if library_of(w) is None:
        raise wrong_type("prepare", "w", "a numpy.ndarray or a cupy.ndarray", w)
    checks.weights("prepare", w, desc, w)
    return Plan(desc, w)
