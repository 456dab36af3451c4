"""Hypothesis profiles: few examples while developing, more and always the same ones in continuous integration.

And a watch over every kernel call: machine code is chosen by the `kind` of a call, not by its arguments' types.
"""

import os

import numba
import pytest
from hypothesis import HealthCheck, settings

# A first example may compile kernels, hence no deadline. Rejecting problems near a kink is meant, hence no check of it.
COMMON = dict(deadline=None, suppress_health_check=[HealthCheck.filter_too_much])

settings.register_profile("dev", max_examples=10, **COMMON)
settings.register_profile("ci", max_examples=50, derandomize=True, print_blob=True, **COMMON)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")


def pytest_addoption(parser):
    group = parser.getgroup("stress")
    group.addoption("--stress-minutes", type=float, default=120.0, help="time of all tests of `-m stress` together")
    group.addoption("--stress-seed", type=int, help="repeat the random work of a test of `-m stress` that failed")


@pytest.fixture
def standin():
    """The GPU engine runs on stand-ins for CuPy and libcudnn; what it asks of the latter is here."""
    from gpu_standin import standin_gpu

    with standin_gpu() as found:
        yield found


def has_gpu():
    try:
        import cupy
    except ImportError:
        return False
    return cupy.cuda.is_available()


@pytest.fixture(params=["stand-in", pytest.param("device", marks=pytest.mark.gpu)])
def gpu(request):
    """The GPU engine runs on the stand-ins, and then on the GPU if there is one."""
    if request.param == "stand-in":
        request.getfixturevalue("standin")
    elif not has_gpu():
        pytest.skip("no GPU that CuPy can use")
    return request.param


@pytest.fixture(autouse=True, scope="session")
def _one_kind_one_signature():
    from rnnkit.kernels import team

    code, signatures = team._compiled, {}

    def checked(kernel, kind, arguments):
        signature = tuple(map(numba.typeof, arguments))
        known = signatures.setdefault((kernel, kind), signature)
        assert known == signature, f"{kernel} {kind}: called with {signature}, compiled for {known}"
        return code(kernel, kind, arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "_compiled", checked)
        yield
