"""Imports point one way, and `import rnnkit` stays light."""

import ast
import pydoc
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from public_names import PUBLIC, PUBLIC_OF
from repository import ROOT

import rnnkit

KERNELS = ROOT / "kernels" / "rnnkit_kernels"

# Room -> the rooms that its files may import, beside their own: a folder of rnnkit, or a file beside the folders. The
# engines (cpu, cuda) do not check their arguments. An application imports public rooms alone, and common helpers.
DIRECTION = {
    "__main__": {"commands"},
    "commands": {"__init__", "plot", "training", "cells", "common", "kernels", "kernels.cells", "types", "errors"},
    "language_model": {
        "__init__",
        "plot",
        "distributed",
        "training",
        "compression",
        "cells",
        "common",
        "types",
        "errors",
    },  # fmt: skip
    "plot": {"__init__", "common", "errors"},
    "sklearn": {"network", "training", "call", "descriptor", "common", "errors"},
    "interop": {"network", "call", "descriptor", "common", "kernels.cells", "types", "errors"},
    "keras": {"network", "interop", "torch", "jax", "cells", "call", "descriptor", "common", "errors"},
    "jax": {"network", "interop", "equations", "call", "descriptor", "kernels", "errors"},
    "torch": {"network", "equations", "call", "descriptor", "common", "kernels", "kernels.cells", "errors", "types"},
    "distributed": {"call", "common", "kernels", "errors"},
    "compiled": {"kernels", "errors"},
    "compression": {"common", "kernels", "errors"},
    "training": {"cpu", "call", "common", "kernels", "errors"},
    "__init__": {"network", "cell_check", "call", "common", "descriptor", "errors"},
    "cell_check": {"call", "descriptor", "kernels.cells", "errors"},
    "network": {"native", "cpu", "cuda", "call", "descriptor", "common", "kernels.cells", "types", "errors"},
    "native": {"training", "equations", "cpu", "call", "descriptor", "common", "kernels", "kernels.cells", "errors"},
    "cpu": {"call", "descriptor", "common", "kernels", "errors"},
    "cuda": {"equations", "cpu", "call", "descriptor", "common", "kernels", "kernels.cells", "errors"},
    "call": {"descriptor", "common", "kernels", "kernels.cells", "types", "errors"},  # of kernels what forks need alone
    "descriptor": {"cells", "common", "kernels.cells", "types", "errors"},
    "equations": {"call", "descriptor", "kernels", "kernels.cells", "errors"},
    "cells": {"kernels.cells"},
    "common": {"errors"},
    "types": set(),
    "errors": set(),
}
APPLICATIONS = {"language_model"}  # their commands are lines of a table, which imports them when they are called
TABLE = "commands.table"
# What an application takes beside public names, and why.
PRIVATE = {
    "rnnkit.network.changing.ChangingPlan",  # new weights in packed memory: decoding would take 1.3 times as long
    "rnnkit.descriptor.saved.descriptor_json",  # is part of the digest of a model, by which compressed files name it
}
HELPERS = {"common", "types", "errors"}  # any of their names
FOR_KERNELS = {"numpy", "numba", "llvmlite"} | sys.stdlib_module_names
FOR_CELLS = {"numpy"} | sys.stdlib_module_names  # the descriptor reads what a cell says before Numba is imported


def modules():
    """Module -> its file, for all of rnnkit; a package goes by the name of its folder."""
    found = {}
    for path in sorted((ROOT / "rnnkit").rglob("*.py")):
        *package, name = path.relative_to(ROOT / "rnnkit").with_suffix("").parts
        found[".".join(package if package and name == "__init__" else [*package, name])] = path
    return found


def kernels():
    return sorted(KERNELS.rglob("*.py"))


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
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "imported":
            yield from (one.value for one in node.args if isinstance(one, ast.Constant))


def room_of(module):
    """The room of a module of the package; of the kernels the cells are one, all others another."""
    first, *inside = module.split(".")
    return "kernels.cells" if [first, *inside[:1]] == ["kernels", "cells"] else first


def submodules(tree, module="__init__"):
    """Which modules of rnnkit are imported; a public name stands for `__init__`."""
    package = ".".join(["rnnkit", *module.split(".")[:-1]])
    known = {*modules(), *DIRECTION, "kernels", "kernels.cells"}
    for name in {*imported(tree, package)} - (PRIVATE if room_of(module) in APPLICATIONS else set()):
        root, *inside = name.replace("rnnkit_kernels", "rnnkit.kernels").split(".")
        if root == "rnnkit":
            outer = [".".join(inside[:length]) for length in range(len(inside), 0, -1)]
            yield next((one for one in outer if one in known), "__init__")


def parsed(path):
    return ast.parse(path.read_text(), filename=str(path))


def assert_direction(module, tree):
    room = room_of(module)
    wrong = set(map(room_of, submodules(tree, module))) - DIRECTION[room] - {room}
    assert not wrong, f"{module} must not import {sorted(wrong)}"


def assert_public(module, tree):
    """An application takes public names: those that it imports, and those of the modules that it imports."""
    bound, named = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bound |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            bound |= found
            named |= {name for name in found.values() if name not in PUBLIC_OF}
    of_modules = {name: path for name, path in bound.items() if path in PUBLIC_OF}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in of_modules:
            named.add(f"{of_modules[node.value.id]}.{node.attr}")
    free = HELPERS | {room_of(module)}
    public = {f"{room}.{name}" for room, names in PUBLIC_OF.items() for name in names} | PRIVATE
    ours = {name for name in named if re.match(r"rnnkit(_kernels)?\.", name) and name.split(".")[1] not in free}
    wrong = ours - public
    assert not wrong, f"{module} must not take {sorted(wrong)}"


