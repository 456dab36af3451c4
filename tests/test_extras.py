"""What users are told to install is what the package declares."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from rnnkit.common.extras import EXTRAS, to_install, to_install_extra

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = {
    extra: [re.match(r"[\w-]+", one)[0] for one in wanted]
    for extra, wanted in PROJECT["optional-dependencies"].items()
}
SOURCES = [path for folder in ("rnnkit", "perf") for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize(("package", "extra"), EXTRAS.items())
def test_an_extra_brings_its_package(package, extra):
    assert package in DECLARED[extra]
    said = to_install(package)
    assert {f"'rnnkit[{extra}]'", f"'.[{extra}]'"} == set(re.findall(r"'.*?'", said.replace("rnnkit's", "")))
    assert said.endswith(f" or {package} alone")


def test_a_package_of_no_extra():
    assert to_install("ml_dtypes") == "install it with pip install ml_dtypes"


def test_every_extra_that_is_named_exists():
    calls = [
        node for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "to_install_extra"
    ]  # fmt: skip
    named = [call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)]
    assert {"cuda13", "mpi"} <= set(named) <= DECLARED.keys()
    assert 'extra "mpi"' in to_install_extra("mpi")


def test_one_place_says_how_to_install():
    said = [path.relative_to(ROOT).as_posix() for path in SOURCES if "pip install" in path.read_text()]
    assert said == ["rnnkit/common/extras.py"]
