"""Layer normalisation, dropout and zoneout inside a step: against NumPy loops that know the declaration alone, against
PyTorch's autograd, and their bits; means beside other breaks of a step."""

from typing import NamedTuple

import numpy as np
import pytest
from cell_reference import differences
from cell_reference import forward as reference
from combinations import nightly
from messages import raises, says
from optional import needs

import rnnkit
from rnnkit import cells
from rnnkit.cells import CellError, Gate, Noise, cell, forward, gradient, mean, sigmoid, tanh
from rnnkit_kernels.machine import thread_pool

T, N, INPUT, H = 5, 4, 3, 40  # two panels of a mean, the second a part of one
LENGTHS = [5, 2, 0, 4]
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


def network(kind, dtype="float64", **options):
    """A network whose vectors are not all 0 or 1."""
    net = rnnkit.Network(kind, INPUT, H, **{"num_layers": 2, "bidirectional": True} | options, dtype=dtype, seed=0)
    rng = np.random.default_rng(1)
    for view in net.views.values():
        if view.ndim == 1:
            view += rng.normal(0, 0.3, view.shape)
    return net


def arrays(net, seed=2):
    rng = np.random.default_rng(seed)
    shape, dtype = (net.desc.num_pseudo_layers, N, H), net.desc.np_dtype
    x, hx = rng.normal(size=(T, N, INPUT)).astype(dtype), rng.normal(size=shape).astype(dtype)
    cx = rng.normal(size=shape).astype(dtype) if net.desc.states else None
    resets = rng.integers(0, 4, (T, N)) == 0
    dy = rng.normal(size=(T, N, net.desc.num_directions * H)).astype(dtype)
    return x, hx, cx, resets, dy, rng.normal(size=shape).astype(dtype)


def noises_of(workspace, net):
    """What was drawn, of each pseudo-layer by name (T, N, H)."""
    found = []
    for index in range(net.desc.num_pseudo_layers):
        own = {}
        for per_step, field in ((False, "noises"), (True, "step_noises")):
            names = [noise.name for noise in net.desc.mode.declaration.noises if noise.per_step == per_step]
            if names:
                drawn = workspace.arrays[f"{field}_{index}"].reshape(-1, N, len(names), H)
                own |= {name: np.broadcast_to(drawn[:, :, k], (T, N, H)) for k, name in enumerate(names)}
        found.append(own)
    return found


@pytest.mark.parametrize("kind", CASES)
def test_values_equal_a_loop(kind):
    net = network(kind)
    x, hx, cx, resets, _, _ = arrays(net)
    found = net.forward(x, hx, cx, lengths=LENGTHS, resets=resets, seed=3)
    drawn = noises_of(found.workspace, net)
    y, hy, final = reference(net, x, hx, [] if cx is None else [cx], LENGTHS, resets, noises=drawn)
    np.testing.assert_allclose(found.y, y, atol=1e-12)
    np.testing.assert_allclose(found.hy, hy, atol=1e-12)
    for own in final:
        np.testing.assert_allclose(found.cy, own, atol=1e-12)


def twin(torch, net, weights, x, noises, norm):
    """y of a network of one direction in PyTorch, as the papers have it."""
    kind, hidden = net.desc.mode, None
    gates = len(kind.declaration.gates)
    for layer in range(net.desc.num_layers):
        own = {name.removesuffix(f"_l{layer}"): w for name, w in weights.items() if name.endswith(f"_l{layer}")}
        h, c = torch.zeros(2, N, H, dtype=x.dtype)
        hidden = []
        for t in range(T):
            drawn = {name: torch.tensor(one[t]) for name, one in noises[layer].items()}
            is_variational = type(kind).__name__.startswith("Variational")
            keep = drawn["keep"]
            before = h * keep if is_variational else h
            keep = 1 if is_variational else keep
            a = x[t] @ own["weight_ih"].T + own["bias_ih"]
            q = before @ own["weight_hh"].T + own["bias_hh"]
            if gates == 4:
                if norm:
                    a = norm(a, [f"w{gate}" for gate in "ifgo"], own) + norm(q, [f"r{gate}" for gate in "ifgo"], own)
                    a, q = a + torch.cat([own[f"b{gate}"] for gate in "ifgo"]), 0
                i, f, g, o = (a + q).chunk(4, 1)
                now = torch.sigmoid(f) * c + torch.sigmoid(i) * (keep * torch.tanh(g))
                hold = drawn.get("hold_c", 0)
                c = hold * c + (1 - hold) * now
                inner = norm(c, ["gain_c"], own) + own["shift_c"] if norm else c
                now = torch.sigmoid(o) * torch.tanh(inner)
            else:
                (ar, az, an), (qr, qz, qn) = a.chunk(3, 1), q.chunk(3, 1)
                if norm:
                    both = norm(torch.cat([ar, az], 1), ["wr", "wz"], own) + torch.cat([own["br"], own["bz"]])
                    ar, az = both.chunk(2, 1)
                    qr, qz = norm(torch.cat([qr, qz], 1), ["rr", "rz"], own).chunk(2, 1)
                    an, qn = norm(an, ["wn"], own) + own["bn"], norm(qn, ["rn"], own) + own["bq"]
                z = torch.sigmoid(az + qz)
                n = keep * torch.tanh(an + torch.sigmoid(ar + qr) * qn)
                now = z * h + (1 - z) * n
            hold = drawn.get("hold", 0)
            h = hold * h + (1 - hold) * now
            hidden.append(h)
        x = torch.stack(hidden)
    return x


