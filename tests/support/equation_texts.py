"""Draws modules with a cell, as text: helper functions with parameters of all kinds, closures, constants, conditionals,
returns within ifs, unrolled lines, several stages. Names are often those that the engine, or the module itself, uses.
"""

from hypothesis import strategies as st

HEAD = """
import math
from typing import NamedTuple
from rnnkit.cells import Gate, cell, clip, exp, fma, forward, sigmoid, tanh

{constants}


class Consts:
    SCALE = 1.25


def around(factor, by=0.5):
    def scaled(v, *, shift=0.125):
        return factor * v + by * shift + C0

    return scaled


made = around(1.5)
"""
CONSTANTS = "C0", "rate", "x", "units", "k", "mean"  # globals: parameters and locals of these names are not they
WORDS = (
    "x", "y", "w", "t", "t1", "k", "hx", "cx", "row", "rows", "step", "units", "gates", "states", "hidden", "weights",
    "vectors", "inputs", "noises", "bias", "kept", "mean", "rate", "inf", "nan", "math", "value", "slope", "derivative",
    "cell", "d", "e", "operands", "sizes", "zeros", "arrays", "team", "index", "count", "a", "b", "c", "function",
    "stage", "output", "cls", "C0", "Gate", "fma", "min", "through_first",
)  # fmt: skip
CALLS = {
    "tanh": "tanh(A)", "sigmoid": "sigmoid(A)", "exp": "exp(-(A) ** 2)", "abs": "abs(A)", "fma": "fma(A, B, 0.5)",
    "max": "max(A, B)", "min": "min(A, 0.3, B)", "math": "math.sin(A)", "made": "made(A, shift=B)",
    "clip": "clip(A, high=0.9, low=-0.8)",
}  # fmt: skip
FUNCTIONS = *CALLS, "Consts"


class Helper:
    """A function of the module: its name, parameters and how many numbers it returns."""

    def __init__(self, name, plain, named, with_defaults, results):
        self.name, self.plain, self.named, self.with_defaults, self.results = name, plain, named, with_defaults, results


class Body:
    """Draws the lines of one function whose parameters are `names`; `taken` are names that it may not assign."""

    def __init__(self, draw, names, helpers, cell=False):
        self.draw, self.names, self.cell, self.lines = draw, list(names), cell, []
        self.locals = draw(st.lists(st.sampled_from(WORDS), max_size=3, unique=True), label="locals")
        own = {*names, *self.locals}
        self.helpers = [one for one in helpers if one.name not in own]
        self.functions = [name for name in FUNCTIONS if name not in own]
        self.constants = [name for name in CONSTANTS if name not in own]

    def one_of(self, *options):
        return self.draw(st.sampled_from(options))

    def name(self):
        return self.one_of(*self.names)

    def atom(self):
        texts = ["0.5", "2", "-0.75", *self.constants, *(["self.factor"] if self.cell else [])]
        texts += ["Consts.SCALE"] if "Consts" in self.functions else []
        texts += ["math.pi", "math.tau"] if "math" in self.functions else []
        return self.one_of(*self.names, *self.names, *texts)

    def expression(self, depth=2):
        if depth == 0:
            return self.atom()
        kinds = ["(A + B)", "(A - B)", "A * B", "A / (1.5 + (B) ** 2)", "(-A)", "(1 + (A) ** 2) ** 1.5", "(A) ** 3",
                 "(2 + (A) ** 2) ** -0.5", "(A if CONDITION else B)"]  # fmt: skip
        kinds += [text for name, text in CALLS.items() if name in self.functions]
        singles = [one for one in self.helpers if one.results == 1]
        kind = self.one_of(*kinds, *(["HELPER"] * 3 if singles else []))
        if kind == "HELPER":
            return self.call(self.one_of(*singles), depth - 1)
        for name, draw in ("A", self.expression), ("B", self.expression), ("CONDITION", self.condition_of):
            kind = kind.replace(name, draw(depth - 1)) if name in kind else kind
        return kind

    def condition_of(self, depth):
        return self.condition(self.expression(depth))

    def call(self, helper, depth):
        """A call: some arguments by position, some by name, defaults left out."""
        plain = len(helper.plain) - (self.one_of(0, 1) if helper.plain[-1] in helper.with_defaults else 0)
        texts = [self.expression(depth) for _ in range(plain)]
        for name in helper.named:
            if name not in helper.with_defaults or self.one_of(False, True):
                texts.append(f"{name}={self.atom()}")
        return f"{helper.name}({', '.join(texts)})"

    def condition(self, text):
        kinds = [f"{text} > 0.2", f"-1 < {self.name()} <= {text}", f"not {text} < {self.name()}",
                 f"{text} > 0 and {self.name()} < 1", f"{text} < -0.5 or {self.name()} >= {text}"]  # fmt: skip
        return self.one_of(*kinds, *(["self.flag"] if self.cell else []))

    def assign(self, name, text):
        if name not in self.names:
            self.names.append(name)
        return f"{name} = {text}"

    def statement(self, results):
        """Lines that assign names or return `results` numbers on some paths."""
        new = self.one_of(*self.locals, *self.names) if self.locals else self.name()
        kind = self.one_of("assign", "pair", "branches", "change", "unrolled", "return", "returns", "add")
        if kind == "pair":
            several = [one for one in self.helpers if one.results == 2]
            other = self.name()
            if several and other != new:
                text = self.call(self.one_of(*several), 0)
                self.assign(new, "")
                return [f"{new}, {other} = {text}"]
            is_pair = new in self.names and other != new
            return [f"{new}, {other} = {self.expression(1)}, {self.atom()}"] if is_pair else []
        if kind in ("branches", "change", "return", "returns"):
            test = self.condition_of(1)
        if kind == "branches":
            yes, no = self.expression(1), self.expression(1)
            return [f"if {test}:", f"    {self.assign(new, yes)}", "else:", f"    {self.assign(new, no)}"]
        if kind == "change" and new in self.names:
            return [f"if {test}:", f"    {new} = {self.expression(1)}"]
        if kind == "add" and new in self.names:
            return [f"{new} {self.one_of('+', '-', '*')}= {self.expression(1)}"]
        if kind == "unrolled":
            start, line = self.atom(), f"{new} = 0.9 * {new} - {self.atom()} * {new} / (2 + {new} * {new})"
            return [self.assign(new, start), *[line] * 3]
        if kind == "return":
            return [f"if {test}:", f"    return {self.results(results)}"]
        if kind == "returns":
            inner = self.condition(self.atom())
            lines = [f"if {test}:", f"    if {inner}:", f"        return {self.results(results)}"]
            if new in self.names:
                lines += [f"    {new} = {self.expression(1)}", f"elif {self.condition(self.atom())}:",
                          f"    return {self.results(results)}"]  # fmt: skip
            return lines
        return [self.assign(new, self.expression())]

    def results(self, count):
        return ", ".join(self.expression() for _ in range(count))

    def text(self, results):
        lines = []
        for _ in range(self.draw(st.integers(0, 3), label="statements")):
            lines += self.statement(results)
        lines.append(f"return {self.results(results)}")
        return "".join(f"    {line}\n" for line in lines)


