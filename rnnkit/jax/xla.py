"""All that is JAX's own and XLA's: how a call reaches the engine from a compiled program.

XLA calls a handler of its foreign function interface with the address of a call frame, a C struct of 64-bit words
(xla/ffi/api/c_api.h, version 0.1). The handler is compiled: it finds the program of the call (`table`) by its key and
runs it, without the GIL. The first call makes the program, in a function of ctypes, which takes the GIL; calls that no
program does run there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from math import prod
from typing import Any

import jax
import numba
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir
from llvmlite import binding
from numba.core.compiler_lock import global_compiler_lock

from rnnkit.jax import table
from rnnkit.jax.calls import run
from rnnkit.jax.problem import Problem, Shaped, problem_of
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.arrays import part
from rnnkit_kernels.machine.entries import address_of, call_c, call_from_c, symbol, words_at
from rnnkit_kernels.machine.jit import inner
from rnnkit_kernels.machine.registers import on_stack
from rnnkit_kernels.machine.sync import NUMBER, exchange, store
from rnnkit_kernels.programs import (
    BUSY,
    HELPER_WORDS,
    HELPERS,
    KNOWN,
    LAST,
    MAX_WORDS,
    PLACE_WORDS,
    PLACES,
    SHARED,
    SYNC,
    SYNC_SIZE,
    THREADS,
    give_back_program,
    help_program,
    run_program,
    take_program,
)  # fmt: skip

# Words of a call frame: extension, the API, the context, and count and array of operands, results and attributes.
_EXTENSION, _API, _CONTEXT, _OPERANDS, _RESULTS, _ATTRIBUTES = 1, 2, 3, (7, 9), (12, 14), (17, 20)
_FRAME, _DATA = 22, 3  # words of a frame; the word of a buffer that has its address
# Words of the API that have the addresses of functions: all from JAX 0.5.3 on, although its API says it is shorter.
_ERROR_CREATE, _ERROR_DESTROY, _SCHEDULE = 6, 8, 17
_INVALID_ARGUMENT = 3
_TARGET, _SYMBOL = "rnnkit", "rnnkit_jax_addresses"
_PYTHON, _HELP, _TABLE = range(3)
_addresses, _their_address = np.zeros(3, np.int64), symbol(_SYMBOL)
"""Addresses that the handler reads: of `_run_in_python`, `help_program` and `table.TABLE`."""
_AGAIN = 1  # what `_run_in_python` returns after it made a program; others are addresses of errors, or 0
_MOST_BUFFERS = 32


class _Error(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("text", ctypes.c_char_p), ("code", ctypes.c_int)
    ]  # fmt: skip


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
def _run_in_python(address: int, may_add: int) -> int | None:
    """Run a call, or make a program for it if `may_add`."""
    frame = (ctypes.c_int64 * _FRAME).from_address(address)
    if frame[_EXTENSION]:
        return _describe(frame[_EXTENSION])
    try:
        text = _text(frame)
        problem = problem_of(text)
        if may_add and table.add(table.key_of(text), problem):
            return _AGAIN
        run(problem, [*map(_array, _shaped(problem), _buffers(frame))])
    except BaseException as error:  # it may not pass through XLA
        return _error(frame, f"{type(error).__name__}: {error}")
    return None


def _run(frame):
    """Run the program of a call, without Python; the first call makes it, and one that has none runs in Python."""
    words, addresses = words_at(frame, _FRAME), words_at(_their_address(), _addresses.size)
    is_call, may_add = words[_EXTENSION] == 0, 1
    while True:
        pair = 0
        if is_call:
            key = words_at(words_at(words_at(words[_ATTRIBUTES[1]], 1)[0], 2)[1], 1)[0]
            pair = take_program(words_at(addresses[_TABLE], PLACES * PLACE_WORDS), key)
        if pair != 0:
            stack = on_stack(words)
            program, buffers = words_at(words_at(pair, 2)[1], 1), part(stack, 0, _MOST_BUFFERS)
            _list_buffers(words, buffers)
            if program[SHARED] > 0:
                _call_helpers(words, program, addresses[_HELP], part(stack, _MOST_BUFFERS, 2 * _MOST_BUFFERS))
            is_valid = run_program(program, buffers, part(stack, 2 * _MOST_BUFFERS, 2 * _MOST_BUFFERS + MAX_WORDS))
            give_back_program(pair)
            if is_valid:
                return 0
            may_add = 0  # the same call in Python says what is wrong
        answer = call_c(addresses[_PYTHON], frame, may_add)
        if answer != _AGAIN:
            return answer


@inner
def _list_buffers(words, buffers):
    """Write the addresses of the operands and the results, after 0."""
    buffers[0], count = 0, 1
    for number in range(words[_OPERANDS[0]]):
        buffers[count] = words_at(words_at(words[_OPERANDS[1]], number + 1)[number], _DATA + 1)[_DATA]
        count += 1
    for number in range(words[_RESULTS[0]]):
        buffers[count] = words_at(words_at(words[_RESULTS[1]], number + 1)[number], _DATA + 1)[_DATA]
        count += 1


@inner
def _call_helpers(words, program, task, scratch):
    """Let threads of XLA's pool take part in the kernel calls of a program that share their work."""
    api, sync = words_at(words[_API], _SCHEDULE + 1), words_at(program[SYNC], program[SYNC_SIZE])
    for number in range(program[THREADS] - 1):
        helper = words_at(program[HELPERS] + 8 * HELPER_WORDS * number, HELPER_WORDS)
        if exchange(helper, BUSY, 0, 1):
            helper[KNOWN], helper[LAST] = sync[NUMBER], sync[NUMBER] + program[SHARED]
            scratch[0], scratch[1], scratch[2] = 40, 0, words[_CONTEXT]  # size, no extension, then the arguments
            scratch[3], scratch[4] = task, address_of(helper)
            error = call_c(api[_SCHEDULE], address_of(scratch), 0)
            if error != 0:  # there is no pool
                store(helper, BUSY, 0)
                scratch[0], scratch[1], scratch[2] = 24, 0, error
                call_c(api[_ERROR_DESTROY], address_of(scratch), 0)
                return


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
    """Return the text of the problem, the second attribute after its key."""
    _, span = (ctypes.c_int64 * 2).from_address(frame[_ATTRIBUTES[1]])
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
    with global_compiler_lock:
        python = ctypes.cast(_run_in_python, ctypes.c_void_p).value
        _addresses[:] = python, call_from_c(help_program), table.TABLE.ctypes.data
        binding.add_symbol(_SYMBOL, _addresses.ctypes.data)
        capsule = jax.ffi.pycapsule(call_from_c(_run))
    jax.ffi.register_ffi_target(_TARGET, capsule, platform="cpu")


