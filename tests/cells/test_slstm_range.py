"""The sLSTM where its exponents are hundreds: against its equations without a stabiliser, in 60 decimal digits.

Decimal numbers hold exp(5000). Exponents are multiples of 1/16, whose sums are exact in float32: m has the rounding of
a number of its size, whatever the equations are. No two are equal, where the larger one has no derivative.
"""

from decimal import Decimal, localcontext

import numpy as np
import pytest
from combinations import nightly, pairs
from tolerances import assert_close, assert_gradient_close

import rnnkit
from rnnkit.cells import SLSTM

T, STEP = 8, Decimal("1e-20")
GATES = "z", "i", "f", "o"


def logistic(a):
    return 1 / (1 + (-a).exp())


def run(x, r, states, sigmoid_forget):
    """y of each step and the last c, n and m, for one unit: x has the steps' pre-activations, r what h is added by."""
    h, c, n, m = states
    c, n = c * m.exp(), n * m.exp()  # without a stabiliser
    outputs = []
    for step in x:
        z, i, f, o = (a + own * h for a, own in zip(step, r, strict=True))
        f = -(1 + (-f).exp()).ln() if sigmoid_forget else f
        m = i if n == 0 else max(i, f + m)
        e = (2 * z).exp()
        c, n = f.exp() * c + i.exp() * (e - 1) / (e + 1), f.exp() * n + i.exp()
        h = logistic(o) * c / n
        outputs.append(h)
    return outputs, [h, c * (-m).exp(), n * (-m).exp(), m]


def whole(rng, size, count=T):
    """Exponents up to a size, with a fraction of the step's own."""
    return rng.integers(-size, size, count, endpoint=True) + np.arange(1, count + 1) / 16


def exponents(name, rng):
    """a_i and a_f of each step."""
    ones, steps = np.ones(T), np.arange(1, T + 1) / 16
    return {
        "small": (whole(rng, 2), whole(rng, 2) - steps),
        "large": (whole(rng, 800), np.floor(whole(rng, 800))),
        "forgets nothing": (whole(rng, 300), 400 * ones),
        "forgets all": (whole(rng, 300) - 600, -700 * ones),
        "lets nothing in": (-900 * ones + steps, 64 * ones),
        "one that counts": (np.where(np.arange(T) == 3, 500, -500) + steps, 64 * ones),
    }[name]


CASES = "small", "large", "forgets nothing", "forgets all", "lets nothing in", "one that counts"
STATES = {"none": (0.0, 0.0, 0.0, 0.0), "some": (0.25, 1.5, 2.0, -40.0), "tiny n": (-0.5, 2.0**-22, 2.0**-20, 100.0)}


class Case:
    """A network of one unit, whose inputs are its pre-activations."""

    def __init__(self, name, states, sigmoid_forget, dtype):
        rng = np.random.default_rng(CASES.index(name))
        self.desc = rnnkit.RNNDescriptor(SLSTM(sigmoid_forget), 4, 1, bias="none", dtype=dtype)
        i, f = exponents(name, rng)
        self.x = np.stack([rng.normal(size=T), i, f, whole(rng, 3)], axis=1).astype(dtype)
        self.x[2, 3], self.x[4, 0], self.x[5, 3] = -300, 200, 400  # saturated
        self.r, self.states = np.array([0.75, 0, 0, -0.5], dtype), np.array(STATES[states], dtype)
        blocks = {"weight_ih_l0": np.eye(4, dtype=dtype), "weight_hh_l0": self.r[:, None]}
        self.w = rnnkit.pack_weights(self.desc, blocks)
        self.dy, self.dstates = rng.normal(size=T).astype(dtype), rng.normal(size=4).astype(dtype)
        self.sigmoid_forget = sigmoid_forget

    def found(self):
        """y and states, then their gradients, of the network."""
        h, *states = self.states.reshape(4, 1, 1, 1)
        found = rnnkit.forward(self.desc, self.w, self.x[:, None], h, tuple(states))
        dh, *dstates = self.dstates.reshape(4, 1, 1, 1)
        back = rnnkit.backward(self.desc, self.w, found.workspace, self.dy[:, None, None], dh, tuple(dstates))
        outputs = found.y.ravel(), np.ravel([found.hy, *found.cy])
        dr = rnnkit.weight_views(self.desc, back.dw)["weight_hh_l0"].ravel()
        return outputs, {"x": back.dx[:, 0], "r": dr, "states": np.ravel([back.dhx, *back.dcx])}

    def expected(self):
        """The same, in decimal digits: the gradients are central differences."""
        blocks = {name: getattr(self, name) for name in ("x", "r", "states")}
        moved = blocks if self.states[2] else ("x", "r")  # n = 0 is an edge: there is no derivative by the states
        exact = {name: np.vectorize(Decimal, otypes=[object])(array.astype(float)) for name, array in blocks.items()}
        with localcontext() as context:
            context.prec = 60
            outputs, last = run(**exact, sigmoid_forget=self.sigmoid_forget)
            gradients = {name: np.zeros(array.shape) for name, array in blocks.items()}
            for name in moved:
                for index in np.ndindex(blocks[name].shape):
                    gradients[name][index] = self.difference(exact, name, index)
        return (np.array(outputs, float), np.array(last, float)), gradients

    def difference(self, exact, name, index):
        losses = []
        for step in (STEP, -STEP):
            moved = exact[name].copy()
            moved[index] += step
            outputs, last = run(**exact | {name: moved}, sigmoid_forget=self.sigmoid_forget)
            pairs = zip([*self.dy, *self.dstates], [*outputs, *last], strict=True)
            losses.append(sum(Decimal(float(weight)) * value for weight, value in pairs))
        return (losses[0] - losses[1]) / (2 * STEP)


ALL = pairs(CASES, STATES, [False, True], ["float32", nightly("float64")])


@pytest.mark.parametrize(("name", "states", "sigmoid_forget", "dtype"), ALL)
def test_slstm_equals_decimals_at_any_exponents(name, states, sigmoid_forget, dtype):
    case = Case(name, states, sigmoid_forget, dtype)
    (y, last), gradients = case.found()
    (wanted_y, wanted_last), wanted = case.expected()
    assert_close("y", y, wanted_y, dtype)
    for number, text in enumerate(("hy", "c", "n", "m")):
        assert_close(text, last[number], wanted_last[number], dtype)
    for gate, ours, expected in zip(GATES, gradients["x"].T, wanted["x"].T, strict=True):
        assert_gradient_close(f"dx of {gate}", ours, expected, dtype)
    assert_gradient_close("dr", gradients["r"], wanted["r"], dtype)
    if states == "none":
        assert np.isfinite(gradients["states"]).all()
        return
    for text, ours, expected in zip(("dhx", "dc", "dn", "dm"), gradients["states"], wanted["states"], strict=True):
        assert_gradient_close(text, ours, expected, dtype)
