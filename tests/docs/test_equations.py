"""The equations of the site are those of the code: derived for every cell, one line a gate, in the papers' letters."""

import math
import re

import numpy as np
import pytest

import rnnkit
from docs.tools.equations import code_of, of_cell, of_descriptor
from docs.tools.latex import Equations
from docs.tools.letters import NOISES, at, below, letter
from examples.gallery.page import CELLS
from rnnkit import RNNDescriptor, cells
from rnnkit.cells import step
from rnnkit_kernels.cells.gru import ResetAfterGRU, ResetBeforeGRU
from rnnkit_kernels.cells.lstm import LSTM
from rnnkit_kernels.cells.running import with_defaults
from rnnkit_kernels.cells.vanilla import ReLU, Tanh

MODES = {one.__name__: one for one in (LSTM, ResetAfterGRU, ResetBeforeGRU, Tanh, ReLU)}
OF_LSTM = r"""i_t &= \sigma(W_i x_t + R_i h_{t-1} + b_i)
f_t &= \sigma(W_f x_t + R_f h_{t-1} + b_f)
g_t &= \tanh(W_g x_t + R_g h_{t-1} + b_g)
o_t &= \sigma(W_o x_t + R_o h_{t-1} + b_o)
c_t &= f_t \odot c_{t-1} + i_t \odot g_t
h_t &= o_t \odot \tanh(c_t)"""
LINES = {
    LSTM: OF_LSTM,
    ResetAfterGRU: r"n_t &= \tanh(W_n x_t + b_n^W + r_t \odot (R_n h_{t-1} + b_n^R))",
    ResetBeforeGRU: r"n_t &= \tanh(W_n x_t + R_n (r_t \odot h_{t-1}) + b_n)",
    Tanh: r"h_t &= \tanh(W x_t + R h_{t-1} + b)",
    ReLU: r"h_t &= \max(W x_t + R h_{t-1} + b, 0)",
    cells.PeepholeLSTM: r"o_t &= \sigma(W_o x_t + R_o h_{t-1} + b_o + p_o \odot c_t)",
    cells.JANET: r"h_t &= \sigma(\tilde{f}_t) \odot h_{t-1} + (1 - \sigma(\tilde{f}_t - \beta)) \odot n_t",
    cells.RegularizedLSTM: r"h_t &= d^h_t \odot h_{t-1} + (1 - d^h_t) \odot (o_t \odot \tanh(c_t))",
    cells.VariationalLSTM: r"i_t &= \sigma(W_i x_t + R_i (k \odot h_{t-1}) + b_i)",
    cells.SLSTM: r"f_t &= \exp(\min(\tilde{f}_t + m_{t-1} - m_t, 0))",
    cells.CoRNN: r"z_t &= \Delta t \, (a_t - \gamma \, h_{t-1} - \varepsilon \, z_{t-1}) + z_{t-1}",
    cells.LayerNormGRU: r"r_t &= \sigma(r_r \odot \operatorname{LN}(R_r h_{t-1} + b_r^R) "
    r"+ w_r \odot \operatorname{LN}(W_r x_t + b_r^W) + b_r)",
    cells.LayerNormLSTM: r"h_t &= d^h_t \odot h_{t-1} + (1 - d^h_t) "
    r"\odot (\sigma(o_t) \odot \tanh(w_c \odot \operatorname{LN}(c_t) + b_c))",
    cells.MinimalRNN: r"u_t &= \sigma(R_u h_{t-1} + b_u + R_v z_t + b_v)",
}


@pytest.mark.parametrize("kind", LINES, ids=lambda kind: kind.__name__)
def test_lines_are_those_of_the_papers(kind):
    assert LINES[kind] in "\n".join(f"{left} &= {right}" for left, right in Equations(kind).lines)


def value_of(name):
    """The Python name of a symbol in LaTeX."""
    return "v" + re.sub(r"\W", "_", name.replace("{", "").replace("}", "").replace(" ", ""))


def in_python(latex):
    """A right side in LaTeX as Python of numbers: a layer of one unit, where a product with a matrix is one of
    numbers."""
    text = re.sub(
        r"\\begin\{cases\} (.*?) & \\text\{if \} (.*?) \\\\ (.*?) & \\text\{otherwise\} \\end\{cases\}",
        lambda found: f"({found[1]} if {found[2].replace(' = ', ' == ')} else {found[3]})",
        latex,
    )
    text = text.replace(r"\text{ or }", "or").replace(r"\odot", "*").replace(r"\, ", "* ")
    text = re.sub(r"\\frac\{((?:[^{}]|\{\w*\})*)\}\{((?:[^{}]|\{\w*\})*)\}", r"((\1) / (\2))", text)
    text = text.replace(r"\operatorname{hard}\sigma", "hard_sigma")
    text = re.sub(r"\\operatorname\{(\w+)\}|\\(sigma|tanh|exp|max|min)(?=\()", lambda one: one[1] or one[2], text)
    base = r"\\(?:tilde|mathrm|overline)\{(?:[^{}]|\{\w*\})*\}|\\Delta t|\\[a-z]+|[A-Za-z]"
    symbol = rf"(?<![\w])({base})((?:[_^](?:\{{[^}}]*\}}|\w))*)(?![\w(])"
    text = re.sub(symbol, lambda one: value_of(one[0]), text)
    return re.sub(r"(v[\w]+|\)) (?=v[\w]|\(|tanh)", r"\1 * ", text)


