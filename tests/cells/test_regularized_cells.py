"""Layer normalisation, dropout and zoneout inside a step: against the papers' equations in NumPy and central
differences, and their bits; means beside other breaks of a step."""

from typing import NamedTuple

import cell_reference
import numpy as np
import pytest
from combinations import nightly
from declared_cells import declared
from gradcheck import assert_gradients
from messages import raises, says
from problems import Problem, gradient_problem
from reference import sigmoid as logistic
from several_states import arrays_of
from tolerances import GRADIENTS, OUTPUTS, assert_same_results

import rnnkit
from rnnkit import cells
from rnnkit.cells import CellError, Gate, Noise, cell, forward, gradient, mean, sigmoid, tanh
from rnnkit_kernels.machine import thread_pool

T, N, H = 5, 4, 40  # two panels of a mean, the second a part of one
SIZES = dict(hidden_size=H, num_layers=2, bidirectional=True, seq_len=T, batch_size=N, lengths=(5, 2, 0, 4))
RESETS = np.random.default_rng(2).integers(0, 4, (T, N)) == 0
KINDS = {
    "layer-norm-lstm": cells.LayerNormLSTM(1e-4, recurrent_dropout=0.3, zoneout=0.2, zoneout_c=0.4),
    "layer-norm-gru": cells.LayerNormGRU(1e-4, recurrent_dropout=0.3, zoneout=0.2),
    "regularized-lstm": cells.RegularizedLSTM(0.3, 0.2, 0.4),
    "regularized-gru": cells.RegularizedGRU(0.3, 0.2),
    "variational-lstm": cells.VariationalLSTM(0.3),
    "variational-gru": cells.VariationalGRU(0.3),
}
CASES = [
    pytest.param(kind, id=name) if name in ("layer-norm-lstm", "variational-gru") else nightly(kind, id=name)
    for name, kind in KINDS.items()
]
BITS = [pytest.param(*case.values, "float64", id=case.id, marks=case.marks) for case in CASES]


def noises_of(workspace, desc):
    """What was drawn, of each pseudo-layer by name (T, N, H)."""
    found = []
    for index in range(desc.num_pseudo_layers):
        own = {}
        for per_step, field in ((False, "noises"), (True, "step_noises")):
            names = [noise.name for noise in desc.mode.declaration.noises if noise.per_step == per_step]
            if names:
                drawn = workspace.arrays[f"{field}_{index}"].reshape(-1, N, len(names), H)
                own |= {name: np.broadcast_to(drawn[:, :, k], (T, N, H)) for k, name in enumerate(names)}
        found.append(own)
    return found


def step_of_papers(kind, w, x, h, states):
    """h and the states of one row after a step, as the papers have it: `w` holds weights and what is drawn."""
    is_variational, has_norms = type(kind).__name__.startswith("Variational"), hasattr(kind, "eps")
    before, keep = (h * w["keep"], 1) if is_variational else (h, w["keep"])
    a, q = w["weight_ih"] @ x + w["bias_ih"], w["weight_hh"] @ before + w["bias_hh"]

    def of_gates(letters, kind):
        return np.concatenate([w[kind + letter] for letter in letters])

    def norm(rows, gains):
        return gains * (rows - rows.mean()) / np.sqrt(rows.var() + kind.eps)

    if states:
        if has_norms:
            a = norm(a, of_gates("ifgo", "w")) + norm(q, of_gates("ifgo", "r")) + of_gates("ifgo", "b")
            q = 0
        i, f, g, o = np.split(a + q, 4)
        (c,) = states
        now = logistic(f) * c + logistic(i) * (keep * np.tanh(g))
        hold = w.get("hold_c", 0)
        c = hold * c + (1 - hold) * now
        states = [c]
        now = logistic(o) * np.tanh(norm(c, w["gain_c"]) + w["shift_c"] if has_norms else c)
    else:
        (ar, az, an), (qr, qz, qn) = np.split(a, 3), np.split(q, 3)
        if has_norms:
            ar, az = np.split(norm(np.append(ar, az), of_gates("rz", "w")) + of_gates("rz", "b"), 2)
            qr, qz = np.split(norm(np.append(qr, qz), of_gates("rz", "r")), 2)
            an, qn = norm(an, w["wn"]) + w["bn"], norm(qn, w["rn"]) + w["bq"]
        z = logistic(az + qz)
        now = z * h + (1 - z) * keep * np.tanh(an + logistic(ar + qr) * qn)
    hold = w.get("hold", 0)
    return hold * h + (1 - hold) * now, states


