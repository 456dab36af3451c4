"""The guides: their code runs, from top to bottom."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
NEEDS = {
    "from-pytorch": ["torch"], "from-keras-onnx": ["torch", "keras", "onnx", "onnxruntime", "safetensors"],
    "many-machines": [],  # what needs more is run by test_many_machines.py
}


def test_every_guide_is_run():
    assert {path.stem for path in DOCS.glob("*.md")} == set(NEEDS)


@pytest.mark.parametrize("name", NEEDS)
def test_the_code_of_a_guide_runs(name, tmp_path):
    missing = [module for module in NEEDS[name] if find_spec(module) is None]
    if missing and os.environ.get("CI") != "true":  # in continuous integration these tests may not be skipped
        pytest.skip(f"needs {', '.join(missing)}")
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / f"{name}.md").read_text(), re.MULTILINE | re.DOTALL)
    program = tmp_path / "guide.py"
    program.write_text("\n".join(blocks))
    environment = os.environ | {"KERAS_BACKEND": "torch", "KERAS_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
