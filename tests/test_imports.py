"""Imports point one way, and `import rnnkit` stays light."""

import ast
import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest
from public_names import PUBLIC

ROOT = Path(__file__).resolve().parents[1]

# What the converters of other frameworks share, and what each may import; its own framework never at its top level.
SHARED = {
    "interop.networks", "interop.stacks", "network", "classes", "weights", "descriptor", "errors", "kernels.cells",
}
CORE = {
    "checks", "arena", "arrays", "weights", "workspace", "options", "memory", "steps", "states", "descriptor", "modes",
    "numbers", "errors", "lazy", "forking", "kernels.cells",
}
ENGINE = CORE - {"checks"}  # arguments are checked before an engine is called
# Module -> the modules of the package that it may import. What is not listed here
# does not belong to the package.
DIRECTION = {
    "__main__": {"language_model.command_line"},
    "warmup": {"__init__", "kernels.cells", "training", "types", "weights"},
    "language_model.command_line": {
        "__init__", "language_model.commands", "language_model.console", "language_model.every",
        "language_model.job", "language_model.settings", "language_model.train_command", "descriptor", "types",
    },
    "language_model.train_command": {
        "language_model.console", "language_model.corpus", "language_model.job", "language_model.report",
        "language_model.sampling", "language_model.scoring", "language_model.training", "distributed",
    },
    "language_model.job": {
        "language_model.checkpoint", "language_model.configuration", "language_model.console", "language_model.corpus",
        "language_model.every", "language_model.model", "language_model.report", "language_model.settings",
        "language_model.training", "archive",
    },
    "language_model.commands": {
        "language_model.console", "language_model.corpus", "language_model.model", "language_model.plot",
        "language_model.sampling", "language_model.scoring", "archive", "descriptor", "warmup", "kernels",
    },
    "language_model.configuration": {
        "language_model.console", "language_model.every", "language_model.settings", "archive",
    },
    "language_model.plot": {"language_model.report", "errors"},
    "language_model.report": {"language_model.console", "language_model.training", "archive", "errors"},
    "language_model.checkpoint": {
        "language_model.every", "language_model.model", "language_model.settings", "language_model.training",
        "training", "archive", "descriptor",
    },
    "language_model.every": {"language_model.training"},
    "language_model.scoring": {
        "__init__", "language_model.corpus", "language_model.model", "training", "errors", "types",
    },
    "language_model.sampling": {"__init__", "language_model.model", "errors", "types"},
    "language_model.readout": {"training", "kernels"},
    "language_model.training": {
        "language_model.corpus", "language_model.model", "language_model.settings", "distributed", "training",
        "errors",
    },
    "language_model.settings": {"descriptor", "errors"},
    "language_model.console": {"errors"},
    "language_model.model": {
        "__init__", "language_model.readout", "training", "saved", "archive", "weights", "descriptor", "errors",
    },
    "language_model.corpus": {"archive", "errors"},
    "language_model": set(),
    "training": {"training.clipping", "training.losses", "training.optimizers", "training.padding", "training.readout"},
    "training.clipping": {"training.arguments", "arrays", "kernels"},
    "training.padding": {"training.arguments", "checks", "arrays", "errors"},
    "training.readout": {"training.arguments", "checks", "arrays", "errors"},
    "training.losses": {"training.arguments", "checks", "arrays", "errors"},
    "training.optimizers": {"training.arguments", "checks", "arrays", "errors", "kernels"},
    "training.arguments": {"checks", "arrays", "numbers", "errors"},
    "sklearn": {"sklearn.classifier", "sklearn.regressor"},
    "sklearn.classifier": {"sklearn.base", "sklearn.model", "training", "training.arguments", "errors"},
    "sklearn.regressor": {"sklearn.base", "sklearn.model", "training", "errors"},
    "sklearn.base": {
        "sklearn.fitting", "sklearn.model", "sklearn.pooling", "sklearn.sequences", "training", "training.arguments",
        "network", "arrays", "weights", "descriptor", "errors",
    },
    "sklearn.fitting": {"sklearn.model", "sklearn.sequences", "training", "errors"},
    "sklearn.model": {"sklearn.pooling", "sklearn.sequences", "network", "workspace"},
    "sklearn.pooling": {"training"},
    "sklearn.sequences": {"arrays", "errors"},
    "distributed": {"distributed.collectives", "distributed.launch", "distributed.ranks"},
    "distributed.collectives": {"distributed.launch", "arrays", "errors"},
    "distributed.launch": {"errors"},
    "distributed.ranks": {"distributed.launch", "forking", "kernels", "errors"},
    "torch": {"torch.acceleration", "torch.modules"},
    "torch.acceleration": {"torch.modules", "errors"},
    "torch.modules": {"torch.function", "weights", "descriptor", "errors"},
    "torch.function": {"torch.threads", "engine", "weights", "descriptor", "errors"},
    "torch.threads": {"forking", "kernels"},
    "interop": {
        "interop.flux", "interop.jax", "interop.keras", "interop.mxnet", "interop.onnx", "interop.onnx_files",
        "interop.safetensors", "interop.torch",
    },
    "interop.onnx_files": {
        "interop.onnx", "interop.onnx_model", "interop.networks", "interop.packages", "archive", "errors",
    },
    "interop.onnx_model": {"descriptor"},
    "interop.onnx": {"interop.onnx_operators", "checks", "arrays", "engine", *SHARED},
    "interop.onnx_operators": {"errors", "kernels.cells"},
    "interop.safetensors": {"interop.torch", "interop.networks", "interop.packages", "archive", "descriptor", "errors"},
    "interop.packages": {"errors"},
    "interop.flux": SHARED,
    "interop.jax": SHARED,
    "interop.keras": SHARED,
    "interop.mxnet": SHARED,
    "interop.torch": SHARED,
    "interop.stacks": {"interop.networks", "weights", "descriptor", "errors"},
    "interop.networks": {"network", "arrays", "weights", "descriptor", "errors", "classes"},
    "debugging": {"workspace", "arrays", "errors"},
    "__init__": {"network", "cell_check", "debugging", "plan", "stream", "engine", *CORE},
    "network": {"base_network", "saved", "engine", "archive", "types", "classes", *CORE},
    "base_network": {"saved", "plan", "engine", "types", "views", "classes", *CORE},
    "views": {"types", "arrays", "weights", "descriptor", "errors"},
    "saved": {"archive", "arrays", "weights", "descriptor", "errors"},
    "plan": {"stream", "engine", "types", *CORE},
    "stream": CORE,
    "engine": {"cpu.engine", "cuda.engine", "debugging", "types", *CORE},
    "cpu.engine": {
        "cpu.layer", "cpu.rows", "cpu.planner", "cpu.run", "cpu.backward", "cpu.checkpoints", "cpu.infer", *ENGINE,
    },
    "cpu.checkpoints": {"cpu.layer", "cpu.rows", "cpu.planner", "cpu.run", "cpu.backward", "kernels", *ENGINE},
    "cpu.infer": {"cpu.layer", "cpu.rows", "cpu.planner", "cpu.run", "cpu.stack", "kernels", *ENGINE},
    "cpu.stack": {"cpu.layer", "cpu.planner", "cpu.reduced", "kernels", *ENGINE},
    "cpu.reduced": {"cpu.layer", "kernels", *ENGINE},
    "cpu.backward": {"cpu.layer", "cpu.rows", "cpu.planner", "cpu.run", "kernels", *ENGINE},
    "cpu.run": {"cpu.layer", "cpu.rows", "cpu.planner", "kernels", *ENGINE},
    "cpu.planner": {"cpu.layer", "cpu.rows", "kernels", *ENGINE},
    "cpu.rows": {"kernels", *ENGINE},
    "cpu.layer": {"kernels", *ENGINE},
    "cpu": set(),
    "cuda.engine": {"cuda.context", "cuda.cudnn", *ENGINE},
    "cuda.context": {"cuda.cudnn", "weights", "descriptor", "errors"},
    "cuda.cudnn": {"errors"},
    "cuda": set(),
    "checks": {"arrays", "weights", "states", "descriptor", "modes", "errors"},
    "arrays": {"errors"},
    "weights": {"arrays", "descriptor", "errors"},
    "workspace": {"options", "memory", "steps", "descriptor", "errors", "kernels.cells"},
    "options": {"checks", "steps", "types", "descriptor", "errors"},
    "memory": {"arena", "errors", "forking"},
    "arena": {"arrays"},
    "steps": set(),
    "states": {"descriptor"},
    "types": set(),
    "descriptor": {"modes", "types", "numbers", "errors", "lazy", "kernels.cells"},
    "cell_check": {"checks", "modes", "errors", "kernels.cells"},
    "modes": {"cells", "numbers", "errors", "kernels.cells"},
    "numbers": {"errors"},
    "cells": {"kernels.cells"},
    "kernels.cells": set(),
    "classes": set(),
    "forking": {"kernels"},
    "lazy": set(),
    "archive": {"errors"},
    "errors": set(),
}
FOR_KERNELS = {"numpy", "numba", "llvmlite"} | sys.stdlib_module_names
FOR_CELLS = {"numpy"} | sys.stdlib_module_names  # the descriptor reads what a cell says before Numba is imported
FOR_CONVERTERS = {"numpy", "rnnkit"} | sys.stdlib_module_names
LAZY = {"cpu.engine", "cuda.engine"}  # imported on the first call: they bring numba and cupy


