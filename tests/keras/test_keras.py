"""rnnkit.keras on each backend, in a process of its own: Keras has one backend in a process."""

from pathlib import Path

import pytest
from inside import PARTS, run_inside

FILES = sorted(Path(__file__).parent.glob("inside_*.py"))
# By default torch alone; XLA compiles each case, so that JAX's nightly part is weekly. TensorFlow has an environment of
# its own, which `.ci/weekly` makes.
DEFAULT, NIGHTLY, WEEKLY = PARTS
MARKS = PARTS | {DEFAULT: PARTS[NIGHTLY]}
BACKENDS = {"torch": PARTS, "numpy": MARKS, "jax": MARKS | {NIGHTLY: PARTS[WEEKLY]}}
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
