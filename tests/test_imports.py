"""Imports point one way, and `import rnnkit` stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

CORE = {"checks", "arrays", "weights", "workspace", "steps", "descriptor", "errors", "lazy", "cells"}
# Module -> the modules of the package that it may import. What is not listed here does not belong to the package.
DIRECTION = {
    "__main__": {"__init__", "training", "textmodel", "corpus", "archive", "descriptor"},
    "training": {"__init__", "textmodel", "corpus"},
    "textmodel": {"__init__", "network", "archive", "weights", "descriptor", "errors"},
    "corpus": {"errors"},
    "__init__": {"network", "plan", "engine", *CORE},
    "network": {"plan", "engine", "archive", *CORE},
    "plan": {"engine", "_cpu", "_gpu", *CORE},
    "engine": {"_cpu", "_gpu", "forking", *CORE},
    "_cpu": {"_cpu_layer", "_cpu_sharing", "_cpu_run", "_cpu_backward", "_cpu_infer", "kernels", *CORE - {"checks"}},
    "_cpu_infer": {"_cpu_layer", "_cpu_sharing", "_cpu_run", "kernels", *CORE - {"checks"}},
    "_cpu_backward": {"_cpu_layer", "_cpu_sharing", "_cpu_run", "kernels", *CORE - {"checks"}},
    "_cpu_run": {"_cpu_layer", "_cpu_sharing", "kernels", *CORE - {"checks"}},
    "_cpu_sharing": {"_cpu_layer", "kernels", *CORE - {"checks"}},
    "_cpu_layer": {"kernels", *CORE - {"checks"}},
    "_gpu": {"_gpu_context", "_cudnn", *CORE - {"checks"}},
    "_gpu_context": {"_cudnn", "weights", "descriptor", "errors", "cells"},
    "_cudnn": {"errors"},
    "checks": {"arrays", "weights", "descriptor", "errors"},
    "arrays": {"errors"},
    "weights": {"arrays", "descriptor", "errors"},
    "workspace": {"arrays", "forking", "steps", "descriptor", "errors", "cells"},
    "steps": {"lazy"},
    "descriptor": {"errors", "lazy", "cells"},
    "cells": set(),
    "forking": set(),
    "lazy": set(),
    "archive": {"errors"},
    "errors": set(),
}
FOR_KERNELS = {"numpy", "numba", "llvmlite"} | sys.stdlib_module_names
FOR_CELLS = {"numpy"} | sys.stdlib_module_names  # the descriptor reads what a cell says before Numba is imported
LAZY = {"_cpu", "_gpu"}  # imported on the first call: they bring numba and cupy


def modules():
    return sorted(path.stem for path in (ROOT / "rnnkit").glob("*.py"))


def kernels():
    return sorted((ROOT / "kernels").rglob("*.py"))


def imported(tree, package):
    """The absolute names of what a module of the package imports anywhere, functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            # From a package come its modules, or else its names.
            yield from (f"{source}.{alias.name}" for alias in node.names)


def submodules(tree):
    """Which modules of rnnkit are imported; a public name stands for `__init__`, all of rnnkit.kernels for one, and
    the cells in there for another."""
    for name in imported(tree, "rnnkit"):
        root, *inside = name.split(".")
        if root == "rnnkit":
            if inside[:2] == ["kernels", "cells"]:
                yield "cells"
            else:
                yield inside[0] if inside and inside[0] in {*DIRECTION, "kernels"} else "__init__"


def parsed(path):
    return ast.parse(path.read_text(), filename=str(path))


def assert_direction(module, tree):
    wrong = set(submodules(tree)) - DIRECTION[module]
    assert not wrong, f"{module} must not import {sorted(wrong)}"


def assert_kernel_imports(tree, package="rnnkit.kernels"):
    names, others = set(imported(tree, package)), FOR_CELLS if package.endswith(".cells") else FOR_KERNELS
    wrong = {name for name in names if not name.startswith(f"{package}.") and name.split(".")[0] not in others}
    assert not wrong, f"{'a cell' if others is FOR_CELLS else 'a kernel'} must not import {sorted(wrong)}"


