"""rnnkit.keras on each backend, in a process of its own: Keras has one backend in a process."""

from pathlib import Path

import pytest
from inside import PARTS, run_inside

FILES = sorted(Path(__file__).parent.glob("inside_*.py"))
# TensorFlow has an environment of its own, which `.ci/weekly` makes.
BACKENDS = "torch", "numpy", "jax"
DEFAULT, NIGHTLY, WEEKLY = PARTS


def part_of(file, backend, part):
    """The part of the suite that runs a part of a file: nightly the layers' default tests on torch alone."""
    return NIGHTLY if (file.stem, backend, part) == ("inside_layers", "torch", DEFAULT) else WEEKLY


EACH = [
    pytest.param(*one, id=f"{one[0].stem.removeprefix('inside_')}-{one[1]}", marks=PARTS[part_of(*one)])
    for one in ((file, backend, part) for part in PARTS for file in FILES for backend in BACKENDS)
]


@pytest.mark.parametrize(("file", "backend", "part"), EACH)
def test_within_keras(file, backend, part, tmp_path):
    needed = "keras", backend
    run_inside(file, part, needed, tmp_path, KERAS_BACKEND=backend, KERAS_HOME=str(tmp_path / "keras"))