def helper_of(draw, number, helpers):
    """The text of a helper function, which may call the others, and what it is."""
    names = draw(st.lists(st.sampled_from(WORDS), min_size=2, max_size=5, unique=True), label="parameters")
    first = draw(st.integers(1, len(names) - 1))
    plain, named = names[:first], names[first:]
    with_defaults = set(draw(st.lists(st.sampled_from(named), unique=True), label="defaults"))
    with_defaults |= {plain[-1]} if len(plain) > 1 and draw(st.booleans()) else set()
    texts = [f"{name}={draw(st.sampled_from(['0.5', '2', '-1.25', 'math.pi']))}" if name in with_defaults else name
             for name in names]  # fmt: skip
    slash = draw(st.integers(0, first))
    parameters = [*texts[:slash], *(["/"] if slash else []), *texts[slash:first], "*", *texts[first:]]
    helper = Helper(f"helper{number}", plain, named, with_defaults, draw(st.sampled_from([1, 1, 2])))
    body = Body(draw, names, helpers).text(helper.results)
    return f"def {helper.name}({', '.join(parameters)}):\n{body}", helper


@st.composite
def modules(draw):
    """The text of a module with the class Drawn: two stages, R multiplies what the first one writes."""
    constants = "\n".join(f"{name} = {number}.5" for number, name in enumerate(CONSTANTS))
    texts, helpers = [HEAD.format(constants=constants)], []
    for number in range(draw(st.integers(1, 3), label="helpers")):
        text, helper = helper_of(draw, number, helpers)
        texts.append(text)
        helpers.append(helper)
    source = draw(st.sampled_from(["x", "y", "w", "units", "hidden", "rows", "step", "mean"]), label="source")
    # A name that begins with d could be the gradient of another one
    words = st.sampled_from([word for word in WORDS if word[0] != "d" and word != source])
    roles = draw(st.lists(words, min_size=6, max_size=6, unique=True), label="names")
    gate, other, apart, state, vector, passed = roles
    stages = draw(st.lists(st.sampled_from(["tanh", "sigmoid", "max", "first", "x", "helper0", "made"]),
                           min_size=2, max_size=2, unique=True), label="stages")  # fmt: skip
    reads = [gate, apart, f"{state}_prev", vector]
    first = Body(draw, reads, helpers, cell=True).text(2)
    second = Body(draw, [other, passed, vector, "h_prev"], helpers, cell=True).text(2)
    texts.append(f'''@cell(gates=[Gate("{gate}", apart="{apart}"), Gate("{other}", multiplies="{source}")],
      states="{state}", vectors="{vector}", smooth=False)
class Drawn(NamedTuple):
    factor: float = 0.4
    flag: bool = False

    @forward("{source} {passed}")
    def {stages[0]}(self, {", ".join(reads)}):
{_indented(f"r0, r1 = 0.01 * {gate}, 0.01 * {apart} * {vector} * {state}_prev", first)}
    @forward("{state} h")
    def {stages[1]}(self, {other}, {passed}, {vector}, h_prev):
{_indented(f"r0, r1 = 0.01 * {passed}, 0.01 * {other}", second)}''')
    return "\n\n".join(texts)


def _indented(line, text):
    """A stage's lines, after one that reads what must be read, whatever the others do."""
    lines = text.replace("return ", "return r0 + r1 + ").splitlines()
    return "".join(f"    {one}\n" for one in [f"    {line}", *lines])
