"""What users are told to install is what the package declares."""

import ast
import re
import tomllib

import pytest
from repository import ROOT

from rnnkit.common.extras import EXTRAS, to_install, to_install_extra

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = {
    extra: [re.match(r"[\w-]+", one)[0] for one in wanted] for extra, wanted in PROJECT["optional-dependencies"].items()
}
SOURCES = [path for folder in ("rnnkit", "perf") for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize(("package", "extra"), EXTRAS.items())
def test_extras_bring_their_package(package, extra):
    assert package in DECLARED[extra]
    said = to_install(package)
    assert {f"'rnnkit[{extra}]'", f"'.[{extra}]'"} == set(re.findall(r"'.*?'", said.replace("rnnkit's", "")))
    assert said.endswith(f" or {package} alone")


def test_package_of_no_extra_is_installed_alone():
    assert to_install("ml_dtypes") == "install it with pip install ml_dtypes"


def test_named_extras_exist():
    nodes = (node for path in SOURCES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    first = [node.args[0] for node in nodes if getattr(node.func, "id", "") == "to_install_extra"]
    named = [argument.value for argument in first if isinstance(argument, ast.Constant)]
    assert {"cuda13", "mpi"} <= set(named) <= DECLARED.keys()
    assert 'extra "mpi"' in to_install_extra("mpi")


def test_only_extras_says_how_to_install():
    said = [path.relative_to(ROOT).as_posix() for path in SOURCES if "pip install" in path.read_text()]
    assert said == ["rnnkit/common/extras.py"]
