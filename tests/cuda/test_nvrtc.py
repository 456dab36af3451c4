"""CUDA's own compiler takes the source of every cell."""

import cuda_compiler
import numpy as np
import pytest
from gpu_cases import ALL, MODES, TOLERANCES, desc_of
from optional import IN_CI

from examples.gallery.page import CELLS as GALLERY


@pytest.mark.weekly
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_nvrtc_compiles_every_cell(architecture):
    """Without a warning, and without a GPU."""
    if cuda_compiler.library() is None and not IN_CI:
        pytest.skip("needs libnvrtc: pip install nvidia-cuda-nvrtc")
    from rnnkit.cuda.common import common_source
    from rnnkit.cuda.source import source_of

    kinds = [*ALL.values(), *(one() if isinstance(one, type) else one for one in GALLERY.values())]
    kinds += [desc_of(name).cell for name in MODES]
    options = "-default-device", "-fmad=false", f"--gpu-architecture={architecture}"
    for dtype in map(np.dtype, TOLERANCES):
        assert cuda_compiler.compiled(common_source(dtype), options)[1] == ""
        for cell in kinds:
            for kind in ("infer", "forward", "gradient"):
                code, log = cuda_compiler.compiled(source_of(cell, dtype, False, kind, True), options)
                assert code and log == "", (cell, kind, log)
