"""How names in a cell's equations are set in mathematics: Greek letters,
subscripts, and for a few cells the letters of their papers."""

import re

GREEK = "alpha beta gamma epsilon zeta nu".split()
LETTERS = {name: rf"\{name}" for name in GREEK} | {
    "epsilon": r"\varepsilon",
    "dt": r"\Delta t",
    "peephole": "p",
    "gain": "w",
}
OF_PAPERS = {
    ("AUGRU", "attention"): "a",
    ("LEM", "ty"): r"\Delta t",
    ("LEM", "tz"): r"\overline{\Delta t}",
    ("LayerNormLSTM", "shift_c"): "b_c",
    ("SGU", "x"): "x_g",
    ("DSGU", "x"): "x_g",
    ("UnICORNN", "pace"): "c",
}
NOISES = {"keep": "k", "hold": "d^h", "hold_c": "d^c"}


def letter(cell, name):
    """The letter of a name, without the time: `p_i` for `peephole_i`."""
    if (cell, name) in OF_PAPERS:
        return OF_PAPERS[cell, name]
    if name in LETTERS:
        return LETTERS[name]
    base, _, index = name.partition("_")
    if not index and (parts := re.fullmatch(r"([a-z])(\d+|[a-z])", name)):
        base, index = parts.groups()
    if not index:
        return base if len(base) == 1 else rf"\mathrm{{{base}}}"
    base = LETTERS.get(base, base)
    base = base if len(base) == 1 or "\\" in base else rf"\mathrm{{{base}}}"
    return f"{base}{below(index)}"


def below(index):
    """A subscript."""
    return f"_{index}" if len(index) == 1 else f"_{{{index}}}"


def at(written, time="t"):
    """A letter at a step: the time is the last subscript."""
    base, _, index = written.partition("_")
    index = index.strip("{}")
    return f"{base}{below(f'{index},{time}' if index else time)}"
