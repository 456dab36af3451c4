"""rnnkit.keras on each backend, in a process of its own: Keras has one backend in a process."""

from pathlib import Path

import pytest
from inside import PARTS, run_inside

FILES = sorted(Path(__file__).parent.glob("inside_*.py"))
# XLA compiles each case: with JAX the default part runs nightly, and the nightly part weekly. TensorFlow has an
# environment of its own, which `.ci/weekly` makes.
LATER = {"nightly": [pytest.mark.weekly], "weekly": [pytest.mark.weekly]}
EACH = [
    pytest.param(
        file,
        backend,
        part,
        id=f"{file.stem.removeprefix('inside_')}-{backend}",
        marks=LATER.get(part, [pytest.mark.nightly]) if backend == "jax" else marks,
    )
    for part, marks in PARTS.items()
    for file in FILES
    for backend in ("torch", "jax", "numpy")
]


@pytest.mark.parametrize(("file", "backend", "part"), EACH)
def test_within_keras(file, backend, part, tmp_path):
    needed = "keras", backend
    run_inside(file, part, needed, tmp_path, KERAS_BACKEND=backend, KERAS_HOME=str(tmp_path / "keras"))