def assert_kernel_imports(tree, package="rnnkit_kernels"):
    """A kernel imports kernels, and a cell only cells."""
    own, others, who = "rnnkit_kernels.", FOR_KERNELS, "a kernel"
    if package == "rnnkit_kernels.cells":
        own, others, who = f"{package}.", FOR_CELLS, "a cell"
    names = set(imported(tree, package))
    wrong = {name for name in names if not name.startswith(own) and name.split(".")[0] not in others}
    assert not wrong, f"{who} must not import {sorted(wrong)}"


def test_modules_and_kernels_are_found():
    assert {"__init__", "network.engine", "cpu.engine", "cuda.cudnn", "errors"} <= set(modules())
    found = {path.relative_to(KERNELS).as_posix() for path in kernels()}
    assert {"loop.py", "machine/jit.py", "cells/lstm.py"} <= found


@pytest.mark.parametrize("module", modules())
def test_imports_point_one_way(module):
    assert_direction(module, parsed(modules()[module]))


@pytest.mark.parametrize("module", [module for module in modules() if room_of(module) in APPLICATIONS])
def test_applications_take_public_names(module):
    assert_public(module, parsed(modules()[module]))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from rnnkit import network", "rnnkit.network"),
        ("import rnnkit\nrnnkit.network.plan.Plan", "rnnkit.network"),
        ("from rnnkit import training\ntraining.arguments.integer", "training.arguments"),
        ("from rnnkit.training.arguments import integer", "training.arguments.integer"),
        ("def later():\n    from rnnkit_kernels import dense", "rnnkit_kernels.dense"),
    ],
)
def test_check_notices_private_names(source, name):
    with pytest.raises(AssertionError, match=rf"language_model.model must not take \[.*{name}"):
        assert_public("language_model.model", ast.parse(source))


def test_modules_do_not_serve_applications_alone():
    importers = {}
    for module, path in modules().items():
        for target in set(submodules(parsed(path), module)) - {module}:
            importers.setdefault(target, set()).add(room_of(module))
    for_one = {target for target, rooms in importers.items() if rooms <= APPLICATIONS and room_of(target) not in rooms}
    assert {target for target in for_one if f"rnnkit.{target}" not in PUBLIC_OF} == set()
    own = [parsed(path) for module, path in modules().items() if room_of(module) in APPLICATIONS]
    taken = {name for tree in own for name in imported(tree, "rnnkit.language_model")}
    assert taken >= PRIVATE  # else it is no exception any more


def test_applications_are_named_in_the_table_alone():
    others = {module: path.read_text() for module, path in modules().items() if room_of(module) not in APPLICATIONS}
    assert [module for module, text in others.items() if re.search("|".join(APPLICATIONS), text)] == [TABLE]


@pytest.mark.parametrize("path", kernels(), ids=lambda path: path.stem)
def test_kernels_never_import_the_package(path):
    assert_kernel_imports(parsed(path), ".".join(path.parent.relative_to(KERNELS.parent).parts))


def test_check_notices_a_compiler_in_a_cell():
    for source in ("from numba import njit", "from ..machine.jit import kernel"):
        with pytest.raises(AssertionError, match="a cell must not import"):
            assert_kernel_imports(ast.parse(source), "rnnkit_kernels.cells")


def assert_no_circle(direction):
    left = dict(direction)
    while left:
        leaves = [module for module, targets in left.items() if not targets & left.keys()]
        assert leaves, f"a circle among {sorted(left)}"
        for module in leaves:
            del left[module]


def test_imports_of_rooms_and_modules_have_no_circle():
    assert_no_circle({room: others - {"kernels", "kernels.cells"} for room, others in DIRECTION.items()})
    found = {module: set(submodules(parsed(path), module)) - {module} for module, path in modules().items()}
    assert_no_circle({module: others & found.keys() for module, others in found.items()})


def test_init_defines_nothing():
    nodes = ast.walk(parsed(ROOT / "rnnkit" / "__init__.py"))
    definitions = [node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    assert definitions == ["__getattr__"]  # for __version__


FORMS = ["import rnnkit", "import rnnkit.network.engine", "from rnnkit import LSTM"]
FORMS += ["from rnnkit.network import engine", "def later():\n    from rnnkit.network import engine"]
FORMS += ["from rnnkit.network.engine import forward", "from ..network.engine import forward"]
FORMS += ["from ..network import engine"]


@pytest.mark.parametrize("source", FORMS)
def test_check_notices_wrong_imports_in_every_form(source):
    with pytest.raises(AssertionError, match="descriptor.weights must not import"):
        assert_direction("descriptor.weights", ast.parse(source))
    with pytest.raises(AssertionError, match="a kernel must not import"):
        assert_kernel_imports(ast.parse(source.replace("from .", "from ..")))


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


def test_version_is_that_of_the_distribution():
    assert rnnkit.__version__ == version("rnnkit")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rnnkit.nothing


def test_help_is_short_and_groups_all_names():
    text = pydoc.plain(pydoc.render_doc(rnnkit))
    assert len(text.splitlines()) < 110
    assert "tuple" not in text
    groups = re.findall(r"^    (.+?)(?:  .*)?$", rnnkit.__doc__, re.MULTILINE)
    assert sorted(", ".join(groups).split(", ")) == sorted(PUBLIC)
