"""Cells of papers, those shipped and those of the gallery, against torchrecurrent's on its own weights: values, states,
gradients by x, the states and each of its parameters. The page of the gallery is that of its cells."""

from importlib.util import find_spec

import numpy as np
import pytest
from combinations import weekly
from optional import needs

import rnnkit
from examples.gallery.page import CELLS, PAGE, page_of, parts_of
from examples.gallery.strongly_typed import beside_the_one_before
from rnnkit.cells import AUGRU

SEQ_LEN, BATCH, INPUT, HIDDEN = 7, 3, 4, 5
BOUND = 1e-9  # relative to the largest number of an array: both compute in float64
BY_DEFAULT = ("DSGU",)  # several products in a chain, R times a state after the step
LEARNED = "alpha", "beta"  # by torchrecurrent; the papers of JANET and SCRN give them as numbers


def test_page_is_that_of_the_cells():
    parts = {name: parts_of(kind) for name, kind in CELLS.items()}
    assert [name for name, found in parts.items() if not all(found)] == ["ActivatedLSTM", "MultiHeadSLSTM"]
    assert PAGE.read_text() == page_of(CELLS), "write it anew: python -m examples.gallery.page"


def test_every_cell_of_torchrecurrent_is_there():
    theirs = needs("torchrecurrent")
    from perf.torchrecurrent_cells import GALLERY, MISSING, PEERS

    compared = {peer.theirs.__name__ for name, peer in PEERS.items() if name != "RHN"}
    assert compared | set(MISSING) == {name for name in theirs.__all__ if name.endswith("Cell")}
    assert {name for name, kind in CELLS.items() if kind.__module__.startswith("examples")} == set(GALLERY)
    assert all(type(peer.kind).__name__ == name for name, peer in PEERS.items())


@pytest.mark.nightly
def test_augru_with_all_attention_equals_the_gru():
    """And half of it is a step of half the way. PyTorch's z is 1 - u."""
    rng, kwargs = np.random.default_rng(0), {"dtype": "float64", "seed": 0}
    gru, net = rnnkit.Network("gru", INPUT, HIDDEN, **kwargs), rnnkit.Network(AUGRU, INPUT, HIDDEN, **kwargs)
    for name, one in gru.views.items():
        net.views[name][...] = one * np.repeat([1, -1, 1], HIDDEN).reshape(-1, *[1] * (one.ndim - 1))
    x, hx = rng.normal(size=(SEQ_LEN, BATCH, INPUT)), rng.normal(size=(1, BATCH, HIDDEN))
    attention = np.ones((SEQ_LEN, BATCH, 1))
    assert_same("y", net.infer(x, hx, inputs={"attention": attention}).y, gru.infer(x, hx).y)
    half = net.infer(x[:1], hx, inputs={"attention": attention[:1] / 2}).y
    assert_same("y", half, (hx + gru.infer(x[:1], hx).y) / 2)


def cases():
    """A peer each; without torchrecurrent one that is skipped."""
    if find_spec("torchrecurrent") is None:
        return [pytest.param(None, marks=pytest.mark.skip(reason="needs torchrecurrent"))]
    from perf.torchrecurrent_cells import PEERS

    return [pytest.param(one, id=name) if name in BY_DEFAULT else weekly(one, id=name) for name, one in PEERS.items()]


def assert_same(name, own, wanted):
    own, wanted = (one.detach().numpy() if hasattr(one, "detach") else one for one in (own, wanted))
    np.testing.assert_allclose(own, wanted, rtol=0, atol=BOUND * np.abs(wanted).max(), err_msg=name)


@pytest.mark.nightly
def test_wrong_equation_is_noticed():
    """That of torchrecurrent's LEM, which is not the paper's."""
    needs("torchrecurrent")
    from perf.torchrecurrent_cells import PEERS, double

    with pytest.raises(AssertionError, match="\ny\n"):
        assert_same_cell(PEERS["LEM"]._replace(step=double))


@pytest.mark.parametrize("peer", cases())
def test_cell_equals_that_of_torchrecurrent(peer):
    assert_same_cell(peer)


def assert_same_cell(peer):
    """Values, states and gradients, these by each of torchrecurrent's parameters."""
    import torch

    import rnnkit.torch

    said, generator = peer.kind.declaration, torch.Generator().manual_seed(3)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    width = HIDDEN if said.inputs else INPUT  # a side input is x here
    theirs = peer.theirs(width, HIDDEN, **peer.options).double()
    fixed = {*LEARNED} - {one.name for one in said.vectors}
    parameters = {name: one for name, one in theirs.named_parameters() if name not in fixed}
    for one in parameters.values():
        one.data.uniform_(-0.7, 0.7, generator=generator)
    names, x = ["h", *said.states], drawn(SEQ_LEN, BATCH, width)
    h, *states = first = [drawn(BATCH, HIDDEN) for _ in names]
    given, weights, y, before = x, peer.weights(theirs), [], torch.zeros_like(x[0])
    for row in x:
        h, states = peer.step(theirs, row, before, h, states)
        before = row
        y.append(h)
    wanted = [torch.stack(y), h, *states]
    if weights["weight_ih"].shape[1] > width:
        given = torch.cat([x, torch.cat([torch.zeros_like(x[:1]), x[:-1]])], 2)
        assert np.array_equal(given.detach(), beside_the_one_before(x.detach().numpy()))
    module = rnnkit.torch.Recurrent(peer.kind, given.shape[2], HIDDEN, dtype=torch.float64)
    weights = {f"{name}_l0": one for name, one in weights.items()}
    assert weights.keys() == dict(module.named_parameters()).keys()
    with_layer = tuple(one[None] for one in first)
    calls = given, with_layer if states else with_layer[0]
    sides = {"inputs": {one.name: x for one in said.inputs} or None}
    found, last = torch.func.functional_call(module, weights, calls, sides)
    own = [found, *(one[0] for one in (last if states else [last]))]
    for name, ours, expected in zip(["y", *names], own, wanted, strict=True):
        assert_same(name, ours, expected)
    blocks = {"x": x, **dict(zip(names, first, strict=True)), **parameters}
    cotangents = [drawn(*one.shape).detach() for one in wanted]
    gradients = [
        torch.autograd.grad(values, [*blocks.values()], cotangents, retain_graph=True, materialize_grads=True)
        for values in (own, wanted)
    ]
    for name, ours, expected in zip(blocks, *gradients, strict=True):
        assert_same(f"d{name}", ours, expected)