def modules():
    """Module -> its file, for all of the package but its kernels; a package goes by the name of its folder."""
    found = {}
    for path in sorted(set((ROOT / "rnnkit").rglob("*.py")) - set(kernels())):
        *package, name = path.relative_to(ROOT / "rnnkit").with_suffix("").parts
        found[".".join(package if package and name == "__init__" else [*package, name])] = path
    return found


def kernels():
    return sorted((ROOT / "rnnkit" / "kernels").rglob("*.py"))


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


def submodules(tree, module="__init__"):
    """Which modules of rnnkit are imported; a public name stands for `__init__`, all of rnnkit.kernels for one, and
    the cells in there for another."""
    package = ".".join(["rnnkit", *module.split(".")[:-1]])
    for name in imported(tree, package):
        root, *inside = name.split(".")
        if root == "rnnkit" and inside[:1] == ["kernels"]:
            yield "kernels.cells" if inside[1:2] == ["cells"] else "kernels"
        elif root == "rnnkit":
            outer = [".".join(inside[:length]) for length in range(len(inside), 0, -1)]
            yield next((one for one in outer if one in DIRECTION), "__init__")


def parsed(path):
    return ast.parse(path.read_text(), filename=str(path))


def assert_direction(module, tree):
    wrong = set(submodules(tree, module)) - DIRECTION[module]
    assert not wrong, f"{module} must not import {sorted(wrong)}"


