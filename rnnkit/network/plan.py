"""prepare: copy and pack the weights once, for many calls of infer or step."""

from __future__ import annotations

from functools import partial
from typing import Any, Generic

import numpy as np

from rnnkit.call import checks
from rnnkit.call.options import CUPY, NUMPY, REDUCED, CallOptions, check, marks_of_step, options_of, unsupported
from rnnkit.call.side_inputs import with_inputs
from rnnkit.call.steps import with_rows
from rnnkit.common.arrays import Array, copy_of, library_of, not_an_array
from rnnkit.common.numbers import MAX_SIZE
from rnnkit.descriptor.descriptor import RNNDescriptor, check_descriptor
from rnnkit.descriptor.states import concatenate_states, learned_states, split_states
from rnnkit.errors import BackendError, message, wrong_type
from rnnkit.network.arguments import check_call
from rnnkit.network.backends import backend
from rnnkit.network.results import Infer
from rnnkit.network.stream import Stream
from rnnkit.types import Initial, Precision, States

_MAX_INT8_TERMS = 2**31 // 127**2  # the most products of two int8 values whose sum is exact in int32


class Plan(Generic[States]):
    """Packed weights of a network, for inference: immutable and thread-safe.

    :func:`rnnkit.prepare` and ``net.prepare`` make it.

    Attributes
    ----------
    desc : RNNDescriptor
        The network.
    precision : str or None
        As passed to :func:`prepare`; None for full precision.
    packed : object
        The engine's network, for adapters to other libraries: it does not check arguments.
    """

    def __init__(self, desc: RNNDescriptor, w: Any, options: CallOptions) -> None:
        self.desc, self.precision, self._options = desc, options.precision, options
        backend_module = backend("prepare", "plan.infer", desc, w, options)
        self._flat = copy_of(w)  # for pickling
        self._initial_states = partial(learned_states, desc, self._flat)
        arguments = () if self.precision is None else (self.precision,)  # CPU engine only
        self.packed = backend_module.prepare(desc, self._flat, *arguments)
        self._place = REDUCED if self.precision else NUMPY if library_of(w) is np else CUPY
        self._no_step = unsupported(desc, options, "plan.step", self._place)  # checked once: a small step takes 3 us

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(prepare, precision=self.precision)
        return again, (self.desc, self._flat)  # unpickling packs the weights again, for the CPU that it runs on

    def __repr__(self) -> str:
        return f"<Plan of {self.desc}{f', precision={self.precision!r}' if self.precision else ''}>"

    def infer(
        self,
        x: Array,
        hx: Array | None = None,
        cx: Any = None,
        *,
        lengths: Any = None,
        mask: Any = None,
        inputs: Any = None,
        resets: Any = None,
        initial: Initial = "zeros",
    ) -> Infer[States]:
        """Run the network over a batch of sequences, like :func:`rnnkit.infer`. On the CPU results are bit-identical.

        Parameters
        ----------
        x : ndarray (T, N, I), desc.dtype
            Input, time first.
        hx : ndarray (L*D, N, P), optional
            Initial hidden state. None: zeros.
        cx : ndarray (L*D, N, H), optional
            Initial cell state, of an LSTM or a cell with states. None: zeros. A tuple of arrays for several states.
        lengths : array_like (N,) of int, optional
            Length of each sequence, 0..T; the order does not matter. None: T for all.
        mask : array_like (T, N) of bool, integers or floats that are 0 or 1, optional
            0 skips step t of sequence n, as in :func:`rnnkit.forward`.
        inputs : mapping of str to ndarray, optional
            Side inputs, as in :func:`rnnkit.forward`.
        resets : array_like (T, N) of bool, integers or floats that are 0 or 1, optional
            1 resets the state of sequence n before step t, as in :func:`rnnkit.forward`.
        initial : {"zeros", "hx"}, optional
            The state after a reset.

        Returns
        -------
        Infer
            y (T, N, D*P), hy (L*D, N, P), cy (L*D, N, H). cy is None except for LSTM and cells with states.

        Raises
        ------
        TypeError, ValueError
            An argument has the wrong type, dtype, shape or value.
        """
        seq_len, batch_size = check_call("infer", self.desc, x, hx, cx, self.packed.weights)
        arguments = lengths, None, None, None, resets, initial, 0, mask
        options = options_of("infer", self.desc, seq_len, batch_size, *arguments)
        # prepare has checked the network itself; only on a GPU the number of steps matters.
        if not (lengths is resets is mask is None) or self._place is CUPY:
            check("infer", self.desc, options, "plan.infer", self._place)
        x, cx = with_inputs("infer", self.desc, x, inputs), concatenate_states(self.desc, cx)
        if self.desc.learned_initial_state:
            hx, cx = options.steps.start_from(self._initial_states(batch_size), hx, cx)
        y, hy, cy = self.packed.infer(x, hx, cx, options)
        return Infer(y, hy, split_states(self.desc, cy))

    def step(
        self, x: Any, hx: Any = None, cx: Any = None, *, inputs: Any = None, resets: Any = None, mask: Any = None
    ) -> Infer[States]:
        """Run all layers for one time step. On the CPU a loop of steps is bit-identical to :meth:`infer`.

        Parameters
        ----------
        x : ndarray (N, I), desc.dtype
            Input of the step.
        hx : ndarray (L, N, P), optional
            Hidden state before the step. None: zeros, or the network's own.
        cx : ndarray (L, N, H), optional
            Cell state before the step, of an LSTM or a cell with states. None: zeros. A tuple for several states.
        inputs : mapping of str to ndarray, optional
            Side inputs, for a cell that declares them, by name: (N, H) or (N, 1).
        resets : array_like (N,) of bool, integers or floats that are 0 or 1, optional
            1 sets the state of sequence n to zeros, or to the network's own, before the step.
        mask : array_like (N,) of bool, integers or floats that are 0 or 1, optional
            0 skips the step of sequence n: its state stays as it is, and y is that of the last layer's hx.

        Returns
        -------
        Infer
            y (N, P), and the states after the step: hy (L, N, P) and cy (L, N, H). cy is None except for LSTM and cells
            with states.

        Raises
        ------
        TypeError, ValueError
            An argument has the wrong type, dtype, shape or value. Or the network is bidirectional: the reverse
            direction needs the end of the sequence first.

        Examples
        --------
        >>> import numpy as np
        >>> import rnnkit
        >>> plan = rnnkit.GRU(3, 5, seed=0).prepare()
        >>> h = None
        >>> for x in np.ones((7, 4, 3), np.float32):
        ...     y, h, _ = plan.step(x, h)
        >>> y.shape, h.shape
        ((4, 5), (1, 4, 5))
        """
        desc = self.desc
        if self._no_step is not None:
            raise self._no_step.error("step", desc, self._options)
        checks.step("step", x, hx, cx, desc, self.packed.weights)
        anew, skipped = marks_of_step("step", desc, resets, mask, len(x), "plan.step", self._place)
        cx, own = concatenate_states(desc, cx), (None, None)
        if desc.learned_initial_state:
            own = self._initial_states(len(x))
            hx, cx = own[0] if hx is None else hx, own[1] if cx is None else cx
        if anew is not None:
            hx, cx = with_rows(hx, own[0], anew), with_rows(cx, own[1], anew)
        if inputs is not None or desc.inputs_size:
            x = with_inputs("step", desc, x, inputs)
        if len(desc.states) < 2 and skipped is None:
            return Infer(*self.packed.step(x, hx, cx))
        y, hy, cy = self.packed.step(x, hx, cx)
        if skipped is not None:
            y = with_rows(y[None], None if hx is None else hx[-1:], skipped)[0]
            hy, cy = with_rows(hy, hx, skipped), with_rows(cy, cx, skipped)
        return Infer(y, hy, split_states(desc, cy))

    def compiled(self, count: int | None = None) -> np.ndarray:
        """Return a handle with which compiled code runs steps of the network, see :mod:`rnnkit.compiled`.

        Parameters
        ----------
        count : int, optional
            Make so many, for as many threads: an array with one in each row.

        Returns
        -------
        ndarray of int64
            One handle, or (count, ...). It keeps the plan alive; a copy is not valid.

        Raises
        ------
        TypeError, ValueError
            `count` is not a positive integer; or the network has two directions, and no steps.
        BackendError
            The plan is on a GPU.
        """
        check("compiled", self.desc, self._options, "plan.step", self._place)
        if self._place is CUPY:
            raise BackendError(message("compiled", "plan", "be on the CPU", "a plan on a GPU"))
        if count is not None and (isinstance(count, bool) or not isinstance(count, (int, np.integer))):
            raise wrong_type("compiled", "count", "None or an int", count)
        if count is not None and count < 1:
            raise ValueError(message("compiled", "count", "be at least 1", count))
        found = self.packed.handles(1 if count is None else count)
        return found[0] if count is None else found

    def stream(self, num_streams: int) -> Stream:
        """Return a `Stream`, which stores the states of many sequences between calls.

        Parameters
        ----------
        num_streams : int
            S, the number of sequences, at least 1.

        Returns
        -------
        Stream
            All states are zeros, on the device of the weights.

        Raises
        ------
        TypeError, ValueError
            `num_streams` is not an int from 1 to 2**31 - 1, or the network is bidirectional.
        """
        if isinstance(num_streams, bool) or not isinstance(num_streams, (int, np.integer)):
            raise wrong_type("stream", "num_streams", "an int", num_streams)
        if not 1 <= num_streams <= MAX_SIZE:
            expected = "be at least 1" if num_streams < 1 else f"be at most {MAX_SIZE}"
            raise ValueError(message("stream", "num_streams", expected, num_streams))
        check("stream", self.desc, self._options, "stream.step", self._place)
        return Stream(self, self.packed, int(num_streams), self._place, self._initial_states)


