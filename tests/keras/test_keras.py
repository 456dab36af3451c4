"""rnnkit.keras on each backend, in a process of its own: Keras has one backend in a process."""

from pathlib import Path

import pytest
from inside import PARTS, run_inside

FILES = sorted(Path(__file__).parent.glob("inside_*.py"))
# Nightly torch alone, the tests that a file has by default. TensorFlow has an environment of its own, which
# `.ci/weekly` makes.
DEFAULT, NIGHTLY, WEEKLY = PARTS
MARKS = dict.fromkeys(PARTS, PARTS[WEEKLY])
BACKENDS = {"torch": MARKS | {DEFAULT: PARTS[NIGHTLY]}, "numpy": MARKS, "jax": MARKS}
EACH = [
    pytest.param(file, backend, part, id=f"{file.stem.removeprefix('inside_')}-{backend}", marks=marks[part])
    for part in PARTS
    for file in FILES
    for backend, marks in BACKENDS.items()
]


@pytest.mark.parametrize(("file", "backend", "part"), EACH)
def test_within_keras(file, backend, part, tmp_path):
    needed = "keras", backend
    run_inside(file, part, needed, tmp_path, KERAS_BACKEND=backend, KERAS_HOME=str(tmp_path / "keras"))
