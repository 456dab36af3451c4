"""A stand-in for what runs CUDA C and cuBLAS: a C compiler compiles the kernels for the host, and NumPy multiplies.

A kernel is a loop over blocks and threads; all its arguments have eight bytes.
"""

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from installed import needs_installed

SHIM = """\
#include <math.h>
#include <stdint.h>
#define __global__
static struct {{ long long x; }} blockIdx, blockDim, threadIdx;
{source}
typedef void (*rk_kernel)({types});
void rk_launch(rk_kernel run, long long blocks, long long threads, const long long *a) {{
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
    for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) run({arguments});
}}
"""
MOST = 40  # arguments of a kernel


@functools.cache
def folder():
    made = tempfile.TemporaryDirectory(prefix="standin-kernels-")
    return made, Path(made.name)


@functools.cache
def compiled(source):
    """The kernels as a library of the host."""
    needs_installed("cc")
    types, arguments = ["long long"] * MOST, [f"a[{i}]" for i in range(MOST)]
    own = source.replace('extern "C" ', "")
    text = SHIM.format(source=own, types=", ".join(types), arguments=", ".join(arguments))
    path = folder()[1] / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}-{os.getpid()}.so"
    # At -O1 every cell's kernels compile in half a second; fused sums would have other bits than a GPU without them.
    flags = "-x c -std=c99 -O1 -w -shared -fPIC -ffp-contract=off".split()
    command = ["cc", *flags, "-o", path, "-", "-lm"]
    done = subprocess.run(command, input=text, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(path))


class RawModule:
    def __init__(self, code, options):
        assert set(options) == {"-default-device", "-fmad=false"}
        self.source = code

    def get_function(self, name):
        library = compiled(self.source)
        function = getattr(library, name)

        def run(grid, block, arguments):
            (blocks,), (threads,) = grid, block
            assert 0 < blocks < 2**31 and 0 < threads <= 1024 and len(arguments) <= MOST
            assert all(type(one) is int for one in arguments), arguments
            given = (ctypes.c_longlong * MOST)(*arguments)
            address = ctypes.cast(function, ctypes.c_void_p)
            from standin_cupy import run_or_record

            sizes = ctypes.c_longlong(blocks), ctypes.c_longlong(threads)
            run_or_record(lambda: library.rk_launch(address, *sizes, given))

        return run


def _matrix(address, kind, rows, columns, stride):
    """A matrix of cuBLAS, whose columns are apart by `stride`: (rows, columns)."""
    from standin_memory import device_array  # which needs CuPy's stand-in, as that needs this

    dtype = {0: np.float32, 1: np.float64}[kind]
    assert stride >= max(rows, 1), (rows, stride)
    flat = device_array(address, (columns - 1) * stride + rows, dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (flat.itemsize, stride * flat.itemsize))


class CublasStandIn:
    """Its functions, with the prototypes of the binding."""

    def __init__(self):
        self.stream, self.errors = None, []

    def functions(self, signatures):
        return {name: self._typed(getattr(self, name), types) for name, types in signatures.items()}

    def _typed(self, method, types):
        def run(*given):
            try:
                method(*given)
                return 0
            except Exception as error:  # ctypes would lose it
                self.errors.append(f"{method.__name__}: {type(error).__name__}: {error}")
                return 14  # CUBLAS_STATUS_INTERNAL_ERROR

        function = ctypes.CFUNCTYPE(ctypes.c_int, *types)(run)
        function.argtypes = types
        return function

    def cublasSetStream_v2(self, handle, stream):  # noqa: N802
        assert handle == HANDLE
        self.stream = stream or 0

    def cublasSetWorkspace_v2(self, handle, memory, nbytes):  # noqa: N802
        from standin_memory import assert_allocated

        assert_allocated(memory, nbytes)

    def cublasGemmEx(  # noqa: N802
        self, handle, ta, tb, m, n, k, alpha, a, ka, lda, b, kb, ldb, beta, c, kc, ldc, compute, algorithm
    ):
        assert ka == kb == kc and compute in {0: (68, 77), 1: (70,)}[ka] and algorithm == -1 and handle == HANDLE
        left = _matrix(a, ka, *((k, m) if ta else (m, k)), lda)
        right = _matrix(b, kb, *((n, k) if tb else (k, n)), ldb)
        result = _matrix(c, kc, m, n, ldc)
        number = {0: ctypes.c_float, 1: ctypes.c_double}[ka]
        one, factor = (number.from_address(where).value for where in (alpha, beta))
        assert one == 1 and factor in (0, 1)

        def run():
            product = (left.T if ta else left) @ (right.T if tb else right)
            result[...] = product + result if factor else product

        from standin_cupy import here, run_or_record

        assert self.stream == here.stream.ptr, "cuBLAS has another stream"
        run_or_record(run)

    def cublasGemmStridedBatchedEx(  # noqa: N802
        self, handle, ta, tb, m, n, k, alpha, a, ka, lda, sa, b, kb, ldb, sb, beta, c, kc, ldc, sc, count, compute, algo
    ):
        size = {0: 4, 1: 8}[ka]
        for i in range(count):
            self.cublasGemmEx(
                handle, ta, tb, m, n, k, alpha, a + i * sa * size, ka, lda, b + i * sb * size, kb, ldb, beta,
                c + i * sc * size, kc, ldc, compute, algo,
            )  # fmt: skip


HANDLE = 77
