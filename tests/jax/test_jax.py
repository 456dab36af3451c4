"""rnnkit.jax, in processes of their own, as JAX warns of every fork: each runs a file of tests beside this one."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted(Path(__file__).parent.glob("inside_*.py"))
DOCS = [Path(__file__).parents[1] / "docs" / f"test_{one}.py" for one in ("docstrings", "public_names")]
NEEDS = {"inside_flax": "flax", "test_docstrings": "flax", "test_public_names": "flax"}
PARTS = {"not nightly and not weekly": [], "nightly": [pytest.mark.nightly], "weekly": [pytest.mark.weekly]}
EACH = [
    pytest.param(file, part, id=file.stem.removeprefix("inside_"), marks=marks)
    for part, marks in PARTS.items()
    for file in [*FILES, *([] if marks else DOCS)]
]


@pytest.mark.parametrize(("file", "part"), EACH)
def test_within_jax(file, part, tmp_path):
    """The tests of one file that run in this part. They reserve no cores: this test has one, and waits for them."""
    needed = "jax", NEEDS.get(file.stem, "jax")
    if os.environ.get("CI") != "true" and any(importlib.util.find_spec(one) is None for one in needed):
        pytest.skip(f"needs {needed[-1]}")  # CI may not skip it
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", file, "-m", part]
    command += ["-k", "rnnkit.jax"] if file in DOCS else []
    outside = {name: one for name, one in os.environ.items() if not name.startswith("PYTEST_")}
    outside |= {"JAX_PLATFORMS": "cpu", "RNNKIT_TESTS_INSIDE_JAX": "1", "TMPDIR": str(tmp_path)}  # where locks are
    done = subprocess.run(command, capture_output=True, text=True, env=outside, check=False)
    none = [pytest.ExitCode.NO_TESTS_COLLECTED] if PARTS[part] else []
    assert done.returncode in (0, *none), done.stdout[-4000:] + done.stderr[-2000:]