def assert_kernel_imports(tree, package="rnnkit.kernels"):
    """A kernel imports kernels, and a cell only cells."""
    own, others, who = "rnnkit.kernels.", FOR_KERNELS, "a kernel"
    if package == "rnnkit.kernels.cells":
        own, others, who = f"{package}.", FOR_CELLS, "a cell"
    names = set(imported(tree, package))
    wrong = {name for name in names if not name.startswith(own) and name.split(".")[0] not in others}
    assert not wrong, f"{who} must not import {sorted(wrong)}"


def test_there_is_something_to_read():
    assert {"__init__", "engine", "network", "cpu.engine", "cuda.cudnn", "errors"} <= set(modules())
    found = {path.relative_to(ROOT / "rnnkit" / "kernels").as_posix() for path in kernels()}
    assert {"loop.py", "machine/jit.py", "cells/lstm.py"} <= found


@pytest.mark.parametrize("module", modules())
def test_imports_point_one_way(module):
    assert_direction(module, parsed(modules()[module]))


@pytest.mark.parametrize("path", kernels(), ids=lambda path: path.stem)
def test_kernels_never_import_the_package(path):
    assert_kernel_imports(parsed(path), ".".join(path.parent.relative_to(ROOT).parts))


def test_cells_import_no_compiler():
    with pytest.raises(AssertionError, match="a cell must not import"):
        assert_kernel_imports(ast.parse("from numba import njit"), "rnnkit.kernels.cells")
    with pytest.raises(AssertionError, match="a cell must not import"):
        assert_kernel_imports(ast.parse("from ..machine.jit import kernel"), "rnnkit.kernels.cells")


