"""Hypothesis profiles: few examples while developing, more and always the same ones in continuous integration.

And a watch over every kernel call: machine code is chosen by the `kind` of a call, not by its arguments' types.
"""

import os

import numba
import numpy as np
import pytest
from gpu import has_gpu
from hypothesis import HealthCheck, settings
from numba._dispatcher import compute_fingerprint

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
def threads_as_before():
    """What a test sets by `numba.set_num_threads` holds no longer than the test."""
    threads = numba.get_num_threads()
    yield
    numba.set_num_threads(threads)


@pytest.fixture
def standin():
    """The GPU engine runs on stand-ins for CuPy and libcudnn; what it asks of the latter is here."""
    from gpu_standin import standin_gpu

    with standin_gpu() as found:
        yield found


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
    """Every call of a kernel has the types that its machine code was compiled for.

    Calls that are laid out for later go through `team.run`, too, as it is then: one place where a test sees them all.
    """
    from rnnkit.kernels.machine import team

    assert not team._code, "a kernel ran before its calls were watched"
    run, compiled, right = team.run, {}, set()

    def check(kernel, kind, arguments):
        # Two calls of one fingerprint, which takes 3 to 30 us, have the same types; to find these out takes a ms.
        call = kernel, kind, compute_fingerprint(arguments)
        if call not in right:
            types = tuple(map(numba.typeof, arguments))
            known = compiled.setdefault((kernel, kind), types)
            assert types == known, f"{kernel} {kind}: called with {types}, compiled for {known}"
            right.add(call)

    def watched(kernel, kind, work, *arguments):
        check(kernel, kind, arguments)
        return run(kernel, kind, work, *arguments)

    def watched_later(kernel, kind, work, like, *arguments):
        check(kernel, kind, (*arguments, like))
        return lambda last: team.run(kernel, kind, work, *arguments, last)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "run", watched)
        patch.setattr(team, "bound", watched_later)
        yield


@pytest.fixture
def soil(monkeypatch):
    """Call it with a byte: from then on new memory holds that everywhere, instead of whatever was there.

    Returns a list, which each allocation is added to.
    """

    def soil_with(byte):
        calls = []
        for name in ("empty", "empty_like"):
            monkeypatch.setattr(np, name, _soiled(getattr(np, name), byte, calls))
        return calls

    return soil_with


def _soiled(allocate, byte, calls):
    def allocated(*args, **options):
        array = allocate(*args, **options)
        calls.append(array.shape)
        array.reshape(-1).view(np.uint8)[...] = byte
        return array

    return allocated
