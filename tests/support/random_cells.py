"""Cells of random equations, as text: gates, states, vectors, products of every kind, several stages.

`python -m random_cells 5000` in this folder checks so many by `check_cell`, `python -m random_cells 5000 0 1` so many
with means over the units of a row.
"""

import linecache
import random
import sys
import textwrap

import rnnkit
from rnnkit import cells

HEAD = """
from typing import NamedTuple
from rnnkit.cells import Gate, cell, clip, exp, fma, forward, mean, sigmoid, tanh

RATE = 0.75

def blend(a, b, by=0.5):
    rest = 1 - by
    return by * a + rest * b

def bent(x):
    if x > 0.3:
        return x - 0.15
    return 0.5 * x

def both(a, b):
    return a * b, a - b
"""


class Text:
    """Draws one cell."""

    def __init__(self, seed, smooth=False, means=False):
        self.random, self.smooth, self.means, self.lines, self.locals = random.Random(seed), smooth, means, [], 0

    def chance(self, share):
        return self.random.random() < share

    def unary(self, x):
        kinds = [
            "tanh({})", "sigmoid({})", "1 / (1.5 + {0} * {0})", "exp(-{0} * {0})", "(-{})", "0.5 * {} ** 2",
            "RATE * {}", "self.rate * {}", "(1 - {})", "tanh({} / 2)", "({0} if self.flag else tanh({0}))",
        ]  # fmt: skip
        if not self.smooth:
            kinds += ["max({}, 0)", "min(0.5, {})", "abs({})", "clip({}, -0.7, 0.9)", "bent({})"]
            kinds += ["({0} if {0} > 0.1 and not {0} > 2 else 0.25 * {0})"]
        if self.means and self.chance(0.25):
            kinds = ["({0} - mean({0}))", "{} / (2 + mean(a_unit * a_unit))", "mean({} * a_unit)", "{} * mean(a_unit)"]
        return self.random.choice(kinds).format(x).replace("a_unit", self.random.choice(self.units))

    def binary(self, x, y):
        kinds = [
            "({} + {})", "({} - {})", "{} * {}", "fma({0}, {1}, {0})", "blend({}, {})", "blend({}, {}, 0.25)",
            "tanh({}) * sigmoid({})", "fma({}, {}, 0.3)", "{} / (2 + exp({}))",
        ]  # fmt: skip
        if not self.smooth:
            kinds += ["max({}, {})", "({0} if {0} > {1} else {1} * 0.5)", "({0} if {1} < 0.2 or {0} > 1 else -{1})"]
        return self.random.choice(kinds).format(x, y)

    def expression(self, names):
        """An expression with all of these names in it."""
        self.units = [name for name in names if name[0] in "ghsvaq"] or ["h_prev"]  # that are not the same in a row
        parts = [self.unary(name) if self.chance(0.6) else name for name in names]
        while len(parts) > 1:
            self.random.shuffle(parts)
            x, y = self._simple(parts.pop()), self._simple(parts.pop())
            one = self.binary(x, y)
            parts.append(self.unary(self._simple(one)) if self.chance(0.3) else one)
        return parts[0]

    def _simple(self, text):
        """The text, or a local name for it: long ones are not written several times."""
        if len(text) < 12 and not self.chance(0.2):
            return text if text.isidentifier() else f"({text})"
        self.locals += 1
        name = f"t{self.locals}"
        if not self.smooth and self.chance(0.1):
            self.lines += [f"if {text} > 0.4:", f"    {name} = 0.2 + 0.5 * ({text})", "else:", f"    {name} = {text}"]
        elif self.chance(0.1):
            self.lines.append(f"{name}, {name}_ = both({text}, 0.5)")
            return f"({name} + {name}_)"
        else:
            self.lines.append(f"{name} = {text}")
        return name