@pytest.mark.parametrize("module", modules())
def test_backends_are_imported_lazily(module):
    assert not LAZY & set(submodules(at_top_level(parsed(modules()[module])), module))


def at_top_level(tree):
    return ast.Module([node for node in tree.body if not is_definition(node)], [])


def assert_imports_no_framework(module, tree):
    """A converter imports NumPy, rnnkit and the standard library; what reads a framework's files may do so later."""
    package = ".".join(["rnnkit", *module.split(".")[:-1]])
    wrong = {name.split(".")[0] for name in imported(at_top_level(tree), package)} - FOR_CONVERTERS
    assert not wrong, f"{module} must not import {sorted(wrong)}"


@pytest.mark.parametrize("module", [module for module in modules() if module.split(".")[0] == "interop"])
def test_converters_import_no_framework(module):
    assert_imports_no_framework(module, parsed(modules()[module]))


@pytest.mark.parametrize("source", ["import torch", "from keras import layers", "import numpy, jax.numpy"])
def test_the_check_sees_a_framework(source):
    with pytest.raises(AssertionError, match=r"interop\.torch must not import \['(torch|keras|jax)'\]"):
        assert_imports_no_framework("interop.torch", ast.parse(source))
    assert_imports_no_framework("interop.torch", ast.parse(f"def later():\n    {source}"))


def is_definition(node):
    return isinstance(node, (ast.FunctionDef, ast.ClassDef))


def assert_no_circle(direction):
    left = dict(direction)
    while left:
        leaves = [module for module, targets in left.items() if not targets & left.keys()]
        assert leaves, f"a circle among {sorted(left)}"
        for module in leaves:
            del left[module]


def test_the_direction_has_no_circle():
    assert_no_circle(DIRECTION)


def test_the_harness_has_no_circle():
    found = {f"perf.{path.stem}": path for path in (ROOT / "perf").glob("*.py")}
    names = {module: set(imported(parsed(path), "perf")) for module, path in found.items()}
    assert_no_circle({
        module: {other for other in found if any(f"{name}.".startswith(f"{other}.") for name in names[module])}
        for module in found
    })


def test_nothing_is_defined_in_init():
    tree = parsed(ROOT / "rnnkit" / "__init__.py")
    assert [node.name for node in ast.walk(tree) if is_definition(node)] == ["__getattr__"]  # for __version__


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
    "from .simd import fma", "from . import simd", "import rnnkit.kernels.machine.registers", "import os",
])
def test_kernels_may_import_each_other(source):
    assert_kernel_imports(ast.parse(source))


def in_fresh_process(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


HEAVY = "numba", "llvmlite", "cupy", "scipy", "torch", "tqdm", "mpi4py"
FRAMEWORKS = "keras", "tensorflow", "mxnet", "jax", "flax", "onnx", "onnxruntime", "safetensors", "sklearn"
SHOW = f"; import sys; print(*[name for name in {HEAVY + FRAMEWORKS} if name in sys.modules])"


@pytest.mark.parametrize("module", ["rnnkit", "rnnkit.interop", "rnnkit.distributed", "rnnkit.training"])
def test_import_loads_nothing_heavy(module):
    assert in_fresh_process(f"import {module}" + SHOW) == []
    found = in_fresh_process("import numba, tqdm" + SHOW)
    assert {"numba", "llvmlite", "tqdm"} <= set(found)  # the question can be answered


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    import rnnkit

    assert rnnkit.__version__ == version("rnnkit")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rnnkit.nothing


def test_public_names():
    import rnnkit

    found = {name for name, thing in vars(rnnkit).items() if name[0] != "_" and not inspect.ismodule(thing)}
    assert found - {"TYPE_CHECKING"} == set(PUBLIC)
    assert (ROOT / "rnnkit" / "py.typed").exists()


def test_help_is_short_and_groups_all_names():
    import rnnkit

    text = pydoc.plain(pydoc.render_doc(rnnkit))
    assert len(text.splitlines()) < 110
    assert "tuple" not in text
    groups = re.findall(r"^    (.+?)(?:  .*)?$", rnnkit.__doc__, re.MULTILINE)
    assert sorted(", ".join(groups).split(", ")) == sorted(PUBLIC)