FUNCTIONS = {
    "sigma": lambda x: 1 / (1 + math.exp(-x)), "tanh": math.tanh, "exp": math.exp, "max": max, "min": min,
    "ReLU": lambda x: max(x, 0), "softplus": lambda x: math.log1p(math.exp(x)),
    "hard_sigma": lambda x: min(max(0.2 * x + 0.5, 0), 1),
}  # fmt: skip


class Numbers:
    """A step of a cell with one unit: what it is given, by the symbols of the equations, and what it computes."""

    def __init__(self, name, kind):
        rng, declaration = np.random.default_rng(0), kind.declaration
        own = with_defaults(kind)
        net = rnnkit.Network(self.mode(name, own), 1, 1, dtype="float64", seed=0)
        net.weights[:] = rng.uniform(-1.5, 1.5, len(net.weights))
        weights = {block.removesuffix("_l0"): one for block, one in net.views.items()}
        states = {state: rng.uniform(0.2, 1, (1, 1)) for state in ("h", *declaration.states)}
        inputs = {one.name: rng.uniform(0.2, 1, (1, 1)) for one in declaration.inputs}
        noises = {one.name: rng.uniform(0.2, 1, (1, 1)) for one in declaration.noises}
        x = inputs.get("x", rng.uniform(0.2, 1, (1, 1)))  # of the intersection RNN both are the same
        found = step(net.desc, "numpy")(weights, x, *states.values(), inputs=inputs or None, noises=noises or None)
        self.expected = {f"{state}_t": one.item() for state, one in zip(states, found, strict=True)}
        given = {"x_t": x} | {f"{letter(name, state)}_{{t-1}}": one for state, one in states.items()}
        given |= {at(letter(name, side)): one for side, one in inputs.items()}
        for one in declaration.noises:
            given[at(NOISES[one.name]) if one.per_step else NOISES[one.name]] = noises[one.name]
        given |= {letter(name, one.name): weights[one.name] for one in declaration.vectors}
        numbers = {field: one for field, one in own._asdict().items() if isinstance(one, float)}
        given |= {letter(name, field): np.array(one) for field, one in numbers.items()}
        self.given = {value_of(symbol): one.item() for symbol, one in given.items()}
        self.of_weights(declaration, weights)

    @staticmethod
    def mode(name, own):
        modes = {"LSTM": "lstm", "ResetAfterGRU": "gru", "Tanh": "rnn_tanh", "ReLU": "rnn_relu"}
        return modes.get(name, own)

    def of_weights(self, declaration, weights):
        for gate in declaration.gates:
            index = "" if len(declaration.gates) == 1 else below(gate.name)
            biases = {}
            kinds = ("W", "ih", declaration.input_gates), ("R", "hh", declaration.recurrent_gates)
            for matrix, suffix, gates in kinds:
                if gate in gates:
                    row = gates.index(gate)
                    self.given[value_of(matrix + index)] = weights[f"weight_{suffix}"][row].item()
                    biases[matrix] = weights[f"bias_{suffix}"][row].item()
                    self.given[value_of(f"b{index}^{matrix}")] = biases[matrix]
            self.given[value_of(f"b{index}")] = sum(biases.values())

    def computed(self, lines):
        now = FUNCTIONS | self.given
        for left, right in lines:
            now[value_of(left)] = eval(in_python(right), now)
        return {state: now[value_of(state)] for state in self.expected}


# One unit has no heads; what layer norm does is not seen in one unit. The GRU that resets before is a mode's option.
ONE_UNIT = [name for name in CELLS | MODES if name not in ("MultiHeadSLSTM", "LayerNormGRU", "LayerNormLSTM")]
ONE_UNIT.remove("ResetBeforeGRU")


@pytest.mark.parametrize("name", ONE_UNIT)
def test_equations_compute_what_the_cell_does(name):
    kind = (CELLS | MODES)[name]
    numbers, lines = Numbers(name, kind), Equations(kind).lines
    assert numbers.computed(lines) == pytest.approx(numbers.expected, rel=1e-9)


@pytest.mark.parametrize(
    ("good", "wrong"), [("i_t ", "f_t "), (" + ", " - "), (r"\tanh", r"\sigma"), ("R_f", "R_i"), ("h_{t-1}", "x_t")]
)
def test_a_wrong_equation_is_seen(good, wrong):
    numbers, lines = Numbers("LSTM", LSTM), Equations(LSTM).lines
    changed = [(left, right.replace(good, wrong, 1)) for left, right in lines]
    assert changed != lines
    assert numbers.computed(changed) != pytest.approx(numbers.expected, rel=1e-9)


def test_docstrings_get_mathematics_and_the_class():
    text = of_cell("rnnkit.cells.JANET", cells.JANET, cells.JANET.__doc__.replace("\n    ", "\n"))
    assert "a_f" not in text and "h' =" not in text
    assert ".. math::" in text and ".. cell-class:: rnnkit.cells.JANET" in text and "torchrecurrent learns beta" in text
    text = of_descriptor(RNNDescriptor.__doc__.replace("\n    ", "\n"))
    assert text.count(".. math::") == 4 and "R_n (r_t" in text and "tanh(Wn x" not in text


def test_code_of_a_class_is_without_docstring_and_gradients():
    code = code_of(LSTM)
    assert code.startswith("@cell(gates=") and "@forward" in code
    assert "@gradient" not in code and '"""' not in code and "through_cell" not in code
