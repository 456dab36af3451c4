"""The page that lists all cells, `docs/reference/cells-of-papers.md`, made from their declarations and docstrings.

Write it again: python -m examples.gallery.page
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
[a cell of your own](../how-to/own-cells.md) says how to write one. The package torchrecurrent has many of these cells,
too: `tests/cells/test_gallery.py` compares their values and gradients with its own, and
[Performance](../explanation/performance.md#published-cells) says how much faster they are here.

The column *gates*: normally a gate is W x + R h + biases.

- Brackets after a gate say what R multiplies instead of h. `(none)`: there is no recurrent product. `(c_prev)`: the
  state c before the step. `(c)`: c after the step. Any other name: a value that the cell computes within the step.
- `n: q`: the recurrent product of n is not added to W x, but kept separately as q.
- "no W": the gate has no product with x.

| {columns} |
|---|---|---|---|---|---|
"""
COLUMNS = (
    "cell", "paper", "gates", "states besides h",
    "vectors, scalars, side inputs, random numbers, parameters (with default)", "what is special",
)  # fmt: skip
NOTATION = """Names in an equation are gates, states and the other names of the table above, or values that the cell
computes. The other symbols:
"""
SYMBOLS = {
    "`h`, `c`; `h'`, `c'`": "a state before the step; the same state after it",
    "`W`, `R`, `b`, `biases`": "weights of x, recurrent weights and biases, of each gate its own; "
    "`Wn`, `Rn`, `bn` are those of the gate n",
    "`bW`, `bR`; `bWn`, `bRn`": "the biases of W and R; those of the gate n",
    "`bq`": "the bias of R of a gate whose recurrent product is kept separately as q; in LayerNormGRU a vector",
    "`a_f`": "W x + R h + biases of the gate f",
    "`same`": "the argument of the function before it, with the gate's own weights",
    "`s(...)`, `hard_s(...)`": "the logistic function; its piecewise linear form",
    "`LN(a)`": "(a - mean)/sqrt(variance + eps): in the LSTM over the units of all four gates together, and of c; "
    "in the GRU over the units of r and z together, and of n",
    "`w`, `r` in LayerNorm cells": "gains: `wi`, `ri` of the gate i, and so on",
    "`k` in Regularized and Variational cells": "the dropout mask `keep`: 0, or 1/(1 - `recurrent_dropout`)",
    "`h~`, `c~`": "h' and c' before zoneout",
    "`s`, `t`, `u` in ActivatedLSTM": "the activations `gate`, `candidate` and `output`; "
    "other cells with such parameters are shown with the defaults",
    "`log f` in SLSTM": "a_f, or log s(a_f) with `sigmoid_forget`",
    "`x_before`, `V`": "x of the step before, given as the second half of the features; its weights",
    "`w`, `gamma`, `I` in antisymmetric cells": "the recurrent matrix that is trained; a constant; the identity matrix",
}
SAME = "The equations of [SLSTM](#slstm), with four heads: R connects only units of the same head."


def parts_of(kind):
    """What is special of a cell, its paper, and its equations."""
    text = re.sub(r"^    ", "", kind.__doc__, flags=re.MULTILINE).strip()
    special, _, rest = text.partition("\n\n")
    special = " ".join(special.split())
    if kind.__module__.startswith("rnnkit"):
        special = inspect.getdoc(sys.modules[kind.__module__])  # of modules with two cells for both
        special = special.replace("LSTM and GRU", "LSTM" if kind.__name__.endswith("LSTM") else "GRU")
    else:
        text = rest
    found = re.findall(r"(?:^    .*\n?)+", text, re.MULTILINE)
    equations = "\n\n".join(fitted(dedent(one.strip("\n"))) for one in found)
    before = " ".join(text.split("\n    ")[0].split())
    paper = re.match(r".*?(?:arXiv [\d.]*\d|DOI \S*\w|\b(?:19|20)\d\d\b)", before)
    paper = paper[0] if paper else ""
    if paper.count("(") > paper.count(")"):
        paper = paper.split("(", 1)[1]
    return special.rstrip("."), paper, equations


def fitted(equations):
    """One equation a line, where a line is wider than the site's column."""
    wide = max(map(len, equations.split("\n"))) > 76
    return re.sub(r" {3,}", "\n", equations) if wide else equations


def linked(paper):
    paper = re.sub(r"arXiv ([\d.]*\d)", r"[arXiv \1](https://arxiv.org/abs/\1)", paper)
    return re.sub(r"DOI (\S*\w)", r"[DOI \1](https://doi.org/\1)", paper)


def gate_text(gate):
    times = "" if gate.multiplies == "h" else "(none)" if gate.multiplies is None else f"({gate.multiplies})"
    apart = f": {gate.apart}" if gate.apart else ""
    heads = "" if gate.heads == 1 else f" {gate.heads} heads"
    return f"{gate.name}{times}{apart}{'' if gate.input else ' no W'}{heads}"


def listed(what, names):
    """The names of one kind: "scalars `alpha`, `beta`"."""
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(f'`{name}`' for name in names)}"


def row_of(name, kind):
    special, paper, _ = parts_of(kind)
    declaration = kind.declaration
    kinds = {
        "vector": declaration.vectors[: len(declaration.vectors) - len(declaration.scalars)],
        "scalar": declaration.scalars, "side input": declaration.inputs, "random number": declaration.noises,
    }  # fmt: skip
    names = {what: [one.name for one in found] for what, found in kinds.items()}
    names["parameter"] = [f"{key}={value!r}" for key, value in kind._field_defaults.items()]
    own = "; ".join(listed(what, found) for what, found in names.items() if found)
    gates = ", ".join(map(gate_text, declaration.gates))
    place = "" if kind.__module__.startswith("rnnkit") else f" ({kind.__module__.rpartition('.')[2]}.py)"
    columns = f"[{name}](#{name.lower()}){place}", linked(paper), gates, " ".join(declaration.states), own, special
    return f"| {' | '.join(columns)} |"


def page_of(kinds):
    """The page, as text."""
    shipped = sum(kind.__module__.startswith("rnnkit") for kind in kinds.values())
    columns = " | ".join(COLUMNS)
    lines = [HEAD.format(count=len(kinds), shipped=shipped, others=len(kinds) - shipped, columns=columns).rstrip("\n")]
    lines += [row_of(name, kind) for name, kind in kinds.items()]
    lines += ["", "## Equations", "", NOTATION, "| symbol | meaning |", "|---|---|"]
    lines += [f"| {symbol} | {meaning} |" for symbol, meaning in SYMBOLS.items()]
    for name, kind in kinds.items():
        equations = parts_of(kind)[2]
        lines += ["", f"### {name}", "", *(["```", equations, "```"] if equations else [SAME])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page_of(CELLS))