@pytest.mark.parametrize("kind", CASES)
def test_values_and_gradients_equal_pytorch(kind):
    torch = needs("torch")
    net = network(kind, bidirectional=False)
    x, _, _, _, dy, _ = arrays(net)
    found = net.forward(x, seed=3)
    back = net.backward(found.workspace, dy)
    weights = {name: torch.tensor(view, requires_grad=True) for name, view in net.views.items()}
    given = torch.tensor(x, requires_grad=True)

    def norm(a, gains, own):
        return torch.nn.functional.layer_norm(a, a.shape[1:], torch.cat([own[name] for name in gains]), eps=kind.eps)

    y = twin(torch, net, weights, given, noises_of(found.workspace, net), norm if hasattr(kind, "eps") else None)
    y.backward(torch.tensor(dy))
    np.testing.assert_allclose(found.y, y.detach().numpy(), atol=4e-14)
    np.testing.assert_allclose(back.dx, given.grad.numpy(), atol=1e-12)
    for name, own in rnnkit.weight_views(net.desc, back.dw).items():
        np.testing.assert_allclose(own, weights[name].grad.numpy(), atol=1e-11, err_msg=name)


@pytest.mark.parametrize(("kind", "dtype"), [*BITS, nightly(KINDS["layer-norm-gru"], "float32")])
def test_bits_depend_on_neither_threads_nor_rows(kind, dtype, every_worker_comes, monkeypatch):
    """Nor on checkpoints; and those of plans are those of inference."""
    net = network(kind, dtype)
    x, hx, cx, resets, dy, dhy = arrays(net)
    options = dict(lengths=LENGTHS, resets=resets)
    found = net.forward(x, hx, cx, **options, seed=3)
    y, back = found.y.copy(), net.backward(found.workspace, dy, dhy)
    inferred, plan = net.infer(x, hx, cx, **options), net.prepare()
    for threads in (1, 2, 3):
        monkeypatch.setattr(thread_pool, "wanted_size", lambda threads=threads: threads)
        again = net.forward(x, hx, cx, **options, seed=3, checkpoint_steps=2 if threads > 1 else None)
        assert np.array_equal(again.y, y)
        for own, before in zip(net.backward(again.workspace, dy, dhy), back, strict=True):
            assert own is before is None or np.array_equal(own, before)
        assert np.array_equal(net.infer(x, hx, cx, **options).y, inferred.y)
        assert np.array_equal(plan.infer(x, hx, cx, **options).y, inferred.y)
    states = None if cx is None else cx[:, 1:2]
    row = net.infer(x[:2, 1:2], hx[:, 1:2], states, resets=resets[:2, 1:2])
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
def test_means_beside_products_and_a_projection_are_right(kind, proj_size, every_worker_comes, monkeypatch):
    rnnkit.check_cell(kind)
    net = rnnkit.Network(kind, 3, H, bidirectional=True, proj_size=proj_size, dtype="float64", seed=0)
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(3, 2, 3)), rng.normal(size=(3, 2, 2 * net.desc.output_size))
    first = None
    for threads in (1, 2, 3):
        monkeypatch.setattr(thread_pool, "wanted_size", lambda threads=threads: threads)
        result = net.forward(x)
        own = result.y.copy(), *net.backward(result.workspace, dy)
        first = first or own
        assert all(a is b is None or np.array_equal(a, b) for a, b in zip(own, first, strict=True))
    if proj_size is not None:
        direction = rng.normal(size=x.shape)
        slope = sum(sign * (net.infer(x + sign * 1e-5 * direction).y * dy).sum() for sign in (1, -1)) / 2e-5
        assert abs((first[1] * direction).sum() - slope) < 1e-6
        return
    assert [len(phase.products) for phase in kind.declaration.phases] == [1, 0, 1, 0, 1, 0]
    hx, cx = np.zeros((2, 2, 2, H))
    cotangents = dy, np.zeros_like(hx), [np.zeros_like(cx)]
    gradients = {"x": first[1]} | rnnkit.weight_views(net.desc, first[-1])
    for name, (direction, slope, curved) in differences(net, x, hx, [cx], cotangents, rng).items():
        if name in gradients:
            assert abs((gradients[name] * direction).sum() - slope) <= 1e-7 * (1 + abs(slope)) + 3 * curved, name


