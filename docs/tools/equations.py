"""A Sphinx extension: pages of cells show their equations as mathematics,
derived from the functions that run, beside the class.

- `.. cell-class:: rnnkit.cells.LEM`: the code of a class, without docstring
  and gradients.
- In docstrings of cells and of `RNNDescriptor`, indented equations, which
  are for terminals, are replaced.
"""

import ast
import inspect
import re
from importlib import import_module
from textwrap import dedent, indent

from docs.tools.latex import equations_of
from docutils import nodes
from docutils.parsers.rst import Directive

from rnnkit_kernels.cells.gru import ResetAfterGRU, ResetBeforeGRU
from rnnkit_kernels.cells.lstm import LSTM
from rnnkit_kernels.cells.vanilla import Tanh

BLOCK = re.compile(r"\n\n(?:(?: {4}\S.*| *)\n)+", re.MULTILINE)
LETTERS = """
:math:`\\sigma` is the logistic function and :math:`\\odot` the elementwise
product. :doc:`The list of cells </reference/cells-of-papers>` explains all
letters.
"""
DESCRIBED = r"""
:math:`x_t` is the input of a step, :math:`h_{t-1}` the output of the step
before, :math:`\sigma` the logistic function and :math:`\odot` the
elementwise product. :math:`b` is the sum of bW and bR. Where R h is kept
separately, they are :math:`b^W` and :math:`b^R`."""
# what the equations for terminals need: "; a_i ... are the pre-activations"
PRE_ACTIVATIONS = re.compile(
    r";\s+a_\w+\s+(?:\.\.\.|and\s+a_\w+)\s+are\s+the\s+pre-activations,"
    r"\s+W x \+ R h \+ biases"
)
OF_MODES = (Tanh,), (LSTM,), (ResetAfterGRU,), (ResetBeforeGRU,)


def code_of(kind):
    """The code of a class, without its docstring and gradient stages."""
    lines = dedent(inspect.getsource(kind)).splitlines()
    (node,) = ast.parse("\n".join(lines)).body
    left_out = [node.body[0]] if ast.get_docstring(node) is not None else []
    left_out += [one for one in node.body if is_gradient(one)]
    for one in reversed(left_out):
        first = min([one, *getattr(one, "decorator_list", [])], key=line_of)
        del lines[line_of(first) - 1 : one.end_lineno]
    code = "\n".join(lines)
    return re.sub(r":\n\n+", ":\n", re.sub(r"\n{3,}", "\n\n", code)).strip()


def line_of(node):
    return node.lineno


def is_gradient(node):
    called = [
        getattr(one, "func", one)
        for one in getattr(node, "decorator_list", [])
    ]
    return any(getattr(one, "id", "") == "gradient" for one in called)


class CellClass(Directive):
    """The code of a class."""

    required_arguments = 1

    def run(self):
        module, _, name = self.arguments[0].rpartition(".")
        code = code_of(getattr(import_module(module), name))
        return [nodes.literal_block(code, code, language="python")]


def math_of(*kinds):
    """The equations of cells as a directive."""
    return f".. math::\n\n{indent(equations_of(*kinds), '   ')}\n"


def of_cell(name, kind, text):
    """A cell's docstring with its equations and its code."""
    text = PRE_ACTIVATIONS.sub("", text)
    blocks = list(BLOCK.finditer(text))
    for block in reversed(blocks[1:]):
        text = f"{text[: block.start()]}\n\n{text[block.end() :]}"
    code = f"{LETTERS}\n.. cell-class:: {name}\n"
    if not blocks:
        return f"{text}\n\n{math_of(kind)}\n{code}\n"
    before, after = text[: blocks[0].start()], text[blocks[0].end() :]
    return f"{before}\n\n{math_of(kind)}\n{after}\n{code}\n"


def of_descriptor(text):
    """The notes of `RNNDescriptor` with mathematics in place of code."""
    head, notes = text.split("Notes\n-----\n")
    notes, examples = notes.split("\nExamples\n")
    modes = iter(OF_MODES)
    block = re.compile(r"::\n\n(?:(?: {4}\S.*| *)\n)+", re.MULTILINE)
    _, _, notes = notes.partition("\n\n")  # the letters of the code
    notes = f"{DESCRIBED}\n\n{notes}"
    notes = block.sub(lambda _: f":\n\n{math_of(*next(modes))}\n", notes)
    assert next(modes, None) is None, (
        "RNNDescriptor: a block of equations a mode"
    )
    return f"{head}Notes\n-----\n{notes}\nExamples\n{examples}"


def process(app, what, name, found, options, lines):
    """Replace the lines of a docstring that has equations."""
    text = "\n".join(lines) + "\n"
    if what == "class" and hasattr(found, "declaration"):
        lines[:] = of_cell(name, found, text).splitlines()
    elif name == "rnnkit.RNNDescriptor":
        lines[:] = of_descriptor(text).splitlines()


def is_skipped(app, what, name, found, skip, options):
    """Skip the fields of a cell's tuple, which Python calls aliases."""
    return True if type(found).__name__ == "_tuplegetter" else None


def setup(app):
    app.add_directive("cell-class", CellClass)
    # before numpydoc, which reads the same lines
    app.connect("autodoc-process-docstring", process, priority=100)
    app.connect("autodoc-skip-member", is_skipped)
    return {"parallel_read_safe": True}
