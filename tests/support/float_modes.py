"""The floating-point mode and the exception flags of this thread: MXCSR, by glibc's fegetenv and fesetenv on x86-64."""

import ctypes
import platform
import sys
from contextlib import contextmanager

import pytest

needs_mxcsr = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or not platform.libc_ver()[0].startswith("glibc"),
    reason="reads MXCSR by glibc on x86-64",
)
DEFAULT = 0x1F80
MODES = {"flush": 0x9FC0, "down": 0x3F80, "up": 0x5F80, "to zero": 0x7F80}
UNDERFLOW = 0x10  # the flag that an operation had a result that was too small for a normal number, and inexact
_MXCSR = 7  # word of glibc's fenv_t


def mode():
    environment = (ctypes.c_uint32 * 8)()
    ctypes.CDLL("libm.so.6").fegetenv(environment)
    return environment[_MXCSR]


def set_mode(value):
    library, environment = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()
    library.fegetenv(environment)
    environment[_MXCSR] = value
    library.fesetenv(environment)


@contextmanager
def in_mode(value):
    before = mode()
    set_mode(value)
    try:
        yield
    finally:
        set_mode(before)


def watched(function, *arguments):
    """Return what a function returns, and whether an operation of this thread underflows in it."""
    with in_mode(DEFAULT):
        found = function(*arguments)
        return found, bool(mode() & UNDERFLOW)
