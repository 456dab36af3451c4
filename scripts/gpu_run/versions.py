"""Versions of everything, and the limits of the GPU: bytes/s of a copy, FLOP/s of large matrix products."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import partial
from typing import Any

from gpu_run.here import Here, alternate

PACKAGES = "numpy", "numba", "llvmlite", "cupy", "torch", "pytest", "xdist", "hypothesis", "ml_dtypes"


def run(here: Here) -> None:
    here.add("python", version=sys.version.split()[0], executable=sys.executable, machine=platform.platform())
    with here.trying("nvidia-smi") if not here.stand_in else suppress(FileNotFoundError):
        query = "--query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit"
        shown = subprocess.run(["nvidia-smi", query, "--format=csv"], capture_output=True, text=True, timeout=20)
        here.add("nvidia-smi", text=shown.stdout.strip() or shown.stderr.strip())
    with here.trying("cpu"):
        models = {line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")}
        here.add("cpu", models=sorted(models), cores=len(os.sched_getaffinity(0)))
    for name in PACKAGES:
        with here.trying(name):
            here.add(name, version=getattr(importlib.import_module(name), "__version__", "unknown"))
    with here.trying("cudnn"):
        from rnnkit.cuda import cudnn

        library = cudnn.load()
        here.add("cudnn", version=library.version, cuda=library.query("cudnnGetCudartVersion"))
    with here.trying("cudnn of PyTorch"):
        import torch

        here.add("cudnn of PyTorch", version=torch.backends.cudnn.version(), cuda=torch.version.cuda)
    with here.trying("limits"):
        here.add("limits", **_limits(here))


def _limits(here: Here) -> dict[str, Any]:
    """Measured on random numbers: products of zeros are faster."""
    import torch

    size = here.smaller(8192)
    source = torch.randn(here.smaller(1 << 14) ** 2, device=here.device)
    target = torch.empty_like(source)
    found = {"copy": 2 * source.nbytes / _seconds(partial(target.copy_, source))}
    for name, dtype in (("float32", torch.float32), ("tf32", torch.float32), ("float16", torch.float16)):
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a, b = (torch.randn(size, size, device=here.device).to(dtype) for _ in range(2))
        found[name] = 2 * size**3 / _seconds(partial(torch.matmul, a, b))
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def _seconds(run: Any) -> float:
    return min(alternate({"one": run}, rounds=5)["one"])