def test_there_is_something_to_read():
    assert {"__init__", "engine", "network", "weights", "descriptor", "errors"} <= set(modules())
    assert {"jit.py", "simd.py", "cells/lstm.py"} <= {str(path.relative_to(ROOT / "kernels")) for path in kernels()}


@pytest.mark.parametrize("module", modules())
def test_imports_point_one_way(module):
    assert_direction(module, parsed(ROOT / "rnnkit" / f"{module}.py"))


@pytest.mark.parametrize("path", kernels(), ids=lambda path: path.stem)
def test_kernels_never_import_the_package(path):
    room = path.parent.relative_to(ROOT).parts
    assert_kernel_imports(parsed(path), ".".join(["rnnkit", *room]))


def test_cells_import_no_compiler():
    with pytest.raises(AssertionError, match="a cell must not import"):
        assert_kernel_imports(ast.parse("from numba import njit"), "rnnkit.kernels.cells")
    with pytest.raises(AssertionError, match="a cell must not import"):
        assert_kernel_imports(ast.parse("from ..simd import fma"), "rnnkit.kernels.cells")


@pytest.mark.parametrize("module", modules())
def test_backends_are_imported_lazily(module):
    top_level = ast.Module([n for n in parsed(ROOT / "rnnkit" / f"{module}.py").body if not is_definition(n)], [])
    assert not LAZY & set(submodules(top_level))


def is_definition(node):
    return isinstance(node, (ast.FunctionDef, ast.ClassDef))


def test_the_direction_has_no_circle():
    left = dict(DIRECTION)
    while left:
        leaves = [module for module, targets in left.items() if not targets & left.keys()]
        assert leaves, f"a circle among {sorted(left)}"
        for module in leaves:
            del left[module]


def test_nothing_is_defined_in_init():
    tree = parsed(ROOT / "rnnkit" / "__init__.py")
    assert [node.name for node in tree.body if is_definition(node)] == ["__getattr__"]  # for __version__


@pytest.mark.parametrize("source", [
    "import rnnkit", "import rnnkit.engine", "from rnnkit import LSTM", "from rnnkit import engine",
    "from rnnkit.engine import forward", "from . import engine", "from .engine import forward",
    "def later():\n    from rnnkit import engine",
])
def test_the_check_sees_a_wrong_import_in_every_form(source):
    with pytest.raises(AssertionError, match="weights must not import"):
        assert_direction("weights", ast.parse(source))
    with pytest.raises(AssertionError, match="a kernel must not import"):
        assert_kernel_imports(ast.parse(source.replace("from .", "from ..")))


@pytest.mark.parametrize("source", [
    "from .simd import fma", "from . import simd", "import rnnkit.kernels.simd", "import os",
])
def test_kernels_may_import_each_other(source):
    assert_kernel_imports(ast.parse(source))


def in_fresh_process(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


HEAVY = "numba", "llvmlite", "cupy", "scipy", "torch", "tqdm"
SHOW = f"; import sys; print(*[name for name in {HEAVY} if name in sys.modules])"


def test_import_loads_nothing_heavy():
    assert in_fresh_process("import rnnkit" + SHOW) == []
    found = in_fresh_process("import numba, tqdm" + SHOW)
    assert {"numba", "llvmlite", "tqdm"} <= set(found)  # the question can be answered


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    import rnnkit

    assert rnnkit.__version__ == version("rnnkit")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rnnkit.nothing


PUBLIC = """
    RNNDescriptor num_weights weight_layout weight_views WeightBlock init_weights pack_weights workspace_nbytes
    forward backward infer prepare Forward Backward Infer Workspace Plan LSTM GRU RNN load WorkspaceError BackendError
    __version__
"""


def test_public_names():
    import rnnkit

    assert sorted(rnnkit.__all__) == sorted(PUBLIC.split())
    for name in rnnkit.__all__:
        assert getattr(rnnkit, name) is not None
    assert (ROOT / "rnnkit" / "py.typed").exists()
