"""While a kernel is compiled, and what its decorators promise around it."""

import gc

import pytest
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import TypingError
from numba.extending import overload

from rnnkit_kernels.machine import jit
from rnnkit_kernels.machine.cache import Folder
from rnnkit_kernels.machine.jit import OPTIONS, kernel


@pytest.fixture(autouse=True)
def _nothing_from_before(tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "FOLDER", Folder(str(tmp_path), "rnnkit", "digest"))


@pytest.fixture
def collector():
    """Turns the garbage collector on or off, as a user does; in the end it is as before."""
    before = gc.isenabled()
    yield lambda on: gc.enable() if on else gc.disable()
    gc.enable() if before else gc.disable()


def _seen(x):
    """What looks around while a kernel is compiled."""


LOOKS = []


@overload(_seen, jit_options=OPTIONS)
def _seen_of(x):
    LOOKS.append(gc.isenabled())
    return lambda x: x


@pytest.mark.parametrize(("on", "argument"), [(True, 3), (False, 3.0)], ids=["on", "off"])
def test_collector_is_off_while_a_kernel_is_compiled(collector, on, argument):
    """And as before afterwards, also where that failed."""

    def after(x):
        return _seen(x) + 1

    def wrong(x):
        return x.nothing

    collector(on)
    LOOKS.clear()
    assert kernel(after)(argument) == 4
    assert set(LOOKS) == {False}
    assert gc.isenabled() == on
    with pytest.raises(TypingError, match="nothing"):
        kernel(wrong)(argument)
    assert gc.isenabled() == on


def test_collector_is_switched_under_numbas_lock(collector, monkeypatch):
    """As a fork does: between the two the child would have no collector."""
    held = []
    disable, enable = gc.disable, gc.enable
    monkeypatch.setattr(gc, "disable", lambda: held.append(global_compiler_lock.is_locked()) or disable())
    monkeypatch.setattr(gc, "enable", lambda: held.append(global_compiler_lock.is_locked()) or enable())

    def plain(x):
        return x + 1

    enable()
    assert kernel(plain)(3) == 4
    assert held == [True, True]