class _Primitive(Primitive):
    """One whose operands all vary between the devices of a `shard_map` if one of them does, so that gradients of those
    that do not are summed over the devices."""

    def bind(self, *operands: Any, **parameters: Any) -> Any:
        each = [_varying(jax.typeof(one)) if _TRACKS else frozenset() for one in operands]
        varying = frozenset().union(*each)
        return super().bind(
            *(
                one if own == varying else _VARY(one, tuple(varying - own))
                for one, own in zip(operands, each, strict=True)
            ),
            **parameters,
        )


_VARY = partial(jax.lax.pcast, to="varying") if hasattr(jax.lax, "pcast") else getattr(jax.lax, "pvary", None)
_TRACKS = _VARY is not None
"""Whether this version of JAX tracks what varies between devices."""


def _varying(aval: Any) -> frozenset[Any]:
    """Return the axes of devices between which a value varies."""
    return frozenset(getattr(getattr(aval, "manual_axis_type", None), "varying", getattr(aval, "vma", ())))


def _result(operands: Sequence[Any], shape: tuple[int, ...], dtype: Any) -> Any:
    """Return what is known of a result: it varies between devices if an operand does."""
    like = next(filter(_varying, operands), None)
    if like is None:
        return jax.core.ShapedArray(shape, dtype)
    sharding = like.sharding.update(spec=jax.sharding.PartitionSpec(*[None] * len(shape)))
    return like.update(shape=shape, dtype=np.dtype(dtype), weak_type=False, sharding=sharding)


def _register_in_shard_map(made: Any) -> None:
    """Tell old versions of `shard_map` that results vary as operands do."""
    if not _TRACKS:
        from jax.experimental import shard_map

        for register in "register_standard_check", "register_standard_rewrite":
            getattr(shard_map, register, lambda made: None)(made)


def primitive(
    name: str, problem: Callable[..., Problem], otherwise: Callable[..., Sequence[Any]], is_engine: bool = True
) -> Any:
    """Return a primitive of several results that runs a problem on the engine on a CPU.

    `problem` gives it from the operands and the parameters. `otherwise` is a function of the same by JAX's operations:
    on other devices, where `static.engine` is False, or if this is no primitive of the engine.
    """
    _register()
    made = _Primitive(f"rnnkit_{name}")
    made.multiple_results = True
    _register_in_shard_map(made)

    @made.def_abstract_eval
    def _(*operands: Any, **parameters: Any) -> list[Any]:
        return [_result(operands, *one) for one in problem(operands, parameters).results]

    made.def_impl(partial(_run_at_once, made))
    by_operations = mlir.lower_fun(otherwise, multiple_results=True)

    def lower(ctx: Any, *operands: Any, **parameters: Any) -> Any:
        if not parameters["static"].engine:
            return by_operations(ctx, *operands, **parameters)
        size = thread_pool.wanted_size()
        threads = 0 if size == numba.config.NUMBA_NUM_THREADS else size
        own = problem(ctx.avals_in, parameters)._replace(threads=threads)
        return jax.ffi.ffi_lowering(_TARGET)(ctx, *operands, key=np.int64(table.key_of(own.text)), problem=own.text)

    mlir.register_lowering(made, by_operations)
    if is_engine:
        mlir.register_lowering(made, lower, platform="cpu")
    return made


def is_from_outside(value: Any, of_call: Any) -> bool:
    """Return whether a value is not computed where a call is traced that has an operand `of_call`: it is known, or from
    around the function that is traced, as the weights are in the body of a loop over steps."""
    if not isinstance(of_call, jax.core.Tracer):
        return False
    return not isinstance(value, jax.core.Tracer) or _traced_by(value) is not _traced_by(of_call)


def _traced_by(value: Any) -> Any:
    """Return what traces a value, below the transforms (vmap, jvp) that are applied to it."""
    trace = getattr(value, "_trace", None)
    while type(trace).__name__ in ("BatchTrace", "JVPTrace"):  # which have no public name
        trace = trace.parent_trace
    return trace


def is_known_on_cpu(value: Any) -> bool:
    """Return whether what is computed from a value may be computed now, and on a CPU: elsewhere it would be other."""
    if isinstance(value, jax.core.Tracer):
        return False
    devices = value.devices() if isinstance(value, jax.Array) else jax.local_devices()[:1]
    return all(one.platform == "cpu" for one in devices)


@lru_cache(256)
def _compiled(primitive: Any, parameters: tuple[Any, ...]) -> Any:
    return jax.jit(lambda *operands: primitive.bind(*operands, **dict(parameters)))


def _run_at_once(primitive: Any, *operands: Any, **parameters: Any) -> Any:
    with jax.disable_jit(False):  # else it would come here again
        return _compiled(primitive, tuple(parameters.items()))(*operands)
