"""One step of a cell as a function of arrays: its products, phase by phase, and its equations between them."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.modes import checked
from rnnkit.descriptor.weights import check_names
from rnnkit.equations.namespaces import namespace
from rnnkit.equations.printer import LIKE, Printer
from rnnkit.errors import wrong_type

_NUMBERS = count()


def step(cell: Any, backend: str) -> Callable[..., tuple[Any, ...]]:
    """Return one step of a cell as a pure function of arrays, which the library can differentiate.

    Parameters
    ----------
    cell : str, cell or RNNDescriptor
        A mode, a cell with its parameters, or a descriptor for one with options (`cell_clip`, `reset_after`).
    backend : {"numpy", "torch", "jax"}
        The library of the arrays.

    Returns
    -------
    callable
        ``f(weights, x, h, *states, inputs=None, noises=None) -> (h, *states)``. `weights` maps the names of
        :func:`rnnkit.weight_layout`, without ``_l0``, to arrays; biases may be missing. x is (N, I), h (N, P), the
        other states and the side inputs `inputs` (N, H). `noises` are the random numbers, by name; None is their
        expectation. Its attribute `source` is its code.

    Raises
    ------
    TypeError
        `cell` is not a cell; or it calls a function that has no form for the backend: give it by
        ``@derivative(function, torch=...)``.
    ValueError
        `backend` or `cell` is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from rnnkit.cells import step
    >>> print(step("gru", "numpy").source)
    def step(weights, x, h_prev, inputs, noises):
        r, z, n = product_of_input(weights, x, 3)
        r_h, z_h, q = product_of_state(weights, h_prev, 0, 3, 3, 1)
        r = r + r_h
        z = z + z_h
        r, z = sigmoid(r), sigmoid(z)
        n1 = tanh(fma(r, q, n))
        n, h = n1, fma(z, h_prev, (1 - z) * n1)
        return projected(weights, h),
    <BLANKLINE>
    >>> weights = {"weight_ih": np.ones((6, 3)), "weight_hh": np.ones((6, 2))}
    >>> h, = step("gru", "numpy")(weights, np.ones((4, 3)), np.zeros((4, 2)))
    >>> h.shape
    (4, 2)
    """
    own = _cell_of(cell)
    return _step(own, backend)


def _cell_of(cell: Any) -> Any:
    if isinstance(cell, RNNDescriptor):
        return cell.cell
    found = checked("step", cell, "cell")
    return RNNDescriptor(found, 1, 1).cell if isinstance(found, str) else found


@lru_cache(128)
def _step(cell: Any, backend: str) -> Callable[..., tuple[Any, ...]]:
    declaration = cell.declaration.as_written or cell.declaration
    printer = Printer("step", cell, backend)
    lines, states = _lines(declaration, printer)
    arguments = ", ".join(["weights", "x", LIKE, *(f"{name}_prev" for name in states), "inputs", "noises"])
    source = f"def step({arguments}):\n    " + "\n    ".join(lines) + "\n"
    file = f"<step of {type(cell).__name__} for {backend} {next(_NUMBERS)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    space, made = namespace("step", backend), {}
    shared = {"product_of_input": _product_of_input(space), "product_of_state": _product_of_state(space)}
    shared |= {"projected": _projected}
    exec(compile(source, file, "exec"), printer.globals | shared, made)  # noqa: S102  the source above
    written, expectations = made["step"], _expectations(cell)
    names = [one.name for one in declaration.inputs]

    def call(
        weights: Mapping[str, Any], x: Any, h: Any, *states: Any, inputs: Any = None, noises: Any = None
    ) -> tuple[Any, ...]:
        if not isinstance(weights, Mapping):
            raise wrong_type("step", "weights", "a mapping of names to arrays", weights)
        check_names("step", "inputs", f"the side inputs {', '.join(names) or '(none)'}", names, inputs or {})
        check_names(
            "step",
            "noises",
            f"the noises {', '.join(expectations) or '(none)'}",
            [*expectations],
            expectations | (noises or {}),
        )
        return written(weights, x, h, *states, inputs or {}, expectations | (noises or {}))

    call.source, call.num_products = source, len(declaration.input_gates)  # type: ignore[attr-defined]
    return call


def _expectations(cell: Any) -> dict[str, float]:
    """Return what inference has in place of the random numbers: the rate of a choice, else 1."""
    return {one.name: float(getattr(cell, one.rate)) if one.choice else 1.0 for one in cell.declaration.noises}


def _lines(declaration: Any, printer: Printer) -> tuple[list[str], tuple[str, ...]]:
    states, lines = declaration.states, []
    of_w = [gate.name for gate in declaration.input_gates]
    of_r = list(declaration.recurrent_gates)
    names = {*of_w, *(name for stage in declaration.equations for name in (*stage.reads, *stage.writes))}
    names |= {"weights", "x", "inputs", "noises", "product_of_input", "product_of_state", "projected", "where"}
    if of_w:
        lines.append(f"{', '.join(of_w)}{',' * (len(of_w) == 1)} = product_of_input(weights, x, {len(of_w)})")
    lines += [f'{one.name} = weights["{one.name}"]' for one in declaration.vectors]
    lines += [f'{one.name} = inputs["{one.name}"]' for one in declaration.inputs]
    lines += [f'{one.name} = noises["{one.name}"]' for one in declaration.noises]
    for phase in declaration.phases:
        for source in dict.fromkeys(one.source for one in phase.products):
            wanted = "h" if source == LIKE else source
            own = [gate for gate in of_r if gate.multiplies == wanted]
            for run in _runs(of_r, own):
                lines += _product(run, of_r, source, names, declaration.heads)
        for stage in phase.forward:
            lines += printer.stage(stage, names)
    return [*lines, f"return {', '.join(['projected(weights, h)', *states])}{',' * (not states)}"], states


def _runs(of_r: list[Any], own: list[Any]) -> list[list[Any]]:
    """Return gates in groups whose rows of R are next to each other."""
    found: list[list[Any]] = []
    for gate in own:
        if found and of_r.index(found[-1][-1]) + 1 == of_r.index(gate):
            found[-1].append(gate)
        else:
            found.append([gate])
    return found


def _product(run: list[Any], of_r: list[Any], source: str, names: set[str], heads: int) -> list[str]:
    """Return the lines that multiply a source by the rows of R of some gates, and add that to the gates."""
    targets, sums, first = [], [], of_r.index(run[0])
    for gate in run:
        if gate.apart is not None or not gate.input:
            targets.append(gate.apart or gate.name)
            continue
        name = f"{gate.name}_h"
        while name in names:
            name += "_"
        targets.append(name)
        sums.append(f"{gate.name} = {gate.name} + {name}")
    place = f"{first}, {first + len(run)}, {len(of_r)}, {heads}"
    comma = "," * (len(targets) == 1)
    return [f"{', '.join(targets)}{comma} = product_of_state(weights, {source}, {place})", *sums]


class Multiplied(NamedTuple):
    """The products W x + bW of a step, of all gates, in place of x."""

    rows: Any


def multiplied(space: Any, weights: Any, x: Any, count: int) -> Any:
    """Return W x + bW of all gates; without W ("skip" input) x itself for each."""
    if "weight_ih" in weights:
        return space.linear(x, weights["weight_ih"], weights.get("bias_ih"))
    total = space.concatenate([x] * count, -1)
    return total + weights["bias_ih"] if "bias_ih" in weights else total


def _product_of_input(space: Any) -> Callable[..., tuple[Any, ...]]:
    def product_of_input(weights: Any, x: Any, count: int) -> tuple[Any, ...]:
        """W x + bW of each gate."""
        return space.split(x.rows if isinstance(x, Multiplied) else multiplied(space, weights, x, count), count)

    return product_of_input


def _product_of_state(space: Any) -> Callable[..., tuple[Any, ...]]:
    def product_of_state(weights: Any, state: Any, first: int, stop: int, gates: int, heads: int) -> tuple[Any, ...]:
        """R h + bR of the gates first:stop; with several heads a unit reads those of its head."""
        matrix, bias = weights["weight_hh"], weights.get("bias_hh")
        size = matrix.shape[0] // gates
        if stop - first < gates:
            matrix, bias = (None if one is None else one[first * size : stop * size] for one in (matrix, bias))
        if heads == 1:
            return space.split(space.linear(state, matrix, bias), stop - first)
        width = size // heads
        blocks = matrix.reshape(stop - first, heads, width, width)
        parts = state.reshape(state.shape[0], heads, width)
        each = [parts[:, head] @ blocks[gate, head].T for gate in range(stop - first) for head in range(heads)]
        total = space.concatenate(each, -1)
        return space.split(total if bias is None else total + bias, stop - first)

    return product_of_state


def _projected(weights: Any, h: Any) -> Any:
    return h @ weights["weight_hr"].T if "weight_hr" in weights else h
