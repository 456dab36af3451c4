"""A whole network as a function of arrays: a loop over layers, directions and steps around `step`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call import checks
from rnnkit.descriptor.descriptor import RNNDescriptor, check_descriptor
from rnnkit.descriptor.weights import suffix_of, weight_layout
from rnnkit.equations.namespaces import namespace
from rnnkit.equations.step import Multiplied, multiplied, step
from rnnkit.errors import wrong_shape


class Unrolled(NamedTuple):
    """Results of a function of `unrolled`: y (T, N, D*P), hy (L*D, N, P), cy (L*D, N, H), a tuple of such, or None.

    With `all_states`, `states` is a tuple of arrays like hy and cy for each step, (T, L*D, N, ...); 0 beyond a
    sequence's length.
    """

    y: Any
    hy: Any
    cy: Any
    states: tuple[Any, ...] = ()


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
        masks=None, noises=None, all_states=False) -> Unrolled(y, hy, cy, states)``, with the arguments of
        :func:`rnnkit.forward`. `weights` is the flat buffer, or a mapping of the names of :func:`rnnkit.weight_layout`
        to arrays. In a transform, as `vmap`, `lengths`, `mask` and `resets` may be arrays of the library, too; their
        values are then not checked. `masks` are the scaled dropout masks (T, N, D*P) of the outputs of all layers but
        the last; None drops nothing. `noises` are the random numbers of a cell by name, for each pseudo-layer:
        (L*D, N, H), or (L*D, T, N, H) if drawn at each step; None is their expectation.

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
        all_states: bool = False,
    ) -> Unrolled:
        named = weights if isinstance(weights, Mapping) else _views(desc, weights)
        is_to_hx = checks.initial("unrolled", initial, resets)
        within, listed, anew = _steps_of(space, x, lengths, mask, resets)
        x, sides = (_without_skipped(space, listed, one) for one in (x, inputs or {}))
        starts = _starts(desc, space, named, x, hx, cx)
        restarts = starts if is_to_hx else _starts(desc, space, named, x, None, None)
        batch = _Batch(space, run_step, within, listed, anew)
        finals: list[tuple[Any, ...]] = []
        of_steps: list[tuple[Any, ...]] = []
        for layer in range(desc.num_layers):
            if layer > 0 and masks is not None:
                x = x * masks[layer - 1]
            outputs = []
            for direction in range(desc.num_directions):
                row, own = layer * desc.num_directions + direction, _of_layer(named, suffix_of(layer, direction))
                drawn = {name: one[row] for name, one in (noises or {}).items()}
                beside = _sides(sides, drawn, per_step)
                states, last = batch.run(own, x, starts[row], restarts[row], beside, direction == 1, all_states)
                outputs.append(states[0])
                finals.append(last)
                of_steps.append(states)
            x = outputs[0] if len(outputs) == 1 else space.concatenate(outputs, -1)
        hy, *others = (space.stack([one[state] for one in finals]) for state in range(1 + len(desc.states)))
        cy = None if not others else others[0] if len(others) == 1 else tuple(others)
        each = tuple(space.stack(rows, 1) for rows in zip(*of_steps, strict=True)) if all_states else ()
        return Unrolled(x, hy, cy, each)

    return run


class _Sides(NamedTuple):
    """Side inputs and random numbers of a pseudo-layer, the same at all steps, or (T, N, ...) in `each`."""

    fixed: dict[str, dict[str, Any]]  # "inputs" and "noises"
    each: list[tuple[str, str]]  # which of both, and its name
    arrays: list[Any]  # of these

    def at(self, values: Sequence[Any]) -> dict[str, dict[str, Any]]:
        """Return those of a step, whose `arrays` have these values."""
        found = {kind: dict(own) for kind, own in self.fixed.items()}
        for (kind, name), value in zip(self.each, values, strict=True):
            found[kind][name] = value
        return found


def _sides(inputs: Mapping[str, Any], noises: Mapping[str, Any], per_step: set[str]) -> _Sides:
    fixed: dict[str, dict[str, Any]] = {"inputs": {}, "noises": {}}
    each, arrays = [], []
    for kind, values in (("inputs", inputs), ("noises", noises)):
        for name, one in values.items():
            if len(one.shape) == 3 if kind == "inputs" else name in per_step:
                each.append((kind, name))
                arrays.append(one)
            else:
                fixed[kind][name] = one
    return _Sides(fixed, each, arrays)


def _steps_of(space: Any, x: Any, lengths: Any, mask: Any, resets: Any) -> tuple[Any, Any, Any]:
    """Return which steps, (T, N) bool, are within the lengths, of these not skipped, and reset before.

    They are NumPy's, or of the library if a value is not known, as in a transform.
    """
    shape, given = tuple(x.shape[:2]), {"lengths": lengths, "mask": mask, "resets": resets}
    given = {name: space.values(one) for name, one in given.items() if one is not None}
    if all(isinstance(one, np.ndarray) for one in given.values()):
        lengths = checks.lengths("unrolled", given.get("lengths"), *shape)
        mask, resets = (checks.marks("unrolled", name, given.get(name), *shape) for name in ("mask", "resets"))
        of_library = lambda one: one  # noqa: E731
    else:
        of_library = lambda one: space.asarray(one, x)  # noqa: E731
        for name, one in given.items():
            dims = ("batch_size",) if name == "lengths" else ("seq_len", "batch_size")
            if tuple(one.shape) != (wanted := shape[-len(dims) :]):
                raise wrong_shape("unrolled", name, wanted, dims, tuple(one.shape))
        known = {name: of_library(one) for name, one in given.items()}
        lengths, mask, resets = (
            known.get("lengths"),
            *(known[one] != 0 if one in known else None for one in ("mask", "resets")),
        )
    steps, every = of_library(np.arange(shape[0])[:, None]), of_library(np.ones(shape, bool))
    within = every if lengths is None else steps < lengths
    listed = within if mask is None else within & mask
    anew = ~every if resets is None else within & resets
    if isinstance(listed, np.ndarray):
        checks.no_reset_is_skipped("unrolled", anew, listed, lengths)
    return within, listed, anew


def _without_skipped(space: Any, listed: Any, values: Any) -> Any:
    """Return x or the side inputs, by name, with 0 at steps that do not run: what stands there has no effect."""
    if isinstance(values, Mapping):
        return {name: _without_skipped(space, listed, one) for name, one in values.items()}
    if len(values.shape) < 3 or (isinstance(listed, np.ndarray) and listed.all()):
        return values
    return space.where(space.asarray(listed[..., None], values), values, 0, values)


class _Batch(NamedTuple):
    """Which steps of a batch run, and how. The marks are NumPy's, or of the library if their values are not known."""

    space: Any
    run_step: Callable[..., tuple[Any, ...]]
    within: Any  # (T, N): not beyond the length
    listed: Any  # of these, not skipped
    anew: Any  # (T, N): the state is reset before the step

    def run(
        self, weights: Any, x: Any, start: Any, restart: Any, sides: _Sides, reverse: bool, all_states: bool
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Run one direction of a layer; return the states after each step, (T, N, ...), and the last ones.

        Without `all_states` the former is only h.
        """
        count, shown = self.run_step.num_products, slice(None) if all_states else slice(1)  # type: ignore[attr-defined]
        rows = multiplied(self.space, weights, x, count) if count else x
        zeros = tuple(self.space.zeros(one.shape, one) for one in start[shown])

        def step(states: Any, row: Any, *values: Any) -> Any:
            return self.run_step(weights, Multiplied(row), *states, **sides.at(values))

        def plain(states: Any, row: Any, *values: Any) -> tuple[Any, Any]:
            states = step(states, row, *values)
            return states, states[shown]

        def marked(carry: Any, row: Any, within: Any, listed: Any, anew: Any, *values: Any) -> tuple[Any, Any]:
            states, pending = carry
            due = pending if reverse else pending | anew
            before = self._chosen(due & listed, restart, states)
            states = self._chosen(listed, step(before, row, *values), states)
            pending = due & ~listed  # a reset at a skipped step is due at the next one that runs
            return (states, pending | anew if reverse else pending), self._chosen(within, states[shown], zeros)

        if isinstance(self.listed, np.ndarray) and self.listed.all() and not self.anew.any():
            states, found = self.space.scan(plain, start, [rows, *sides.arrays], reverse)
        else:
            marks, nothing = [self.within, self.listed, self.anew], np.zeros(x.shape[1], bool)
            carry = start, nothing if isinstance(self.listed, np.ndarray) else self.space.asarray(nothing, x)
            (states, _), found = self.space.scan(marked, carry, [rows, *marks, *sides.arrays], reverse)
        return found or tuple(one[None][:0] for one in start[shown]), states

    def _chosen(self, rows: Any, states: Any, others: Any) -> tuple[Any, ...]:
        """Return the states in these rows, others elsewhere."""
        if isinstance(rows, np.ndarray) and (rows.all() or not rows.any()):
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
