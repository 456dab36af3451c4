"""The page that lists all cells, `docs/reference/cells-of-papers.md`, made from their declarations and docstrings.

Write it again: python -m examples.gallery.page
"""

import inspect
import re
import sys
from pathlib import Path
from textwrap import dedent, wrap

from docs.tools.latex import equations_of
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
NOTATION = """The equations are derived from the code of the classes below them. Names are gates, states and the other
names of the table above, or values that the cell computes. Upright names and Greek letters are parameters.
Activations that are parameters are shown with their defaults.
"""
SYMBOLS = {
    r"$x_t$; $h_t$, $c_t$": "the input; the states after step t",
    "$h_{t-1}$, $c_{t-1}$": "the states before it",
    "$W_i$, $R_i$": "weights of x and recurrent weights of the gate i; without index if there is one gate",
    "$b_i$": "its bias, the sum of bW and bR",
    "$b_n^W$, $b_n^R$": "bW and bR of a gate whose recurrent product is kept separately",
    r"$\odot$": "the elementwise product",
    r"$\sigma$, $\operatorname{hard}\sigma$": "the logistic function; its piecewise linear form",
    r"$\tilde{f}_t$": "the pre-activation of the gate f",
    r"$\operatorname{LN}(a)$": "(a - mean)/sqrt(variance + eps): in the LSTM over the units of all four gates together, "
    "and of c; in the GRU over the units of r and z together, and of n",
    "$r_i$, $w_i$ in LayerNorm cells": "gains of the gate i; `gain_c` is $w_c$, `shift_c` is $b_c$",
    "$p_i$": "`peephole_i`, a vector",
    "$k_t$, $k$": "the dropout mask `keep`, 0 or 1/(1 - `recurrent_dropout`): of a step; of all steps",
    "$d^h_t$, $d^c_t$": "`hold`, `hold_c`: 1 with probability `zoneout`, `zoneout_c`, else 0; in inference this probability",
    r"$\Delta t$": "`dt`; in LEM $\\Delta t_t$ and $\\overline{\\Delta t}_t$ are the gates ty and tz",
    "$a_t$ in AUGRU, $c$ in UnICORNN": "the side input `attention`; the vector `pace`",
    r"$\tilde{f}_t$ in SLSTM": "with `sigmoid_forget` its log s($\\tilde{f}_t$) takes its place",
    "$x_t$ in TGRU and TLSTM": "x of this step and of the one before: see `beside_the_one_before`",
    "$R$ in antisymmetric cells": "w - w.T - gamma*I: `antisymmetric` in examples/gallery/systems.py",
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
    equations = "\n\n".join(dedent(one.strip("\n")) for one in found)
    before = " ".join(text.split("\n    ")[0].split())
    paper = re.match(r".*?(?:arXiv [\d.]*\d|DOI \S*\w|\b(?:19|20)\d\d\b)", before)
    paper = paper[0] if paper else ""
    if paper.count("(") > paper.count(")"):
        paper = paper.split("(", 1)[1]
    return special.rstrip("."), paper, equations


def set_in_lines(latex):
    """LaTeX in lines of the width of the other pages."""
    lines = (wrap(line, 76, subsequent_indent="  ", break_long_words=False) for line in latex.splitlines())
    return "\n".join(part for line in lines for part in line)


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
        place = "rnnkit.cells" if kind.__module__.startswith("rnnkit") else kind.__module__
        code = ["```{cell-class} " + f"{place}.{name}", "```"]
        special = [SAME, ""] if "step" in vars(kind) and not parts_of(kind)[2] else []
        lines += ["", f"### {name}", "", *special, "```{math}", set_in_lines(equations_of(kind)), "```", "", *code]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page_of(CELLS))
