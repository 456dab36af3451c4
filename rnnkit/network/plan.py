"""prepare: weights copied and packed once, for many calls of infer or step."""

from __future__ import annotations

from functools import partial
from typing import Any, Generic

import numpy as np

from rnnkit.call import checks
from rnnkit.call.options import CUPY, NUMPY, QUANTIZED, CallOptions, check, checked_resets, options_of, refusal
from rnnkit.call.side_inputs import with_inputs
from rnnkit.call.steps import with_zeros
from rnnkit.common.arrays import Array, copy_of, library_of
from rnnkit.common.numbers import MAX_SIZE
from rnnkit.descriptor.descriptor import RNNDescriptor, check_descriptor
from rnnkit.descriptor.states import concatenate_states, split_states
from rnnkit.errors import message, wrong_type
from rnnkit.network.engine import Infer, backend, check_call
from rnnkit.network.stream import Stream
from rnnkit.types import Initial, Precision, States

_MAX_INT8_TERMS = 2**31 // 127**2  # products of two bytes, whose sum is exact in 32 bits


class Plan(Generic[States]):
    """A network's weights, packed for inference: immutable, and safe to use from any number of threads.

    Attributes
    ----------
    desc : RNNDescriptor
        The network.
    precision : str or None
        What the packed weights were rounded to, "bfloat16" or "int8"; None is not at all.
    """

    def __init__(self, desc: RNNDescriptor, w: Any, options: CallOptions) -> None:
        self.desc, self.precision, self._options = desc, options.precision, options
        chosen = backend("prepare", "plan.infer", desc, w, options)
        self._flat = copy_of(w)  # what the plan is pickled as
        given = () if self.precision is None else (self.precision,)  # of the CPU's alone
        self._network = chosen.prepare(desc, self._flat, *given)
        self._place = QUANTIZED if self.precision else NUMPY if library_of(w) is np else CUPY
        self._no_step = refusal(desc, options, "plan.step", self._place)  # once: a small step takes 3 us in all

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(prepare, precision=self.precision)
        return again, (self.desc, self._flat)  # packed anew: for the CPU that it is unpickled on

    def __repr__(self) -> str:
        return f"<Plan of {self.desc}{f', precision={self.precision!r}' if self.precision else ''}>"

    def infer(
        self, x: Array, hx: Array | None = None, cx: Any = None, *, lengths: Any = None, inputs: Any = None,
        resets: Any = None, initial: Initial = "zeros",
    ) -> Infer[States]:
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
        inputs : mapping of str to ndarray, optional
        resets : array_like (T, N) of bool, integers or floats that are 0 or 1, optional
        initial : {"zeros", "hx"}, optional
            Side inputs, and where states are reset and to what, as in :func:`rnnkit.forward`.

        Returns
        -------
        Infer
            y (T, N, D*P), hy (L*D, N, P), cy (L*D, N, H; None but for the LSTM).

        Raises
        ------
        TypeError, ValueError
            An argument has the wrong type, dtype, shape or value.
        """
        seq_len, batch_size = check_call("infer", self.desc, x, hx, cx, self._network.weights)
        options = options_of("infer", self.desc, seq_len, batch_size, lengths, resets=resets, initial=initial)
        if lengths is not None or resets is not None:  # of the network alone prepare has checked it
            check("infer", self.desc, options, "plan.infer", self._place)
        x = with_inputs("infer", self.desc, x, inputs)
        y, hy, cy = self._network.infer(x, hx, concatenate_states(self.desc, cx), options)
        return Infer(y, hy, split_states(self.desc, cy))

    def step(
        self, x: Any, hx: Any = None, cx: Any = None, *, inputs: Any = None, resets: Any = None
    ) -> Infer[States]:
        """Run all layers over one time step; on the CPU a loop of steps gives the bits of :meth:`infer`.

        Parameters
        ----------
        x : ndarray (N, I), desc.dtype
            Input of the step.
        hx : ndarray (L, N, P), optional
            Hidden states before the step; None is zeros.
        cx : ndarray (L, N, H), optional
            Cell states before the step, LSTM only; None is zeros.
        inputs : mapping of str to ndarray, optional
            Side inputs of a cell that declares some: (N, H) or (N, 1).
        resets : array_like (N,) of bool, integers or floats that are 0 or 1, optional
            Where it is 1 the state before the step is zeros.

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
        if self._no_step is not None:
            raise self._no_step.error("step", desc, self._options)
        checks.step("step", x, hx, cx, desc, self._network.weights)
        resets = checked_resets("step", desc, resets, len(x), "plan.step", self._place)
        if resets is not None and resets.any():
            hx = with_zeros(hx, resets)
            cx = tuple(with_zeros(one, resets) for one in cx) if isinstance(cx, tuple) else with_zeros(cx, resets)
        if inputs is not None or desc.inputs_size:
            x = with_inputs("step", desc, x, inputs)
        if len(desc.states) < 2:
            return Infer(*self._network.step(x, hx, cx))
        y, hy, cy = self._network.step(x, hx, concatenate_states(desc, cx))
        return Infer(y, hy, split_states(desc, cy))

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
            `num_streams` is no int from 1 to 2**31 - 1, or the network has two directions.
        """
        if isinstance(num_streams, bool) or not isinstance(num_streams, (int, np.integer)):
            raise wrong_type("stream", "num_streams", "an int", num_streams)
        if not 1 <= num_streams <= MAX_SIZE:
            expected = "be at least 1" if num_streams < 1 else f"be at most {MAX_SIZE}"
            raise ValueError(message("stream", "num_streams", expected, num_streams))
        check("stream", self.desc, self._options, "stream.step", self._place)
        return Stream(self, self._network, int(num_streams), self._place)


def prepare(desc: RNNDescriptor, w: Array, *, precision: Precision | None = None) -> Plan[Any]:
    """Copy and pack the weights once, for many calls of inference.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    w : ndarray (num_weights,), desc.dtype
        The flat weight buffer; later changes of it do not reach the plan.
    precision : {"bfloat16", "int8"}, optional
        What the packed weights are rounded to, of a float32 network on the CPU: half or a quarter of the bytes. None
        is not at all. States and what is computed from the sums stay float32.

    Returns
    -------
    Plan
        With the methods ``infer``, ``step`` and ``stream``.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type, dtype, shape or value.
    BackendError
        Quantized weights on a GPU.

    Notes
    -----
    bfloat16: each weight is the nearest number of 8 bits. Where the CPU has a dot product of pairs (AVX-512 BF16, or
    ARM's bfdot) x, h and what else is multiplied with them are rounded in the same way, and what is below 2^-126 is 0;
    elsewhere they stay float32. So there are three results: the same bits on all CPUs with either instruction, and the
    same on all others with fused multiply-add.

    int8: each row of a weight matrix has a scale, its largest magnitude / 127. What it is multiplied with has one for
    each row of the batch and each step, found anew; the sums of products are exact. The same bits on every CPU. A row
    of x or h that holds an infinite number or NaN gives NaN.

    As of any plan the results depend neither on the number of threads nor on the other rows of the batch, and `infer`
    and a loop of `step` give the same bits.

    Examples
    --------
    >>> import numpy as np
    >>> import rnnkit
    >>> desc = rnnkit.RNNDescriptor("gru", 3, 5)
    >>> plan = prepare(desc, rnnkit.init_weights(desc, seed=0))
    >>> plan.step(np.ones((4, 3), np.float32)).y.shape
    (4, 5)
    """
    check_descriptor("prepare", desc)
    if library_of(w) is None:
        raise wrong_type("prepare", "w", "a numpy.ndarray or a cupy.ndarray", w)
    checks.weights("prepare", w, desc, w)
    options = options_of("prepare", desc, 0, 0, precision=precision)
    if precision is not None:
        longest = max(desc.input_size, desc.hidden_size, desc.num_directions * desc.output_size)
        if precision == "int8" and longest > _MAX_INT8_TERMS:
            expected = f"be None or bfloat16 for sums of more than {_MAX_INT8_TERMS} products"
            raise ValueError(message("prepare", "precision", expected, f"'int8' and {longest}"))
        check("prepare", desc, options, "plan.infer", QUANTIZED)
    return Plan(desc, w, options)
