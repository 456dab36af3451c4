"""The page that lists all cells, `docs/reference/cells-of-papers.md`, made from their declarations and docstrings.

Write it anew: python -m examples.gallery.page
"""

import inspect
import re
import sys
from pathlib import Path
from textwrap import dedent

from examples.gallery import chains, gated, grus, lstms, strongly_typed, systems
from rnnkit import cells

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cells-of-papers.md"
MODULES = cells, lstms, grus, gated, strongly_typed, systems, chains
NAMES = [(module, name) for module in MODULES for name in getattr(module, "__all__", vars(module))]
CELLS = {
    name: kind for module, name in NAMES
    if hasattr(kind := getattr(module, name), "declaration") and (module is cells or kind.__module__ == module.__name__)
}  # fmt: skip
HEAD = """# Cells of papers

{count} cells: {shipped} in `rnnkit.cells`, to use by their names (`rnnkit.Network(rnnkit.cells.JANET, 64, 128)`), and
{others} in `examples/gallery`, to copy from. Each is a class with its equations, whose gradient is derived;
[a cell of your own](../how-to/own-cells.md) says how to write one. `tests/test_gallery.py` compares those that
torchrecurrent has, values and gradients, on torchrecurrent's weights;
[how much faster](../explanation/performance.md#published-cells) they are.

R multiplies h for a gate, or what stands in brackets behind it: nothing, a state before the step (`c_prev`) or after it
(`c`), or what a stage writes. `n: q` is a gate whose product with R is kept apart as q; a gate with "no W" has no rows
of W.

| cell | paper | gates | states beside h | vectors, scalars, side inputs, noises, parameters | what is special |
|---|---|---|---|---|---|
"""
NOTATION = "s is the logistic function, c' is c after the step, and a_f is W x + R h + biases of the gate f."


def parts_of(kind):
    """What is special of a cell, its paper, and its equations."""
    text = re.sub(r"^    ", "", kind.__doc__, flags=re.MULTILINE).strip()
    special, shipped = text.split("\n")[0], kind.__module__.startswith("rnnkit")
    if shipped:
        special = inspect.getdoc(sys.modules[kind.__module__])
    else:
        text = text.split("\n", 2)[2]
    equations = "\n\n".join(one.strip("\n") for one in re.findall(r"(?:^    .*\n?)+", text, re.MULTILINE))
    before = " ".join(text.split("\n    ")[0].split())
    paper = re.match(r".*?(?:arXiv [\d.]*\d|DOI \S*\w|\b(?:19|20)\d\d\b)", before)
    paper = paper[0] if paper else ""
    if paper.count("(") > paper.count(")"):
        paper = paper.split("(", 1)[1]
    return special.rstrip("."), paper, dedent(equations)


def linked(paper):
    paper = re.sub(r"arXiv ([\d.]*\d)", r"[arXiv \1](https://arxiv.org/abs/\1)", paper)
    return re.sub(r"DOI (\S*\w)", r"[DOI \1](https://doi.org/\1)", paper)


def gate_text(gate):
    times = "" if gate.multiplies == "h" else "(none)" if gate.multiplies is None else f"({gate.multiplies})"
    apart = f": {gate.apart}" if gate.apart else ""
    heads = "" if gate.heads == 1 else f" {gate.heads} heads"
    return f"{gate.name}{times}{apart}{'' if gate.input else ' no W'}{heads}"


def row_of(name, kind):
    special, paper, _ = parts_of(kind)
    declaration = kind.declaration
    fields = [f"{key}={value!r}" for key, value in kind._field_defaults.items()]
    names = [one.name for one in declaration.given()]
    own = ", ".join(f"`{one}`" for one in dict.fromkeys([*names, *fields]))
    gates = ", ".join(map(gate_text, declaration.gates))
    place = "" if kind.__module__.startswith("rnnkit") else f" ({kind.__module__.rpartition('.')[2]}.py)"
    columns = f"[{name}](#{name.lower()}){place}", linked(paper), gates, " ".join(declaration.states), own, special
    return f"| {' | '.join(columns)} |"


def page_of(kinds):
    """The page, as text."""
    shipped = sum(kind.__module__.startswith("rnnkit") for kind in kinds.values())
    lines = [HEAD.format(count=len(kinds), shipped=shipped, others=len(kinds) - shipped).rstrip("\n")]
    lines += [row_of(name, kind) for name, kind in kinds.items()]
    lines += ["", "## Equations", "", NOTATION]
    for name, kind in kinds.items():
        equations = parts_of(kind)[2]
        lines += ["", f"### {name}", "", *(["```", equations, "```"] if equations else ["Those of SLSTM."])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page_of(CELLS))
