"""rnnkit.jax, in processes of their own, as JAX warns of every fork: each runs a file of tests beside this one."""

from pathlib import Path

import pytest
from inside import PARTS, run_inside

FILES = sorted(Path(__file__).parent.glob("inside_*.py"))
DOCS = [Path(__file__).parents[1] / "docs" / f"test_{one}.py" for one in ("docstrings", "public_names")]
NEEDS = {"inside_flax": ["jax", "flax", "equinox"], "test_docstrings": ["jax", "flax"]}
NEEDS["test_public_names"] = NEEDS["test_docstrings"]
EACH = [
    pytest.param(file, part, id=file.stem.removeprefix("inside_"), marks=marks)
    for part, marks in PARTS.items()
    for file in [*FILES, *([] if marks else DOCS)]
]


@pytest.mark.parametrize(("file", "part"), EACH)
def test_within_jax(file, part, tmp_path):
    chosen = ["-k", "rnnkit.jax"] if file in DOCS else []
    run_inside(file, part, NEEDS.get(file.stem, ["jax"]), tmp_path, *chosen, RNNKIT_TESTS_INSIDE_JAX="1")
