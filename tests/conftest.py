"""How the tests run: Hypothesis' profiles, who may use which cores, and a check of the types of every kernel call."""

import ctypes
import faulthandler
import os
import signal

import assertions  # noqa: F401  before what it rewrites
import before_numba  # noqa: F401  which reads the environment once
import numba
import numpy as np
import pytest
from cores import Cores, num_cores
from costly import COSTLY
from gpu import has_gpu
from hypothesis import HealthCheck, settings
from idle import forget
from optional import needs, skipped_without

os.environ.setdefault("KERAS_BACKEND", "torch")  # before anything imports Keras

# A first example may compile kernels, hence no deadline. Rejecting problems near a kink is meant, hence no check of it.
COMMON = dict(deadline=None, suppress_health_check=[HealthCheck.filter_too_much])

settings.register_profile("dev", max_examples=10, **COMMON)
settings.register_profile("few", max_examples=10, derandomize=True, **COMMON)  # while faults are planted
settings.register_profile("ci", max_examples=50, derandomize=True, print_blob=True, **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") == "true" else "dev"))

# Background jobs of a shell, `nohup` and many build servers ignore it, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

CORES = Cores()
LIMIT = float(os.environ.get("RNNKIT_TEST_SECONDS", 0))  # of one test, where faults are planted: some never end


def pytest_addoption(parser):
    group = parser.getgroup("stress")
    group.addoption("--stress-minutes", type=float, default=120.0, help="time of all tests of `-m stress` together")
    group.addoption("--stress-seed", type=int, help="repeat the random work of a test of `-m stress` that failed")


def pytest_xdist_auto_num_workers(config):
    """A worker process a core; none for a file or two, which would begin later for it."""
    whole = config.args_source is not config.ArgsSource.ARGS
    return num_cores() if whole and num_cores() > 1 else 0


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses among the marks
def pytest_collection_modifyitems(items):
    """Costly tests run in the part that `costly.txt` says. Those that have all cores come last, when no other waits."""
    for item in items:
        if part := COSTLY.get(item.nodeid):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "nightly"]
            item.add_marker(part)
    items.sort(key=lambda item: item.get_closest_marker("cores") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return skipped_without((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with CORES.taken(alone=item.get_closest_marker("cores") is not None):
        if LIMIT:
            faulthandler.dump_traceback_later(LIMIT, exit=True)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _threads_of_the_engine(request, monkeypatch):
    """One where tests run side by side; a test marked `cores` has as many as the engine wants by itself, or skips."""
    from rnnkit_kernels.machine import thread_pool

    mark, wanted_size = request.node.get_closest_marker("cores"), thread_pool.wanted_size
    if mark is None:
        monkeypatch.setattr(thread_pool, "wanted_size", lambda: 1 if thread_pool._local.size is None else wanted_size())
    elif num_cores() < (needed := mark.args[0]):
        pytest.skip(f"needs {needed} cores, {num_cores()} here")


@pytest.fixture(autouse=True)
def _no_idle_memory_from_before():
    """What was laid out by other constants than the next test has, which it may have set itself."""
    yield
    forget()


@pytest.fixture
def threads_as_before():
    """What a test sets by `numba.set_num_threads` holds no longer than the test."""
    threads = numba.get_num_threads()
    yield
    numba.set_num_threads(threads)


@pytest.fixture
def torch_threads_as_before():
    """The same of those of PyTorch."""
    torch = needs("torch")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def every_worker_comes(monkeypatch):
    """Calls of any size run on as many threads as `thread_pool.wanted_size` says: small ones would run on one."""
    from rnnkit_kernels.machine import thread_pool

    limits = {"WAKE_THRESHOLD": 0, "SINGLE_THREAD_WORK": 0, "_WAKING_WORK": 1, "WORK_PER_SPIN": 1e-3}
    for name, value in limits.items():
        monkeypatch.setattr(thread_pool, name, value)
    monkeypatch.setattr("rnnkit.cpu.route._STEPWISE_WORK", 0)


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
def _calls_as_they_were_laid_out():
    """What is laid out is called with a last argument of the type that was looked at, which the machine code takes it
    for."""
    from rnnkit_kernels.machine import thread_pool
    from rnnkit_kernels.machine.arguments import types_of
    from rnnkit_kernels.machine.bound import Bound

    run, bound = thread_pool.run, thread_pool.bound

    def watched(kernel, work, like, *arguments, code_cache=None):
        call, expected = bound(kernel, work, like, *arguments, code_cache=code_cache), types_of(kernel, (like,))
        if code_cache is not None:
            own = types_of(kernel, arguments)
            assert code_cache.setdefault((kernel,), own) == own, f"{kernel}: called from one place with other types"

        def checked(last):
            own = _as_laid_out(last, like)
            assert types_of(kernel, (own,)) == expected, f"{kernel}: called with another type than laid out"
            if thread_pool.run is not run:  # a test looks at every call: so it does at those laid out
                return thread_pool.run(kernel, work, Bound(arguments), own)
            return call(last)

        checked.call = call.call
        return checked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_pool, "bound", watched)
        yield


def _as_laid_out(given, like):
    """What a call is given, with flat arrays where it has addresses, or C-contiguous arrays of more dimensions."""
    if isinstance(given, tuple) and isinstance(like, tuple) and len(given) == len(like):
        own = map(_as_laid_out, given, like)
        return type(given)._make(own) if hasattr(given, "_make") else tuple(own)
    if not isinstance(like, np.ndarray) or like.ndim != 1:
        return given
    if isinstance(given, np.ndarray):
        assert given.flags.carray
        return given.reshape(-1)
    if type(given) is int and given > 0:
        return np.frombuffer((ctypes.c_byte * (1 << 40)).from_address(given), like.dtype)
    return like[:0] if type(given) is int and given == 0 else given


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
