"""Equations with many lines, ifs and terms: the class is defined in time linear in their number, or they are refused.

What took 3**n or 2**n steps would not end at these sizes.
"""

import linecache
from itertools import count

import pytest
from messages import says

import rnnkit
from rnnkit.cells import CellError
from rnnkit.cells import derived_source as source

HEAD = "from typing import NamedTuple\nfrom rnnkit.cells import cell, forward, tanh\n"
NUMBERS = count()


def defined(lines, before=""):
    """The class of a cell of one gate whose stage has these lines."""
    body = "".join(f"        {line}\n" for line in lines)
    text = f'{HEAD}{before}@cell(gates="g")\nclass Long(NamedTuple):\n    @forward("h")\n    def step(self, g):\n{body}'
    name = f"<long {next(NUMBERS)}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    exec(compile(text, name, "exec"), space := {"__name__": "long"})
    return space["Long"]


def repeated(first, lines, last, times):
    return [first, *(line.format(n=number, x=0.05 * number) for number in range(times) for line in lines), last]


# Each `if` has a path that returns, and two that go on.
RETURNS = "if y > {x}:", "    if y > {x} + 1:", "        return 0.5 * y", "    y = y * 0.9", "y = y * 0.9 + 0.1 * g"
IFS = "if y > {x}:", "    y = y * 0.9 + 0.1 * g", "else:", "    y = y + 0.01 * g"
CONDITIONS = "if g > {x}:", "    b = g < {n}", "else:", "    b = b and g > -{x}"
NEWTON = ["y = y * (1.5 - 0.5 * (1 + g * g) * y * y)"]


def paths(times):
    """Returns within an `if`: what follows is shared by the paths that leave it."""
    inner = repeated("if g > -2:", ["    " + line for line in RETURNS], "else:", times)
    return ["y = g", *inner, *inner[1:-1], "return tanh(y)"]


def elifs(times):
    first, *others = repeated("if g > 9:", ["elif g > 3 - {x}:", "    return {x} * g"], "else:", times)
    return [first, "    return g", *others, "    return g * g"]


LINES = {
    "newton": (lambda times: repeated("y = 1 / (1 + g * g)", NEWTON, "return tanh(g * y)", times), 200),
    "ifs": (lambda times: repeated("y = g", IFS, "return tanh(y)", times), 60),
    "returns": (lambda times: repeated("y = g", RETURNS, "return tanh(y)", times), 60),
    "paths": (paths, 30),
    "conditions": (lambda times: repeated("b = g > 0", CONDITIONS, "return tanh(g) if b else g", times), 200),
    "elifs": (elifs, 60),
    "sums": (lambda times: [f"return tanh({' + '.join(f'0.0{n} * g' for n in range(1, times + 1))})"], 500),
    # Deeper than Python's parser takes in the derived functions, if they were one line.
    "brackets": (lambda times: repeated("y = g", ["y = {x} - y * (1 - y * g)"], "return tanh(y)", times), 200),
}


@pytest.mark.parametrize(("lines", "times"), LINES.values(), ids=LINES)
def test_long_equations_are_derived_in_linear_time(lines, times):
    text = source(defined(lines(times)))
    assert max(map(len, text.splitlines()[1:])) < 20_000
    rnnkit.check_cell(defined(lines(8)))


def test_names_of_what_is_kept_are_short():
    texts = defined(LINES["newton"][0](30)).declaration.keeps.values()
    assert max(map(len, texts)) <= 60 and any(text.endswith(" ...") for text in texts)


def test_nested_calls_are_read_once():
    """Python computes them in 2**n steps, as long as an `if` does not keep it from them."""
    helpers = "def f0(x):\n    return 0.5 * x\n"
    helpers += "".join(f"def f{n}(x):\n    return f{n - 1}(x) * f{n - 1}(x) + 0.1\n" for n in range(1, 29))
    kind = defined(["return f28(g) if g > 1e9 else g"], helpers)
    assert kind.declaration.derivation_version is not None


def test_too_deep_nesting_is_refused():
    with pytest.raises(CellError, match=says("cell Long: stage step (<long ", "nested too deeply", "names")):
        defined(elifs(1000))
