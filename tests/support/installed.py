"""Packages that a test needs in another process, and a C compiler. Without one it is skipped, but not in continuous
integration."""

import shutil
from importlib.util import find_spec

import pytest
from optional import IN_CI


def needs_installed(*names):
    """Skip the test unless all of these packages are installed; none is imported. "cc" is the C compiler."""
    missing = [name for name in names if (shutil.which(name) if name == "cc" else find_spec(name)) is None]
    if missing and not IN_CI:
        pytest.skip(f"needs {', '.join(missing)}")
