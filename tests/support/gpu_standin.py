"""The GPU engine without a GPU: CuPy and libcudnn replaced by their stand-ins."""

import sys
from contextlib import contextmanager

import pytest
import standin_cupy
from standin_cudnn import CudnnStandIn
from standin_kernels import CublasStandIn

from rnnkit import cuda
from rnnkit.cuda import cudnn

ENGINE = ("engine", "modes", "context", "cells", "layer", "layer_gradient", "marks", "kernels", "blas", "graphs")


@contextmanager
def standin_gpu():
    """A CudnnStandIn that the GPU engine, imported anew, uses; raise at the end if it was called wrongly."""
    standin = CudnnStandIn()
    standin.current_stream = lambda: standin_cupy.here.stream.ptr
    standin.current_device = lambda: standin_cupy.here.device
    library = cudnn.Library(standin.dll())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cudnn, "load", lambda: library)
        patch.setitem(sys.modules, "cupy", standin_cupy)
        kept = {name: (sys.modules.pop(f"rnnkit.cuda.{name}", None), cuda.__dict__.pop(name, None)) for name in ENGINE}
        try:
            from rnnkit.cuda import blas

            standin.blas = CublasStandIn()
            functions = standin.blas.functions(blas.SIGNATURES)
            patch.setattr(blas, "library", lambda: functions)
            yield standin
        finally:
            for name, (module, _) in kept.items():
                sys.modules.pop(f"rnnkit.cuda.{name}", None)
                cuda.__dict__.pop(name, None)
                if module is not None:
                    sys.modules[f"rnnkit.cuda.{name}"] = cuda.__dict__[name] = module
    errors = standin.errors + standin.blas.errors
    assert not errors, errors
