"""A folder of compiled kernels, as new processes use it."""

import pytest
from messages import says

from rnnkit_kernels.machine import jit
from rnnkit_kernels.machine.cache import Folder
from rnnkit_kernels.machine.jit import kernel


def _twice(x):
    return x + x


def _negative(x):
    return -x


def assert_runs(folder, function=_twice, argument=3.0, expected=6.0):
    """Compile the function as a new process would; returns whether its machine code came from the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "FOLDER", folder)
        compiled = kernel(function)
    assert compiled(argument) == expected
    return bool(compiled.stats.cache_hits)


def refusal(path, *facts):
    return says(f"kernel cache: {path}", *facts, "NUMBA_CACHE_DIR")


def assert_refused(folder, match):
    """The folder as it stands is not used, and one warning says why; twice, as by two processes."""
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match=match) as warned:
            found = assert_runs(folder, _twice), assert_runs(folder, _negative, 3.0, -3.0)
        assert found == (False, False)
        assert len(warned) == 1
        folder = anew(folder)


def anew(folder):
    """The same folder, of another process."""
    return Folder(folder.root, *folder.names)
