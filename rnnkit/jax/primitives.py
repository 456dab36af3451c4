"""The primitives infer, forward, linear and backward, and how JAX transforms them.

`infer` is what programs call. Its derivative is `linear`, the map from tangents to tangents at what `forward` has kept;
it exists to be transposed, to `backward`. `vmap` folds the new axis of infer into the batch. Forward mode, and
derivatives of derivatives, are those of the equations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad, batching

from rnnkit.jax import equations
from rnnkit.jax.equations import DIFFERENTIABLE
from rnnkit.jax.problem import WANTED, Problem, Static
from rnnkit.jax.xla import primitive

_BATCH_AXES = {"x": 1, "hx": 1, "cx": 1, "lengths": 0, "mask": 1, "resets": 1}
_RESULTS_OF_BACKWARD = 4  # operands of backward before its forward's: dy, dhy, dcy and what forward kept


def _problem(kind: str, first: int) -> Callable[..., Problem]:
    """Return a function of operands and parameters, where those of the forward begin at `first`."""

    def problem_of(operands: Sequence[Any], parameters: dict[str, Any]) -> Problem:
        static = parameters["static"]
        start = len(parameters["given"]) + 1 if "given" in parameters else first
        x = static.named(operands[start:]).get("x")
        return Problem(kind, static, *((1, 1) if x is None else x.shape[:2]))

    return problem_of


infer = primitive("infer", _problem("infer", 0), equations.infer)
forward = primitive("forward", _problem("forward", 0), equations.forward)
backward = primitive("backward", _problem("backward", _RESULTS_OF_BACKWARD), equations.backward)
pack = primitive("pack", _problem("pack", 0), equations.pack)
linear = primitive("linear", _problem("infer", 0), equations.linear, is_engine=False)


def _is_zero(tangent: Any) -> bool:
    return type(tangent) is ad.Zero or tangent.dtype == jax.dtypes.float0


def _without_packed(operands: Sequence[Any], static: Static) -> Sequence[Any]:
    """Return the operands without the packed weights, which stand last."""
    return operands[: len(static.unpacked.names)]


def _jvp(keeps: bool, primals: Sequence[Any], tangents: Sequence[Any], *, static: Static) -> Any:
    """The derivative of infer, or of forward (`keeps`)."""
    primals, tangents, static = _without_packed(primals, static), _without_packed(tangents, static), static.unpacked
    of_operands = static.named(tangents)
    given = tuple(name for name in DIFFERENTIABLE if name in of_operands and not _is_zero(of_operands[name]))
    *results, kept = forward.bind(*primals, static=static)
    found = linear.bind(*map(of_operands.get, given), kept, *primals, static=static, given=given)
    if not keeps:
        return results, found
    return [*results, kept], [*found, np.zeros(kept.shape, jax.dtypes.float0)]


def _jvp_of_pack(primals: Sequence[Any], tangents: Sequence[Any], *, static: Static) -> Any:
    """Packed weights are another form of those that are differentiated."""
    found = pack.bind(*primals, static=static)
    return found, [np.zeros(one.shape, jax.dtypes.float0) for one in found]


ad.primitive_jvps[pack] = _jvp_of_pack
ad.primitive_jvps[infer], ad.primitive_jvps[forward] = partial(_jvp, False), partial(_jvp, True)


def _jvp_of_equations(primitive: Any, function: Any, primals: Any, tangents: Any, **parameters: Any) -> Any:
    """The derivative of backward, or of linear."""
    places = [number for number, one in enumerate(tangents) if not _is_zero(one)]

    def of(*some: Any) -> Any:
        found = list(primals)
        for place, one in zip(places, some, strict=True):
            found[place] = one
        return function(*found, **parameters)

    _, found = jax.jvp(of, [primals[place] for place in places], [tangents[place] for place in places])
    return primitive.bind(*primals, **parameters), found


ad.primitive_jvps[backward] = partial(_jvp_of_equations, backward, equations.backward)
ad.primitive_jvps[linear] = partial(_jvp_of_equations, linear, equations.linear)


def _transpose(cotangents: Sequence[Any], *arrays: Any, static: Static, given: tuple[str, ...]) -> list[Any]:
    kept_and_operands = arrays[len(given) :]
    dy, *of_states = cotangents
    has_dy = type(dy) is not ad.Zero
    static = static._replace(wanted=tuple(name for name in WANTED if name in given or name == "y" and has_dy))
    dy = dy if has_dy else jnp.zeros(0, dy.aval.dtype)
    found = backward.bind(dy, *map(ad.instantiate_zeros, of_states), *kept_and_operands, static=static)
    named = dict(zip(DIFFERENTIABLE, found, strict=True))
    return [*map(named.get, given), *[None] * len(kept_and_operands)]


ad.primitive_transposes[linear] = _transpose


def _size(arrays: Sequence[Any], dims: Sequence[Any]) -> int:
    return next(one.shape[dim] for one, dim in zip(arrays, dims, strict=True) if dim is not None)


def _one_by_one(primitive: Any, arrays: Sequence[Any], dims: Sequence[Any], **parameters: Any) -> Any:
    """Map a primitive by a loop."""
    mapped = [jnp.moveaxis(one, dim, 0) for one, dim in zip(arrays, dims, strict=True) if dim is not None]

    def call(some: list[Any]) -> Any:
        values = iter(some)
        given = (one if dim is None else next(values) for one, dim in zip(arrays, dims, strict=True))
        return primitive.bind(*given, **parameters)

    found = lax.map(call, mapped)
    return found, [0] * len(found)


def _batched_infer(arrays: Sequence[Any], dims: Sequence[Any], *, static: Static) -> Any:
    """Fold the new axis into the batch, unless each member has weights or random numbers of its own."""
    of_operands = static.named(dims)
    if "packed" in of_operands and (of_operands["w"] is not None or of_operands["packed"] is not None):
        arrays, dims, static = _without_packed(arrays, static), _without_packed(dims, static), static.unpacked
        of_operands = static.named(dims)
    if of_operands["w"] is not None or static.running.draws:
        return _one_by_one(infer, arrays, dims, static=static)
    size, given = _size(arrays, dims), static.named(arrays)
    folded = [
        one if name not in _BATCH_AXES else _folded(one, of_operands[name], size, _BATCH_AXES[name])
        for name, one in given.items()
    ]
    found = infer.bind(*folded, static=static)
    return [one.reshape(one.shape[0], size, one.shape[1] // size, one.shape[2]) for one in found], [1] * len(found)


def _folded(array: Any, dim: Any, size: int, axis: int) -> Any:
    if dim is None:
        array, dim = jnp.broadcast_to(array, (size, *array.shape)), 0
    array = jnp.moveaxis(array, dim, axis)
    return array.reshape(*array.shape[:axis], array.shape[axis] * array.shape[axis + 1], *array.shape[axis + 2 :])


batching.primitive_batchers[infer] = _batched_infer
for _one in forward, backward, linear, pack:
    batching.primitive_batchers[_one] = partial(_one_by_one, _one)
