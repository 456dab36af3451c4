"""A guide in a notebook: each block of code is one of its cells, and runs in a kernel of its own."""

import pytest
from guides import NEEDS, blocks_of
from installed import needs_installed


@pytest.mark.nightly
def test_guide_runs_in_a_notebook(tmp_path, monkeypatch):
    """Where the source of a cell comes from differs in a notebook; `test_docs` runs all guides as programs."""
    name = "how-to/own-cells"
    needs_installed("nbclient", "nbformat", "ipykernel", *NEEDS[name])
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