def text_of(seed, smooth=False, most_gates=8, means=False):
    """The text of a module with the class Random."""
    text = Text(seed, smooth, means)
    draw = text.random
    count = draw.randint(1, 4)
    states = [f"s{number}" for number in range(draw.choice([0, 0, 1, 1, 2, 3]))]
    vectors = [f"v{number}" for number in range(draw.choice([0, 0, 1, 2]))]
    inputs = [f"a{number}" for number in range(draw.choice([0, 0, 0, 1, 2]))]
    scalars = [f"k{number}" for number in range(draw.choice([0, 0, 1, 2]))]
    written_at = {state: draw.randrange(count) for state in states}
    sources = {f"m{number}": draw.randrange(count - 1) for number in range(draw.choice([0, 1, 2]))} if count > 1 else {}
    gates, read_at, heads = [], {}, draw.choice(["", "", ", heads=2", ", heads=4"])
    for number in range(draw.randint(max(1, len(sources)), max(most_gates, 2))):
        name = f"g{number}"
        kinds = ["h"] * 4 + [None] + [f"{state}_prev" for state in states]
        kinds += [state for state in states if written_at[state] < count - 1]
        multiplies = list(sources)[number] if number < len(sources) else draw.choice(kinds)
        first = {**written_at, **sources}.get(multiplies, -1) + 1
        read_at[name] = draw.randrange(first, count)
        options = heads if multiplies is not None else ""
        if number and multiplies is not None and text.chance(0.2):
            options += ", input=False"
        elif multiplies is not None and text.chance(0.2):
            options += f', apart="q{number}"'
            read_at[f"q{number}"] = draw.randrange(first, count)
        gates.append(f'Gate("{name}", {multiplies!r}{options})')
    others = ["h_prev", *(f"{state}_prev" for state in states), *vectors, *scalars, *inputs]
    for name in others:
        if text.chance(0.7) or name in (*vectors, *scalars, *inputs):
            read_at[name] = draw.randrange(count)
    handed, stages, given = [], [], []
    for number in range(count):
        reads = {name for name, at in read_at.items() if at == number}
        reads |= {name for name in [*given, *handed] if text.chance(0.3)}
        reads |= {handed.pop() for _ in range(len(handed)) if number == count - 1}
        reads |= {draw.choice([*given, "h_prev"])} if not reads else set()
        reads |= {"h_prev"} if means else set()
        handed = [name for name in handed if name not in reads]
        reads, text.lines = sorted(reads), []  # a set's order is another one in each process
        given += [name for name in reads if name not in given]
        draw.shuffle(reads)
        writes = [state for state, at in written_at.items() if at == number]
        writes += [source for source, at in sources.items() if at == number]
        if number < count - 1 and text.chance(0.6):
            writes.append(f"t_{number}")
            handed.append(f"t_{number}")
        own = [name for name in reads if name[0] == "g" and number < count - 1 and text.chance(0.3)]
        writes += own
        handed += own
        if number == count - 1 or not writes:
            writes.append("h" if number == count - 1 else f"t_{number}")
            handed += [f"t_{number}"] if number < count - 1 else []
        results, left = [], list(reads)
        for place, name in enumerate(writes):
            some = left if place == len(writes) - 1 else [one for one in reads if text.chance(0.6)]
            some = some or [draw.choice(reads)]
            left = [one for one in left if one not in some] or [draw.choice(reads)]
            result = f"tanh({text.expression(some)})" if name == "h" or name in states else text.expression(some)
            results.append(result)
        given += [name for name in writes if name not in given and name != "h"]
        lines = [*text.lines, f"return {', '.join(results)}"]
        stages.append(
            f'@forward("{" ".join(writes)}")\ndef stage{number}(self, {", ".join(reads)}):\n'
            + textwrap.indent("\n".join(lines), "    ")
        )
    said = f'gates=[{", ".join(gates)}], states="{" ".join(states)}", vectors="{" ".join(vectors)}"'
    said += f', scalars="{" ".join(scalars)}", inputs="{" ".join(inputs)}"'
    body = textwrap.indent("\n\n".join(["rate: float = 0.4\nflag: bool = False", *stages]), "    ")
    return f"{HEAD}\n\n@cell({said}, smooth={smooth})\nclass Random(NamedTuple):\n{body}\n"


def cell_of(seed, **options):
    """The class."""
    text, name = text_of(seed, **options), f"<random cell {seed}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    space = {"__name__": f"random_cell_{seed}"}
    exec(compile(text, name, "exec"), space)
    return space["Random"]


def right_cell_of(seed, **options):
    """The same, or the next that takes no mean of what is no unit's own number, of a scalar say: that is refused."""
    while True:
        try:
            return cell_of(seed, **options)
        except cells.CellError as error:
            if "a mean of a number that all units of a row have in common" not in str(error):
                raise
        seed += 1_000_000


def check(seed, **options):
    """Check one, with its flag set and not."""
    kind = right_cell_of(seed, **options)
    for flag in (False, True):
        rnnkit.check_cell(kind(flag=flag))


def main(count, first=0, means=0):
    wrong = 0
    for seed in range(first, first + count):
        try:
            check(seed, means=means > 0)
        except cells.CellError as error:
            wrong += 1
            print(f"cell {seed}: {error}\n{text_of(seed, means=means > 0)}", flush=True)
    print(f"{count} cells, {wrong} wrong")
    return wrong


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])) > 0)
