"""rnnkit.keras on each backend, in a process of its own: Keras has one backend in a process."""

from pathlib import Path

import pytest
from inside import PARTS, run_inside

FILES = sorted(Path(__file__).parent.glob("inside_*.py"))
BACKENDS = {"torch": "torch", "jax": "jax", "numpy": "numpy"}
LONG = {("inside_layers", "jax", "nightly"): [pytest.mark.weekly]}  # XLA compiles each of some hundred cases
EACH = [
    pytest.param(
        file,
        backend,
        part,
        id=f"{file.stem.removeprefix('inside_')}-{backend}",
        marks=LONG.get((file.stem, backend, part), marks),
    )
    for part, marks in PARTS.items()
    for file in FILES
    for backend in BACKENDS
]


@pytest.mark.parametrize(("file", "backend", "part"), EACH)
def test_within_keras(file, backend, part, tmp_path):
    needed = "keras", BACKENDS[backend]
    run_inside(file, part, needed, tmp_path, KERAS_BACKEND=backend, KERAS_HOME=str(tmp_path / "keras"))