@pytest.mark.cores(2)
@pytest.mark.parametrize("kind", [KINDS["layer-norm-lstm"], NormBetweenProducts()], ids=["norms", "products"])
def test_threads_share_out_whole_panels(kind, every_worker_comes, monkeypatch):
    """Of one row, which threads cannot share, with work for all; a share that ended within a panel would show."""
    net = rnnkit.Network(kind, 4, 300, 2, dtype="float64", seed=0)
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(12, 1, 4)), rng.normal(size=(12, 1, 300))
    found = None
    for threads in (1, 2, 3):
        monkeypatch.setattr(thread_pool, "wanted_size", lambda threads=threads: threads)
        result = net.forward(x, seed=1)
        y, back = result.y.copy(), net.backward(result.workspace, dy)
        found = found or (y, back)
        assert np.array_equal(y, found[0]), threads
        assert all(np.array_equal(*pair) for pair in zip(back[:2], found[1][:2], strict=True)), threads
        assert np.array_equal(back.dw, found[1].dw)


def declared(step, back=None, fields=(), **options):
    kind = NamedTuple("Mine", fields)
    kind.step = forward("h")(step)
    if back is not None:
        kind.back = gradient("da db")(back)
    return cell(**{"gates": "a b"} | options)(kind)


def centred(self, a, b):
    return a - mean(b)


def helped(x):
    return x - mean(x)


def noisy(self, a, b, keep):
    return a * keep + b


def back(self, dh):
    return dh, dh


def back_of_keep(self, dh, keep):
    return dh * keep, dh


KEEP = {"noises": [Noise("keep", "rate")], "fields": [("rate", float)]}
INTEGER = {"fields": [("rate", int), ("p", float)]}
REFUSED = [
    (lambda self, a, b: a + mean(mean(b)), {}, "mean | all units of a row | `mean(mean(b))`"),
    (lambda self, a, b, k: a + b + mean(k * 2), {"scalars": "k"}, "mean | all units of a row"),
    (centred, {"back": back}, "mean | gradients"),
    (lambda self, a, b: helped(a) * b, {"back": back}, "mean | gradients"),
    (noisy, KEEP | {"fields": ()}, "noise keep | float | (none yet) | 'rate'"),
    (noisy, KEEP | INTEGER, "noise keep | (p) | 'rate'"),
    (centred, KEEP, "noise keep | forward stage | none"),
    (lambda self, a, b: a + b, KEEP | {"back": back_of_keep}, "noise keep | forward stage | none"),
    (centred, KEEP | {"noises": [Noise("a", "rate")]}, "name | 'a'"),
    (noisy, KEEP | {"noises": "keep"}, "noises | list | Noise(name, rate) | 'keep'"),
    (noisy, KEEP | {"noises": ["keep"]}, "noises | list | Noise(name, rate) | 'keep'"),
    (noisy, KEEP | {"noises": [Noise("keep", 0.5)]}, "str | 0.5"),
    (noisy, KEEP | {"noises": [Noise("keep", "rate", 1)]}, "per_step of Noise(name='keep', rate='rate', "),
    (noisy, KEEP | {"gates": [Gate("a", multiplies="keep"), Gate("b")]}, "keep is a noise"),
]


@pytest.mark.parametrize(("step", "options", "message"), REFUSED)
def test_wrong_mean_or_noise_is_refused(step, options, message):
    with raises(CellError, f"cell Mine: | {message}"):
        declared(step, **options)


def test_mean_of_a_mean_of_an_earlier_stage_is_refused():
    with pytest.raises(CellError, match=says("cell Mine:", "mean", "all units of a row")):

        @cell(gates="a b")
        class Mine(NamedTuple):
            first = forward("m")(lambda self, a: mean(a))
            second = forward("h")(lambda self, m, b: b + mean(m))
