"""rnnkit.jax, in processes of their own, as JAX warns of every fork: each runs a file of tests beside this one."""

from pathlib import Path

import pytest
from inside import PARTS, run_inside

FILES = sorted(Path(__file__).parent.glob("inside_*.py"))
DOCS = [Path(__file__).parents[1] / "docs" / f"test_{one}.py" for one in ("docstrings", "public_names")]
NEEDS = {"inside_flax": ["jax", "flax", "equinox"], "test_docstrings": ["jax", "flax"]}
NEEDS["test_public_names"] = NEEDS["test_docstrings"]
# XLA compiles each case. Part of the suite -> the files whose default tests it runs; all others run weekly.
DEFAULT, NIGHTLY, WEEKLY = PARTS
FILES_OF = {DEFAULT: ("test_public_names",), NIGHTLY: ("inside_calls", "inside_equations")}


def part_of(file, part):
    """The part of the suite that runs a part of a file."""
    return next((own for own, names in FILES_OF.items() if part == DEFAULT and file.stem in names), WEEKLY)


EACH = [
    pytest.param(file, part, id=file.stem.removeprefix("inside_"), marks=PARTS[part_of(file, part)])
    for part in PARTS
    for file in [*FILES, *(DOCS if part == DEFAULT else [])]
]


@pytest.mark.parametrize(("file", "part"), EACH)
def test_within_jax(file, part, tmp_path):
    chosen = ["-k", "rnnkit.jax"] if file in DOCS else []
    run_inside(file, part, NEEDS.get(file.stem, ["jax"]), tmp_path, *chosen, RNNKIT_TESTS_INSIDE_JAX="1")
