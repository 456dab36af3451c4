"""A call by JAX's operations, from the equations of the cell: on other devices, and for further derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rnnkit.call.side_inputs import split
from rnnkit.equations.unrolled import unrolled
from rnnkit.jax.problem import Problem, Static

DIFFERENTIABLE = "w", "x", "hx", "cx"


def infer(*operands: Any, static: Static) -> list[Any]:
    """Return y, hy and cy, of the shapes of the engine."""
    given, desc = static.named(operands), static.running
    x, inputs = split(desc, given["x"])
    marks = {name: given[name] for name in ("lengths", "mask", "resets") if name in given}
    states = _split(given["cx"], len(desc.states)) if "cx" in given else None
    drawn = _draw(static, given["seed"], x) if desc.draws else {}
    found = unrolled(desc, "jax")(
        given["w"], x, given.get("hx"), states, inputs=inputs, initial=static.initial, **marks, **drawn
    )
    cells = found.cy if isinstance(found.cy, tuple) else (found.cy,)
    cy = jnp.concatenate(cells, -1) if desc.has_cell_state else jnp.zeros((*found.hy.shape[:2], 0), x.dtype)
    return [found.y, found.hy, cy]


def pack(w: Any, *, static: Static) -> list[Any]:
    """Return something of the size of the packed weights, which nothing here reads."""
    return [jnp.zeros(*one) for one in Problem("pack", static, 1, 1).results]


def forward(*operands: Any, static: Static) -> list[Any]:
    """Return the same, and nothing that `backward` would read."""
    problem = Problem("forward", static, *static.named(operands)["x"].shape[:2])
    return [*infer(*operands, static=static), jnp.zeros(*problem.results[-1])]


def backward(dy: Any, dhy: Any, dcy: Any, kept: Any, *operands: Any, static: Static) -> list[Any]:
    """Return the gradients of w, x, hx and cx; zeros for states that are not given, nothing for what is not wanted."""
    del kept
    given = static.named(operands)
    names = [name for name in DIFFERENTIABLE if name in given and name in (*static.wanted, "hx", "cx")]
    results, pull = jax.vjp(
        lambda *some: infer(*_with(static, operands, names, some), static=static), *map(given.get, names)
    )
    dy = dy if "y" in static.wanted else jnp.zeros_like(results[0])
    found = dict(zip(names, pull([dy, dhy, dcy]), strict=True))
    problem = Problem("backward", static, *given["x"].shape[:2])
    shaped = zip(DIFFERENTIABLE, problem.results, strict=True)
    return [found[name] if name in found else jnp.zeros(*one) for name, one in shaped]


def linear(*arrays: Any, static: Static, given: tuple[str, ...]) -> list[Any]:
    """Return the tangents of y, hy and cy from those of the operands `given`, which come first."""
    tangents, (_, *operands) = arrays[: len(given)], arrays[len(given) :]
    values = [static.named(operands)[name] for name in given]
    return jax.jvp(lambda *some: infer(*_with(static, operands, given, some), static=static), values, [*tangents])[1]


def _with(static: Static, operands: Sequence[Any], names: Sequence[str], values: Sequence[Any]) -> list[Any]:
    """Return the operands with others in place of some."""
    found = static.named(operands) | dict(zip(names, values, strict=True))
    return [found[name] for name in static.names]


def _split(states: Any, count: int) -> tuple[Any, ...]:
    return tuple(jnp.split(states, count, -1))


def _draw(static: Static, seed: Any, x: Any) -> dict[str, Any]:
    """Draw the dropout masks and the noises of a call from JAX's generator: others than the engine's."""
    desc, (steps, rows, _) = static.running, x.shape
    keys = iter(jax.random.split(jax.random.wrap_key_data(seed, impl="threefry2x32"), 256))

    def factors(rate: float, *shape: int) -> Any:
        return jnp.where(jax.random.uniform(next(keys), shape) < rate, 0, 0 if rate == 1 else 1 / (1 - rate)).astype(
            x.dtype
        )

    width = desc.num_directions * desc.output_size
    layers = range(desc.num_layers - 1) if desc.dropout > 0 else ()
    noises = {}
    for one in desc.cell.declaration.noises if desc.draws_noise else ():
        rate = float(getattr(desc.cell, one.rate))
        shape = desc.num_pseudo_layers, *((steps,) if one.per_step else ()), rows, desc.hidden_size
        numbers = jax.random.uniform(next(keys), shape) < rate
        noises[one.name] = numbers.astype(x.dtype) if one.choice else factors(rate, *shape)
    return {"masks": [factors(desc.dropout, steps, rows, width) for _ in layers] or None, "noises": noises}
