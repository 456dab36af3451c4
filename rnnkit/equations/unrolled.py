"""A whole network as a function of arrays: a loop over layers, directions and steps around `step`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call import checks
from rnnkit.descriptor.descriptor import RNNDescriptor, check_descriptor
from rnnkit.descriptor.weights import suffix_of, weight_layout
from rnnkit.equations.namespaces import namespace
from rnnkit.equations.step import step


class Unrolled(NamedTuple):
    """Results of a function of `unrolled`: y (T, N, D*P), hy (L*D, N, P), cy (L*D, N, H), a tuple of such, or None."""

    y: Any
    hy: Any
    cy: Any


def unrolled(desc: RNNDescriptor, backend: str) -> Callable[..., Unrolled]:
    """Return a whole network as a pure function of arrays, which the library can differentiate.

    It is the plain reference of :func:`rnnkit.forward` and :func:`rnnkit.infer`: a loop in Python, slower than these by
    far, for what they do not have: second derivatives, per-sample gradients, forward-mode differentiation, other
    devices.

    Parameters
    ----------
    desc : RNNDescriptor
        The network. Its dropout applies only to the `masks` that are given.
    backend : {"numpy", "torch", "jax"}
        The library of the arrays.

    Returns
    -------
    callable
        ``f(weights, x, hx=None, cx=None, *, lengths=None, mask=None, resets=None, initial="zeros", inputs=None,
        masks=None, noises=None) -> Unrolled(y, hy, cy)``, with the arguments of :func:`rnnkit.forward`. `weights` is
        the flat buffer, or a mapping of the names of :func:`rnnkit.weight_layout` to arrays. `masks` are the scaled
        dropout masks (T, N, D*P) of the outputs of all layers but the last; None drops nothing. `noises` are the random
        numbers of a cell by name, for each pseudo-layer: (L*D, N, H), or (L*D, T, N, H) if drawn at each step; None is
        their expectation.

    Raises
    ------
    TypeError, ValueError
        `desc` is not a descriptor, `backend` is unknown, or as for :func:`step`.

    Examples
    --------
    >>> import numpy as np
    >>> import rnnkit
    >>> from rnnkit.cells import unrolled
    >>> net = rnnkit.GRU(3, 5, num_layers=2, bidirectional=True, dtype="float64", seed=0)
    >>> x = np.ones((7, 4, 3))
    >>> found = unrolled(net.desc, "numpy")(net.weights, x, lengths=[7, 0, 3, 5])
    >>> bool(np.abs(found.y - net.infer(x, lengths=[7, 0, 3, 5]).y).max() < 1e-12)
    True
    """
    check_descriptor("unrolled", desc)
    run_step, space = step(desc, backend), namespace("unrolled", backend)
    per_step = {one.name for one in desc.cell.declaration.noises if one.per_step}

    def run(
        weights: Any,
        x: Any,
        hx: Any = None,
        cx: Any = None,
        *,
        lengths: Any = None,
        mask: Any = None,
        resets: Any = None,
        initial: str = "zeros",
        inputs: Any = None,
        masks: Any = None,
        noises: Any = None,
    ) -> Unrolled:
        named = weights if isinstance(weights, Mapping) else _views(desc, weights)
        seq_len, batch_size = x.shape[:2]
        shape, is_to_hx = (seq_len, batch_size), checks.initial("unrolled", initial, resets)
        lengths, mask, resets = (None if one is None else np.asarray(one) for one in (lengths, mask, resets))
        lengths = checks.lengths("unrolled", lengths, *shape)
        within = np.arange(seq_len)[:, None] < (np.full(batch_size, seq_len) if lengths is None else lengths)
        listed = within if mask is None else within & checks.marks("unrolled", "mask", mask, *shape)
        anew = np.zeros(shape, bool) if resets is None else within & checks.marks("unrolled", "resets", resets, *shape)
        checks.no_reset_is_skipped("unrolled", anew, listed, lengths)
        starts = _starts(desc, space, named, x, hx, cx)
        restarts = starts if is_to_hx else _starts(desc, space, named, x, None, None)
        batch = _Batch(space, run_step, within, listed, anew)
        finals: list[tuple[Any, ...]] = []
        for layer in range(desc.num_layers):
            if layer > 0 and masks is not None:
                x = x * masks[layer - 1]
            outputs = []
            for direction in range(desc.num_directions):
                row, own = layer * desc.num_directions + direction, _of_layer(named, suffix_of(layer, direction))
                drawn = {name: one[row] for name, one in (noises or {}).items()}
                sides = _Sides(inputs or {}, drawn, per_step)
                y, last = batch.run(own, x, starts[row], restarts[row], sides, direction == 1)
                outputs.append(y)
                finals.append(last)
            x = outputs[0] if len(outputs) == 1 else space.concatenate(outputs, -1)
        hy, *others = (space.stack([one[state] for one in finals]) for state in range(1 + len(desc.states)))
        return Unrolled(x, hy, None if not others else others[0] if len(others) == 1 else tuple(others))

    return run


class _Sides(NamedTuple):
    """Side inputs and random numbers of a pseudo-layer."""

    inputs: Mapping[str, Any]
    noises: Mapping[str, Any]
    per_step: set[str]

    def at(self, t: int) -> dict[str, dict[str, Any]]:
        inputs = {name: one[t] if len(one.shape) == 3 else one for name, one in self.inputs.items()}
        noises = {name: one[t] if name in self.per_step else one for name, one in self.noises.items()}
        return {"inputs": inputs, "noises": noises}


class _Batch(NamedTuple):
    """Which steps of a batch run, and how."""

    space: Any
    run_step: Callable[..., tuple[Any, ...]]
    within: np.ndarray  # (T, N): not beyond the length
    listed: np.ndarray  # of these, not skipped
    anew: np.ndarray  # (T, N): the state is reset before the step

    def run(
        self, weights: Any, x: Any, start: Any, restart: Any, sides: _Sides, reverse: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        """Run one direction of a layer; return y (T, N, P) and the last states."""
        states, found, pending = start, [], np.zeros(self.listed.shape[1], bool)
        steps = range(len(self.listed))
        for t in reversed(steps) if reverse else steps:
            listed = self.listed[t]
            pending |= self.anew[t] & (not reverse)
            before = self._chosen(pending & listed, restart, states)
            states = self._chosen(listed, self.run_step(weights, x[t], *before, **sides.at(t)), states)
            pending = (pending & ~listed) | (self.anew[t] & reverse)  # of the reverse direction: before the next step
            found.append(self._chosen(self.within[t], states[:1], (states[0] * 0,))[0])
        return (self.space.stack(found[::-1] if reverse else found) if found else start[0][None][:0]), states

    def _chosen(self, rows: np.ndarray, states: Any, others: Any) -> tuple[Any, ...]:
        """Return the states in these rows, others elsewhere."""
        if rows.all() or not rows.any():
            return tuple(states if rows.any() else others)
        condition = self.space.asarray(rows[:, None], states[0])
        return tuple(self.space.where(condition, one, other, one) for one, other in zip(states, others, strict=True))


def _starts(desc: RNNDescriptor, space: Any, named: Mapping[str, Any], x: Any, hx: Any, cx: Any) -> list[Any]:
    """Return the initial states of each pseudo-layer: given, the network's own, or zeros."""
    given = [hx, *(cx if isinstance(cx, (tuple, list)) else [cx] * len(desc.states))]
    sizes, found = (desc.output_size, *[desc.hidden_size] * len(desc.states)), []
    for row in range(desc.num_pseudo_layers):
        suffix, states = suffix_of(*divmod(row, desc.num_directions)), []
        for name, one, size in zip(("h", *desc.states), given, sizes, strict=True):
            own = named.get(f"{name}0{suffix}", 0)
            states.append(one[row] if one is not None else space.zeros((x.shape[1], size), x) + own)
        found.append(tuple(states))
    return found


def _of_layer(named: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    """Return the blocks of a pseudo-layer, by name without its suffix."""
    return {name.removesuffix(suffix): one for name, one in named.items() if name.endswith(suffix)}


def _views(desc: RNNDescriptor, w: Any) -> dict[str, Any]:
    return {name: w[start : start + int(np.prod(shape))].reshape(shape) for name, shape, start in weight_layout(desc)}
