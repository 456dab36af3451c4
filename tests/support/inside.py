"""Files of tests that run in a process of their own, for libraries that a worker of pytest may not import."""

import importlib.util
import os
import subprocess
import sys

import pytest

PARTS = {"not nightly and not weekly": [], "nightly": [pytest.mark.nightly], "weekly": [pytest.mark.weekly]}
"""Parts of the suite, and the marks of what runs one."""


def run_inside(file, part, needed, tmp_path, *options, **variables):
    """Run the tests of a file that are of this part. They reserve no cores: the caller has one, and waits for them."""
    if os.environ.get("CI") != "true":
        for one in needed:
            if importlib.util.find_spec(one) is None:
                pytest.skip(f"needs {one}")  # CI may not skip it
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", file, "-m", part, *options]
    outside = {name: one for name, one in os.environ.items() if not name.startswith("PYTEST_")}
    outside |= {"JAX_PLATFORMS": "cpu", "TMPDIR": str(tmp_path)} | variables  # a folder for locks of its own
    done = subprocess.run(command, capture_output=True, text=True, env=outside, check=False)
    none = [pytest.ExitCode.NO_TESTS_COLLECTED] if PARTS[part] else []
    assert done.returncode in (0, *none), done.stdout[-4000:] + done.stderr[-2000:]