@pytest.mark.parametrize("kind", CASES)
def test_values_and_gradients_are_those_of_the_papers(kind, monkeypatch):
    monkeypatch.setattr(cell_reference, "step", step_of_papers)
    problem = Problem(kind, **SIZES)
    found = problem.forward(resets=RESETS)
    given = problem.x, problem.hx, arrays_of(problem.cx), problem.lengths, RESETS
    y, hy, final = cell_reference.forward(problem, *given, noises=noises_of(found.workspace, problem.desc))
    for own, wanted in zip((found.y, found.hy, *arrays_of(found.cy)), (y, hy, *final), strict=True):
        np.testing.assert_allclose(own, wanted, atol=1e-12)
    assert_gradients(*gradient_problem(problem), seed=0)


@pytest.mark.parametrize(("kind", "dtype"), [*BITS, nightly(KINDS["layer-norm-gru"], "float32")])
def test_bits_depend_on_neither_threads_nor_rows(kind, dtype, every_worker_comes, monkeypatch):
    """Nor on checkpoints; and those of plans are those of inference."""
    problem = Problem(kind, **SIZES, dtype=dtype)
    options = dict(lengths=problem.lengths, resets=RESETS)
    found = problem.forward(resets=RESETS)
    back, plan = problem.backward(found.workspace), rnnkit.prepare(problem.desc, problem.w)
    inferred = rnnkit.infer(problem.desc, *problem.inputs, **options)
    for threads in (1, 2, 3):
        monkeypatch.setattr(thread_pool, "wanted_size", lambda threads=threads: threads)
        again = problem.forward(resets=RESETS, checkpoint_steps=2 if threads > 1 else None)
        assert_same_results(again, found, OUTPUTS)
        assert_same_results(problem.backward(again.workspace), back, GRADIENTS)
        assert_same_results(rnnkit.infer(problem.desc, *problem.inputs, **options), inferred, OUTPUTS)
        assert_same_results(plan.infer(*problem.inputs[1:], **options), inferred, OUTPUTS)
    x, hx, cx = (None if one is None else one[:, 1:2] for one in problem.inputs[1:])
    row = rnnkit.infer(problem.desc, problem.w, x[:2], hx, cx, resets=RESETS[:2, 1:2])
    assert np.array_equal(row.y[0, :, :H], inferred.y[0, 1:2, :H])


@cell(gates=[Gate("z"), Gate("n", multiplies="m"), Gate("u", multiplies="s", input=False)], states="s", vectors="g")
class NormBetweenProducts(NamedTuple):
    eps: float = 1e-3

    @forward("m")
    def normed(self, z, h_prev, g):
        return g * h_prev * (1 / (mean(h_prev * h_prev) + self.eps) ** 0.5) + tanh(z)

    @forward("s")
    def summed(self, n, s_prev, m):
        return 0.5 * s_prev + tanh(n) * sigmoid(m - mean(m))

    @forward("h")
    def output(self, u, s, z):
        return tanh(u) * s + mean(u * z)


@cell(gates="a b", states="c")
class NormBeforeProjection(NamedTuple):
    @forward("c h")
    def step(self, a, b, c_prev):
        c = sigmoid(a) * c_prev + b - mean(b)
        return c, tanh(c - mean(c))


