"""Products of matrices by cuBLAS, through ctypes: a step of a small network takes as long as a few calls of Python.

A product is prepared once and runs for any step. Names and numbers are those of cublas_v2.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_double, c_float, c_int, c_longlong, c_size_t, c_void_p
from functools import cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from rnnkit.errors import BackendError

_P, _I, _L = c_void_p, c_int, c_longlong
_FACTORS = [_I] * 5  # operations of A and B, and three sizes
SIGNATURES: dict[str, list[Any]] = {
    "cublasSetStream_v2": [_P, _P],
    "cublasSetWorkspace_v2": [_P, _P, c_size_t],
    "cublasGemmEx": [_P, *_FACTORS, _P, _P, _I, _I, _P, _I, _I, _P, _P, _I, _I, _I, _I],
    "cublasGemmStridedBatchedEx": [
        _P, *_FACTORS, _P, _P, _I, _I, _L, _P, _I, _I, _L, _P, _P, _I, _I, _L, _I, _I, _I
    ],
}  # fmt: skip
_PLAIN, _TRANSPOSED = 0, 1  # cublasOperation_t
_DATA_TYPES = {"float32": 0, "float64": 1}  # cudaDataType_t
_COMPUTE_TYPES = {"float32": 68, "float64": 70}  # cublasComputeType_t
_COMPUTE_TF32 = 77
_DEFAULT_ALGORITHM = -1  # cublasGemmAlgo_t


class Prepared(NamedTuple):
    """A product or a kernel with its arguments, for any step."""

    run: Callable[[int], None]  # of the step with this number
    key: tuple[Any, ...]  # equal if the same happens


NOTHING = Prepared(lambda step: None, ())


class Rows(NamedTuple):
    """A matrix on the device: row i begins `i * stride` elements behind `address`, and its columns are contiguous. The
    one of step t begins `t * step` elements further on."""

    address: int
    stride: int
    step: int = 0

    def shifted(self, elements: int, itemsize: int) -> Rows:
        """Return the matrix that begins with another column or row."""
        return self._replace(address=self.address + elements * itemsize)


class Heads(NamedTuple):
    """Several products at once: their number, and the distances of their matrices in elements."""

    number: int
    of_result: int
    of_first: int
    of_second: int


@cache
def library() -> dict[str, Any]:
    """Return the functions of the libcublas that CuPy has loaded."""
    version = cupy.cuda.runtime.runtimeGetVersion() // 1000
    cupy.cuda.Device().cublas_handle  # loads it  # noqa: B018
    try:
        dll = ctypes.CDLL(f"libcublas.so.{version}")
    except OSError as error:
        raise BackendError(f"load: cuBLAS of CUDA {version} cannot be loaded: {error}") from None
    found = {name: getattr(dll, name) for name in SIGNATURES}
    for name, function in found.items():
        function.restype, function.argtypes = c_int, SIGNATURES[name]
    return found


class Blas:
    """Products in one dtype on CuPy's current device and stream, in one thread. A product with `adds` is added to its
    result."""

    def __init__(self, dtype: np.dtype, allow_tf32: bool) -> None:
        self._functions, self._handle = library(), cupy.cuda.Device().cublas_handle
        self._kind, self._itemsize = _DATA_TYPES[dtype.name], dtype.itemsize
        self._compute = _COMPUTE_TF32 if allow_tf32 and dtype == np.float32 else _COMPUTE_TYPES[dtype.name]
        number = c_float if dtype == np.float32 else c_double
        self._numbers = number(0), number(1)
        self._zero, self._one = map(byref, self._numbers)
        self.use(cupy.cuda.get_current_stream().ptr)

    def times_transposed(
        self, result: Rows, a: Rows, b: Rows, sizes: tuple[int, int, int], adds: bool, heads: Heads | None = None
    ) -> Prepared:
        """result (rows, columns) = a (rows, depth) times the transpose of b (columns, depth), of these `sizes`."""
        return self._prepared((_TRANSPOSED, _PLAIN), result, a, b, sizes, adds, heads)

    def times(
        self, result: Rows, a: Rows, b: Rows, sizes: tuple[int, int, int], adds: bool, heads: Heads | None = None
    ) -> Prepared:
        """result (rows, columns) = a (rows, depth) times b (depth, columns), of these `sizes`."""
        return self._prepared((_PLAIN, _PLAIN), result, a, b, sizes, adds, heads)

    def transposed_times(
        self, result: Rows, a: Rows, b: Rows, sizes: tuple[int, int, int], adds: bool, heads: Heads | None = None
    ) -> Prepared:
        """result (rows, columns) = the transpose of a (depth, rows) times b (depth, columns), of these `sizes`."""
        return self._prepared((_PLAIN, _TRANSPOSED), result, a, b, sizes, adds, heads)

    def _prepared(
        self,
        operations: tuple[int, int],
        result: Rows,
        a: Rows,
        b: Rows,
        sizes: tuple[int, int, int],
        adds: bool,
        heads: Heads | None,
    ) -> Prepared:
        """Prepare a call of cuBLAS, whose matrices have columns where these have rows: so a and b change places."""
        if 0 in sizes:
            return NOTHING
        (rows, columns, depth), kind, size = sizes, self._kind, self._itemsize
        beta, compute, numbers = self._one if adds else self._zero, self._compute, self._numbers
        before = self._handle, *operations, columns, rows, depth, self._one
        starts = [(one.address, one.step * size) for one in (b, a, result)]
        (at_b, move_b), (at_a, move_a), (at_result, move_result) = starts
        if heads is None:
            name = "cublasGemmEx"
            of_b, of_a, of_result = ((kind, one.stride) for one in (b, a, result))
            after = compute, _DEFAULT_ALGORITHM
        else:
            name = "cublasGemmStridedBatchedEx"
            of_b = kind, b.stride, heads.of_second
            of_a, of_result = (kind, a.stride, heads.of_first), (kind, result.stride, heads.of_result)
            after = heads.number, compute, _DEFAULT_ALGORITHM
        function, after = self._functions[name], (*of_result, *after)

        def run(step: int, numbers: Any = numbers) -> None:  # which `before` and `beta` refer to
            status = function(
                *before, at_b + step * move_b, *of_b, at_a + step * move_a, *of_a, beta, at_result + step * move_result,
                *after,
            )  # fmt: skip
            if status:
                raise BackendError(f"{name}: cuBLAS returned status {status} (cublasStatus_t)")

        return Prepared(run, (operations, result, a, b, sizes, adds, heads, compute))

    def use(self, stream: int, workspace: Any = None) -> None:
        """Run the following products on a stream, with memory for cuBLAS; None: its own."""
        _check("cublasSetStream_v2", self._functions, self._handle, stream)
        if workspace is not None:
            arguments = self._handle, workspace.data.ptr, workspace.nbytes
            _check("cublasSetWorkspace_v2", self._functions, *arguments)


def _check(name: str, functions: dict[str, Any], *arguments: Any) -> None:
    status = functions[name](*arguments)
    if status:
        raise BackendError(f"{name}: cuBLAS returned status {status} (cublasStatus_t)")
