"""All that is JAX's own and XLA's: how a call reaches the engine from a compiled program.

XLA calls a handler of its foreign function interface with the address of a call frame, a C struct of 64-bit words
(xla/ffi/api/c_api.h, version 0.1). The handler here is a function of ctypes: it takes the GIL.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from math import prod
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from rnnkit.jax.calls import run
from rnnkit.jax.problem import Problem, Shaped, problem_of

# Words of a call frame: extension, the API, and count and array of operands, results and attributes.
_EXTENSION, _API, _OPERANDS, _RESULTS, _ATTRIBUTES = 1, 2, (7, 9), (12, 14), (17, 20)
_FRAME, _DATA = 22, 3  # words of a frame; the word of a buffer that has its address
_ERROR_CREATE = 6  # the word of the API that has the address of the function
_INVALID_ARGUMENT = 3
_TARGET = "rnnkit"


class _Error(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("text", ctypes.c_char_p), ("code", ctypes.c_int)
    ]  # fmt: skip


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def _handler(address: int) -> int | None:
    frame = (ctypes.c_int64 * _FRAME).from_address(address)
    if frame[_EXTENSION]:
        return _describe(frame[_EXTENSION])
    try:
        problem = problem_of(_text(frame))
        run(problem, [*map(_array, _shaped(problem), _buffers(frame))])
    except BaseException as error:  # it may not pass through XLA
        return _error(frame, f"{type(error).__name__}: {error}")
    return None


def _error(frame: Any, text: str) -> int:
    """Return XLA's error with this text."""
    create = (ctypes.c_int64 * (_ERROR_CREATE + 1)).from_address(frame[_API])[_ERROR_CREATE]
    given = _Error(_Error.code.offset + 4, None, text.encode(), _INVALID_ARGUMENT)
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(create)(ctypes.addressof(given))


def _describe(extension: int) -> None:
    """Answer which version of the interface the handler is for: 0.1, which JAX 0.5 to 0.10 take."""
    metadata = ctypes.c_int64.from_address(extension + 24).value
    (ctypes.c_int32 * 3).from_address(metadata + 24)[:] = 0, 1, 0


def _buffers(frame: Any) -> list[int]:
    """Return the addresses of the operands and the results."""
    found = []
    for count, array in _OPERANDS, _RESULTS:
        for buffer in (ctypes.c_int64 * frame[count]).from_address(frame[array]):
            found.append((ctypes.c_int64 * (_DATA + 1)).from_address(buffer)[_DATA])
    return found


def _text(frame: Any) -> str:
    """Return the only attribute."""
    span = ctypes.c_int64.from_address(frame[_ATTRIBUTES[1]]).value
    return ctypes.string_at(*(ctypes.c_int64 * 2).from_address(span)).decode()


@lru_cache(1024)
def _shaped(problem: Problem) -> list[Shaped]:
    return problem.operands + problem.results


def _array(shaped: Shaped, address: int) -> np.ndarray:
    shape, dtype = shaped
    size = prod(shape) * dtype.itemsize
    return np.ndarray(shape, dtype, (ctypes.c_char * size).from_address(address)) if size else np.empty(shape, dtype)


@cache
def _register() -> None:
    capsule = jax.ffi.pycapsule(ctypes.cast(_handler, ctypes.c_void_p).value)
    jax.ffi.register_ffi_target(_TARGET, capsule, platform="cpu")


def primitive(
    name: str, problem: Callable[..., Problem], otherwise: Callable[..., Sequence[Any]], is_engine: bool = True
) -> Any:
    """Return a primitive of several results that runs a problem on the engine on a CPU.

    `problem` gives it from the operands and the parameters. `otherwise` is a function of the same by JAX's operations:
    on other devices, where `static.engine` is False, or if this is no primitive of the engine.
    """
    _register()
    made = Primitive(f"rnnkit_{name}")
    made.multiple_results = True

    @made.def_abstract_eval
    def _(*operands: Any, **parameters: Any) -> list[Any]:
        return [jax.core.ShapedArray(*one) for one in problem(operands, parameters).results]

    made.def_impl(partial(_run_at_once, made))
    by_operations = mlir.lower_fun(otherwise, multiple_results=True)

    def lower(ctx: Any, *operands: Any, **parameters: Any) -> Any:
        if not parameters["static"].engine:
            return by_operations(ctx, *operands, **parameters)
        text = problem(ctx.avals_in, parameters).text
        return jax.ffi.ffi_lowering(_TARGET)(ctx, *operands, problem=text)

    mlir.register_lowering(made, by_operations)
    if is_engine:
        mlir.register_lowering(made, lower, platform="cpu")
    return made


@lru_cache(256)
def _compiled(primitive: Any, parameters: tuple[Any, ...]) -> Any:
    return jax.jit(lambda *operands: primitive.bind(*operands, **dict(parameters)))


def _run_at_once(primitive: Any, *operands: Any, **parameters: Any) -> Any:
    with jax.disable_jit(False):  # else it would come here again
        return _compiled(primitive, tuple(parameters.items()))(*operands)
