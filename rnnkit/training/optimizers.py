"""Optimizers on flat buffers, in place. Their kernels are imported on the first step, because they import Numba."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from numbers import Real
from typing import Any

import numpy as np

from rnnkit.common.arrays import Array, library_of, not_an_array, on_host
from rnnkit.errors import message, wrong_type
from rnnkit.training import arguments
from rnnkit_kernels.machine.imports import imported


class _Optimizer:
    """Arrays of parameters, their weight decay, and moments of their gradients; each moment is one flat array.

    A moment covers all parameters in order, so that the saved state does not depend on how they are split into arrays.
    """

    def __init__(self, parameters: Any, weight_decay: Any, *moments: str):
        self._name = type(self).__name__
        self._parameters = [array for _, array in arguments.outputs(self._name, "parameters", parameters)]
        self._is_one = library_of(parameters) is not None
        self._decays = self._checked_decays(weight_decay)
        ends = list(accumulate(array.size for array in self._parameters))
        self._slices = [slice(stop - array.size, stop) for array, stop in zip(self._parameters, ends, strict=True)]
        self._library: Any = library_of(self._parameters[0])
        self._moments = {name: self._library.zeros(ends[-1], self._parameters[0].dtype) for name in moments}

    def _checked_decays(self, value: Any) -> list[float]:
        if isinstance(value, Real):
            return [arguments.finite(self._name, "weight_decay", value)] * len(self._parameters)
        is_list = isinstance(value, np.ndarray) and value.ndim == 1 or isinstance(value, Sequence)
        if not is_list or isinstance(value, (str, bytes)):
            raise wrong_type(self._name, "weight_decay", "a number, or a sequence of one for each array", value)
        if len(value) != len(self._parameters):
            expected = f"hold one number for each of {len(self._parameters)} arrays"
            raise ValueError(message(self._name, "weight_decay", expected, len(value)))
        return [arguments.finite(self._name, f"weight_decay[{i}]", decay) for i, decay in enumerate(value)]

    def _checked_rate(self, learning_rate: Any, factor: float = 1.0) -> float:
        """Check that a rate, also times a factor or a decay, is finite in the dtype: infinity times 0 is NaN."""
        rate, w = arguments.finite("step", "learning_rate", learning_rate), self._parameters[0]
        most = arguments.dtype_max(w) / max(1.0, factor, *self._decays)
        if rate > most:
            raise ValueError(message("step", "learning_rate", f"be at most {most} in {w.dtype}", learning_rate))
        return rate

    def _buffers(self, gradients: Any, rate: float) -> list[tuple[Array, Array, list[Array], float]]:
        """Check a step's gradients; return for each buffer (buffer, gradient, moments, 1 - rate*decay)."""
        found = arguments.buffers("step", "gradients", gradients)
        is_one = library_of(gradients) is not None
        if is_one != self._is_one or len(found) != len(self._parameters):
            expected = "be one array" if self._is_one else f"be a sequence of {len(self._parameters)} arrays"
            got = "one array" if is_one else f"a sequence of {len(found)}"
            raise ValueError(message("step", "gradients", f"{expected} like the parameters", got))
        buffers = []
        for w, (name, dw), part, decay in zip(self._parameters, found, self._slices, self._decays, strict=True):
            arguments.check_like("step", name, dw, w, "the array of parameters", w.shape, "to match its parameters")
            moments = [moment[part] for moment in self._moments.values()]
            buffers.append((w.reshape(-1), dw.reshape(-1), moments, 1 - rate * decay))
        return buffers

    def step(self, gradients: Array | Sequence[Array], learning_rate: float) -> None:
        """Update the parameters, one step against the gradients.

        Parameters
        ----------
        gradients : ndarray or sequence of ndarray
            One for each array of parameters, with its shape and dtype, C-contiguous.
        learning_rate : float
            At least 0, and finite in the parameters' dtype.

        Raises
        ------
        TypeError, ValueError
            An argument is wrong. Nothing is changed then.
        """
        raise NotImplementedError

    @property
    def state(self) -> dict[str, np.ndarray]:
        """State for `restore`: copies on the host, by name."""
        return {name: np.array(on_host(moment)) for name, moment in self._moments.items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore a saved state; later steps are bit-identical.

        Parameters
        ----------
        state : mapping of str to ndarray
            The `state` of an optimizer with the same class, settings and parameters; it is copied.

        Raises
        ------
        TypeError, ValueError
            The state belongs to a different optimizer. Nothing is changed then.
        """
        expected = self.state
        if not isinstance(state, Mapping):
            raise wrong_type("restore", "state", "a mapping of names to arrays", state)
        if set(state) != set(expected):
            names = f"hold {sorted(expected)}, as of {self._name} with these settings"
            raise ValueError(message("restore", "state", names, sorted(map(str, state))))
        for name, own in expected.items():
            found = state[name]
            if not isinstance(found, np.ndarray):
                raise not_an_array("restore", f"state[{name!r}]", "a numpy.ndarray", found)
            if found.dtype != own.dtype:
                raise TypeError(message("restore", f"state[{name!r}]", f"be {own.dtype}", found.dtype))
            arguments.same_shape("restore", f"state[{name!r}]", found, own.shape, "to match the parameters")
        self._take(state)

    def _take(self, state: Mapping[str, np.ndarray]) -> None:
        for name, moment in self._moments.items():
            moment[...] = self._library.asarray(state[name])


class Adam(_Optimizer):
    """Adam with decoupled weight decay (AdamW), in place.

    Parameters
    ----------
    parameters : ndarray or sequence of ndarray, float32 or float64
        Of any shapes, C-contiguous, of one dtype; kept by reference and changed by every step. Views of one buffer are
        fine, unless they overlap.
    beta1, beta2 : float
        Decay rates of the means of the gradient and of its square, 0 <= beta < 1.
    epsilon : float
        Added to the square root of the corrected mean of squares, as in PyTorch. epsilon * sqrt(1 - beta2), rounded to
        the dtype, must be above 0: with the default beta2, epsilon is at least 4.4e-44 in float32.
    weight_decay : float or sequence of float
        Decoupled weight decay: a step multiplies the parameters by 1 - learning_rate*weight_decay. One number for all
        arrays, or one for each.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.

    Notes
    -----
    Algorithm 1 of arXiv 1412.6980 and algorithm 2 of arXiv 1711.05101: with t the number of the step from 1,

        mean   = beta1*mean + (1 - beta1)*gradient
        square = beta2*square + (1 - beta2)*gradient**2
        parameters -= learning_rate*weight_decay*parameters
        parameters -= learning_rate * mean/(1 - beta1**t) / (sqrt(square/(1 - beta2**t)) + epsilon)

    A gradient of NaN or infinity makes its parameters NaN: check the norm that
    :func:`rnnkit.training.clip_gradient_norm` returns.

    Examples
    --------
    >>> import numpy as np
    >>> w = np.array([1.0, -2.0])
    >>> optimizer = Adam(w, weight_decay=0.01)
    >>> for _ in range(1000):
    ...     optimizer.step(2 * w, learning_rate=0.01)
    >>> bool(np.abs(w).max() < 1e-3)
    True
    >>> {name: array.shape for name, array in optimizer.state.items()}
    {'mean': (2,), 'square': (2,), 'steps': ()}
    """

    def __init__(
        self,
        parameters: Array | Sequence[Array],
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float | Sequence[float] = 0.0,
    ) -> None:
        self._beta1 = arguments.number("Adam", "beta1", beta1, "be in 0 <= beta1 < 1", _is_share)
        self._beta2 = arguments.number("Adam", "beta2", beta2, "be in 0 <= beta2 < 1", _is_share)
        positive = "be a finite number above 0"
        self._epsilon = arguments.number("Adam", "epsilon", epsilon, positive, lambda value: 0 < value < math.inf)
        super().__init__(parameters, weight_decay, "mean", "square")
        self._check_epsilon(epsilon)
        self._steps = 0

    def _check_epsilon(self, given: float) -> None:
        """Check that epsilon * sqrt(1 - beta2) does not underflow: in the first step a gradient of 0 would give 0/0."""
        dtype, root = self._parameters[0].dtype, math.sqrt(1 - self._beta2)
        least = float(np.nextafter(dtype.type(0), dtype.type(1)))  # above 0
        if self._epsilon * root <= least / 2:  # rounds to 0
            expected = f"be at least {least / root:.2g} in {dtype} with beta2={self._beta2}"
            raise ValueError(message("Adam", "epsilon", expected, given))

    def step(self, gradients: Array | Sequence[Array], learning_rate: float) -> None:
        steps = self._steps + 1
        # Both bias corrections are folded into two scalars, as at the end of section 2 of the paper.
        root, share = math.sqrt(1 - _power(self._beta2, steps)), 1 - _power(self._beta1, steps)
        given = self._checked_rate(learning_rate, root / share)
        buffers = self._buffers(gradients, given)
        self._steps, rate = steps, given * root / share
        factors = self._beta1, self._beta2, rate, self._epsilon * root
        if self._library is not np:
            for w, dw, (mean, square), keep in buffers:
                _adam_on_gpu(w, dw, mean, square, *factors, keep)
            return
        kernels = _kernels()
        small = kernels.small_numbers(self._parameters[0].dtype, self._beta2, self._epsilon)
        for w, dw, (mean, square), keep in buffers:
            kernels.adam(w, dw, mean, square, *factors, keep, small)

    @property
    def state(self) -> dict[str, np.ndarray]:
        """State for `restore`: copies of "mean" and "square" of all parameters in order, and the number of "steps"."""
        return super().state | {"steps": np.array(self._steps, np.int64)}

    def _take(self, state: Mapping[str, np.ndarray]) -> None:
        if state["steps"] < 0:
            raise ValueError(message("restore", "state['steps']", "be at least 0", state["steps"]))
        super()._take(state)
        self._steps = int(state["steps"])


class SGD(_Optimizer):
    """Stochastic gradient descent with momentum and decoupled weight decay, in place.

    Parameters
    ----------
    parameters : ndarray or sequence of ndarray, float32 or float64
        Of any shapes, C-contiguous, of one dtype; kept by reference and changed by every step. Views of one buffer are
        fine, unless they overlap.
    momentum : float
        0 <= momentum < 1; with 0 the optimizer has no state.
    nesterov : bool
        Use Nesterov momentum; needs momentum > 0.
    weight_decay : float or sequence of float
        Decoupled weight decay: a step multiplies the parameters by 1 - learning_rate*weight_decay. One number for all
        arrays, or one for each.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.

    Notes
    -----
    As in PyTorch, except that weight decay is not part of the gradient (arXiv 1711.05101, algorithm 1):

        velocity = momentum*velocity + gradient
        parameters -= learning_rate*weight_decay*parameters
        parameters -= learning_rate*velocity                            (nesterov=False)
        parameters -= learning_rate*(gradient + momentum*velocity)      (nesterov=True)

    Examples
    --------
    >>> import numpy as np
    >>> w = np.array([1.0, -2.0])
    >>> optimizer = SGD(w, momentum=0.5)
    >>> optimizer.step(2 * w, learning_rate=0.1)
    >>> optimizer.step(2 * w, learning_rate=0.1)
    >>> w.round(3).tolist()
    [0.54, -1.08]
    """

    def __init__(
        self,
        parameters: Array | Sequence[Array],
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float | Sequence[float] = 0.0,
    ) -> None:
        self._momentum = arguments.number("SGD", "momentum", momentum, "be in 0 <= momentum < 1", _is_share)
        if not isinstance(nesterov, (bool, np.bool_)):
            raise wrong_type("SGD", "nesterov", "a bool", nesterov)
        if nesterov and not self._momentum:
            raise ValueError(message("SGD", "nesterov", "be False with momentum=0", nesterov, "give a momentum"))
        self._nesterov = bool(nesterov)
        super().__init__(parameters, weight_decay, *(["velocity"] if self._momentum else []))

    def step(self, gradients: Array | Sequence[Array], learning_rate: float) -> None:
        rate = self._checked_rate(learning_rate)
        on_gpu = self._library is not np
        for w, dw, moments, keep in self._buffers(gradients, rate):
            if not self._momentum:
                move = _descent_on_gpu if on_gpu else _kernels().descent
                move(w, dw, rate, keep)
            else:
                move = _momentum_descent_on_gpu if on_gpu else _kernels().momentum_descent
                move(w, dw, *moments, self._momentum, self._nesterov, rate, keep)


def _power(base: float, exponent: int) -> float:
    """Return base**exponent by squaring, because the pow functions of C libraries differ in the last bits."""
    result = 1.0
    while exponent:
        if exponent % 2:
            result *= base
        base, exponent = base * base, exponent // 2
    return result


def _is_share(value: float) -> bool:
    return 0 <= value < 1


def _kernels() -> Any:
    return imported("rnnkit_kernels.training")


# CuPy versions of the kernels.


def _adam_on_gpu(w, dw, mean, square, beta1, beta2, rate, epsilon, keep):
    mean *= beta1
    mean += (1 - beta1) * dw
    square *= beta2
    square += (1 - beta2) * (dw * dw)
    _descent_on_gpu(w, mean / (square**0.5 + epsilon), rate, keep)


def _momentum_descent_on_gpu(w, dw, velocity, momentum, nesterov, rate, keep):
    velocity *= momentum
    velocity += dw
    _descent_on_gpu(w, dw + momentum * velocity if nesterov else velocity, rate, keep)


def _descent_on_gpu(w, dw, rate, keep):
    w *= keep
    w -= rate * dw