@pytest.mark.parametrize(("kind", "proj_size"), [(NormBetweenProducts, None), nightly(NormBeforeProjection, 17)])
def test_means_beside_products_and_a_projection_are_right(kind, proj_size):
    rnnkit.check_cell(kind)
    problem = Problem(kind, hidden_size=H, bidirectional=True, proj_size=proj_size)
    assert_gradients(*gradient_problem(problem), seed=0)
    if proj_size is None:
        found = problem.forward()
        y, hy, final = cell_reference.forward(problem, problem.x, problem.hx, arrays_of(problem.cx))
        for own, wanted in zip((found.y, found.hy, found.cy), (y, hy, *final), strict=True):
            np.testing.assert_allclose(own, wanted, atol=1e-12)
        assert [len(phase.products) for phase in kind.declaration.phases] == [1, 0, 1, 0, 1, 0]


@pytest.mark.cores(2)
@pytest.mark.parametrize("kind", [KINDS["layer-norm-lstm"], NormBetweenProducts()], ids=["norms", "products"])
def test_threads_share_out_whole_panels(kind, every_worker_comes, monkeypatch):
    """Of one row, which threads cannot share, with work for all; a share that ended within a panel would show."""
    problem, runs = Problem(kind, hidden_size=300, num_layers=2, seq_len=12, batch_size=1), []
    for threads in (1, 2, 3):
        monkeypatch.setattr(thread_pool, "wanted_size", lambda threads=threads: threads)
        found = problem.forward()
        runs.append((found, problem.backward(found.workspace)))
        assert_same_results(found, runs[0][0], OUTPUTS)
        assert_same_results(runs[-1][1], runs[0][1], GRADIENTS)


def centred(self, a, b):
    return a - mean(b)


def helped(x):
    return x - mean(x)


def noisy(self, a, b, keep):
    return a * keep + b


@gradient("da db")
def back(self, dh):
    return dh, dh


@gradient("da db")
def back_of_keep(self, dh, keep):
    return dh * keep, dh


KEEP = {"noises": [Noise("keep", "rate")], "fields": [("rate", float)]}
INTEGER = {"fields": [("rate", int), ("p", float)]}
REFUSED = [
    ((lambda self, a, b: a + mean(mean(b)),), {}, "mean | all units of a row | `mean(mean(b))`"),
    ((lambda self, a, b, k: a + b + mean(k * 2),), {"scalars": "k"}, "mean | all units of a row"),
    ((centred, back), {}, "mean | gradients"),
    ((lambda self, a, b: helped(a) * b, back), {}, "mean | gradients"),
    ((noisy,), KEEP | {"fields": ()}, "noise keep | float | (none yet) | 'rate'"),
    ((noisy,), KEEP | INTEGER, "noise keep | (p) | 'rate'"),
    ((centred,), KEEP, "noise keep | forward stage | none"),
    ((lambda self, a, b: a + b, back_of_keep), KEEP, "noise keep | forward stage | none"),
    ((centred,), KEEP | {"noises": [Noise("a", "rate")]}, "name | 'a'"),
    ((noisy,), KEEP | {"noises": "keep"}, "noises | list | Noise(name, rate) | 'keep'"),
    ((noisy,), KEEP | {"noises": ["keep"]}, "noises | list | Noise(name, rate) | 'keep'"),
    ((noisy,), KEEP | {"noises": [Noise("keep", 0.5)]}, "str | 0.5"),
    ((noisy,), KEEP | {"noises": [Noise("keep", "rate", 1)]}, "per_step of Noise(name='keep', rate='rate', "),
    ((noisy,), KEEP | {"gates": [Gate("a", multiplies="keep"), Gate("b")]}, "keep is a noise"),
]


@pytest.mark.parametrize(("stages", "options", "message"), REFUSED)
def test_wrong_mean_or_noise_is_refused(stages, options, message):
    step, *gradients = stages
    with raises(CellError, f"cell Mine: | {message}"):
        declared(forward("h")(step), *gradients, **{"gates": "a b"} | options)


def test_mean_of_a_mean_of_an_earlier_stage_is_refused():
    with pytest.raises(CellError, match=says("cell Mine:", "mean", "all units of a row")):

        @cell(gates="a b")
        class Mine(NamedTuple):
            first = forward("m")(lambda self, a: mean(a))
            second = forward("h")(lambda self, m, b: b + mean(m))