def prepare(desc: RNNDescriptor, w: Array, *, precision: Precision | None = None) -> Plan[Any]:
    """Copy and pack the weights once, for many inference calls.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    w : ndarray (num_weights,), desc.dtype
        The flat weight buffer. Later changes of it do not affect the plan.
    precision : {"bfloat16", "bfloat16-native", "int8"}, optional
        Quantize the packed weights of a float32 network on the CPU, to a half or a quarter of the bytes. States and
        activations stay float32. None: full precision.

    Returns
    -------
    Plan
        The packed weights, with the methods ``infer``, ``step`` and ``stream``.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type, dtype, shape or value, or the CPU lacks the instruction of "bfloat16-native".
    BackendError
        `precision` is given with weights on a GPU.

    Notes
    -----
    bfloat16: weights, x, h and other factors are rounded to the nearest number with 8 significant bits; magnitudes
    below 2^-56 become 0. Sums are float32. Results are bit-identical on every CPU with fused multiply-add.

    bfloat16-native: the same factors, multiplied by the CPU's own dot product of bfloat16 (AVX-512 BF16 or ARM's
    bfdot), which adds in another order. For AMD since Zen 4; slower than bfloat16 on Intel. Results are bit-identical
    only among CPUs with the same instruction.

    int8: each row of a weight matrix has a scale, its largest magnitude / 127. The factors are quantized dynamically:
    they have a scale for each sequence and step. The sums are exact, so results are bit-identical on every CPU. A row
    of x or h with an infinity or NaN gives NaN.

    As in full precision, results depend neither on the number of threads nor on the other sequences of the batch, and
    `infer` is bit-identical to a loop of `step`.

    Examples
    --------
    >>> import numpy as np
    >>> import rnnkit
    >>> desc = rnnkit.RNNDescriptor("gru", 3, 5)
    >>> plan = prepare(desc, rnnkit.init_weights(desc, seed=0))
    >>> plan.step(np.ones((4, 3), np.float32)).y.shape
    (4, 5)
    """
    return Plan(desc, w, checked_options(desc, w, precision))


def checked_options(desc: RNNDescriptor, w: Any, precision: Precision | None) -> CallOptions:
    """Check the arguments of `prepare`, and return its options."""
    check_descriptor("prepare", desc)
    if library_of(w) is None:
        raise not_an_array("prepare", "w", "a numpy.ndarray or a cupy.ndarray", w)
    checks.weights("prepare", w, desc, w)
    options = options_of("prepare", desc, 0, 0, precision=precision)
    if precision is not None:
        size = max(desc.input_size, desc.hidden_size, desc.num_directions * desc.output_size)
        if precision == "int8" and size > _MAX_INT8_TERMS:
            expected = f"be None or bfloat16 for sizes above {_MAX_INT8_TERMS}"
            raise ValueError(message("prepare", "precision", expected, f"'int8' and the size {size}"))
        check("prepare", desc, options, "plan.infer", REDUCED)
    return options
