"""A guide in a notebook: each block of code is one of its cells, and runs in a kernel of its own."""

import os
from importlib.util import find_spec

import pytest
from test_docs import NEEDS, blocks_of

KERNEL = "nbclient", "nbformat", "ipykernel"


def test_a_guide_runs_in_a_notebook(tmp_path, monkeypatch):
    """Its first cell, trained and saved: what a notebook has of its own is where the source comes from. As programs all
    guides run (`test_docs`)."""
    name = "how-to/own-cells"
    missing = [module for module in (*KERNEL, *NEEDS[name]) if find_spec(module) is None]
    if missing and os.environ.get("CI") != "true":  # in continuous integration these tests may not be skipped
        pytest.skip(f"needs {', '.join(missing)}")
    for place in ("KERAS_HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):  # not in the home of who runs this
        monkeypatch.setenv(place, str(tmp_path))
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    notebook = new_notebook(cells=[new_code_cell(block) for block in blocks_of(name, "python")[:2]])
    place = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place)
    client.execute()  # raises what a cell raises
    assert all(cell.execution_count for cell in notebook.cells)
