"""Cells of papers, those shipped and those of the gallery, against torchrecurrent's on its own weights: values, states,
gradients by x, the states and each of its parameters. The page of the gallery is that of its cells."""

from importlib.util import find_spec

import numpy as np
import pytest
from combinations import weekly
from optional import needs
from several_states import arrays_of, as_given

import rnnkit
from examples.gallery.page import CELLS, PAGE, page_of, parts_of
from examples.gallery.strongly_typed import beside_the_one_before
from rnnkit import cells

SEQ_LEN, BATCH, INPUT, HIDDEN = 7, 3, 4, 5
BOUND = 1e-9  # relative to the largest number of an array: both compute in float64
BY_DEFAULT = ("DSGU",)  # several products in a chain, R times a state after the step
LEARNED = "alpha", "beta"  # by torchrecurrent; the papers of JANET and SCRN give them as numbers


@pytest.mark.parametrize("kind", CELLS.values(), ids=CELLS)
def test_gradients_of_the_equations_are_right(kind):
    rnnkit.check_cell(kind)


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
    gru, net = rnnkit.Network("gru", INPUT, HIDDEN, **kwargs), rnnkit.Network(cells.AUGRU, INPUT, HIDDEN, **kwargs)
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


class Theirs:
    """A cell of torchrecurrent, stepped in a loop: what it is given, what it computes, and the gradients."""

    def __init__(self, peer):
        import torch

        said = peer.kind.declaration
        width = HIDDEN if said.inputs else INPUT  # a side input is x here
        self.cell, self.draw = peer.theirs(width, HIDDEN, **peer.options).double(), torch.Generator().manual_seed(3)
        fixed = {*LEARNED} - {one.name for one in said.vectors}
        self.parameters = {name: one for name, one in self.cell.named_parameters() if name not in fixed}
        for one in self.parameters.values():
            one.data.uniform_(-0.7, 0.7, generator=self.draw)
        states = [self.drawn(BATCH, HIDDEN) for _ in said.states]
        self.inputs = [self.drawn(SEQ_LEN, BATCH, width), self.drawn(BATCH, HIDDEN), *states]
        self.values = self.run(peer.step)
        self.cotangents = [self.drawn(*one.shape).detach() for one in self.values]
        self.gradients = derived(self.values, [*self.inputs, *self.parameters.values()], self.cotangents)
        self.weights = peer.weights(self.cell)

    def drawn(self, *shape):
        import torch

        return torch.randn(*shape, generator=self.draw, dtype=torch.float64).requires_grad_()

    def run(self, step):
        """y, h and the states after the last step."""
        import torch

        x, h, *states = self.inputs
        y, before = [], torch.zeros_like(x[0])
        for row in x:
            h, states = step(self.cell, row, before, h, states)
            before = row
            y.append(h)
        return [torch.stack(y), h, *states]

    def by_parameters(self, dw):
        """The gradients by its parameters, from those by the weights as they are called here."""
        import torch

        varied = {name: one for name, one in self.weights.items() if one.requires_grad}
        given = [torch.from_numpy(dw[f"{name}_l0"].copy()) for name in varied]
        return derived(list(varied.values()), list(self.parameters.values()), given)


def derived(values, inputs, cotangents):
    """Gradients, zeros for what the values do not depend on."""
    import torch

    found = torch.autograd.grad(values, inputs, cotangents, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(one) if d is None else d for one, d in zip(inputs, found, strict=True)]


def arrays(tensors):
    return [one.detach().numpy() for one in tensors]


def with_layer(states):
    """States, or gradients by them, as the engine takes them."""
    return as_given([one[None] for one in states])


def without_layer(states):
    return [one[0] for one in arrays_of(states)]


def assert_same(name, own, wanted):
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
    theirs = Theirs(peer)
    (x, hx, *states), (dy, dhy, *dstates) = arrays(theirs.inputs), arrays(theirs.cotangents)
    width, columns = x.shape[2], theirs.weights["weight_ih"].shape[1]
    net = rnnkit.Network(peer.kind, columns, HIDDEN, dtype="float64", seed=0)
    assert set(net.views) == {f"{name}_l0" for name in theirs.weights}
    for name, one in theirs.weights.items():
        net.views[f"{name}_l0"][...] = one.detach().numpy()
    given = beside_the_one_before(x) if columns > width else x
    side_inputs = {one.name: x for one in peer.kind.declaration.inputs} or None
    found = net.forward(given, hx[None], with_layer(states), inputs=side_inputs)
    back = net.backward(found.workspace, dy, dhy[None], with_layer(dstates))
    dx = back.dx[:, :, :width] + sum(getattr(back, "inputs", {}).values())
    dx[:-1] += back.dx[1:, :, width:] if columns > width else 0
    by_parameters = theirs.by_parameters(rnnkit.weight_views(net.desc, back.dw))
    names = ["hx", *peer.kind.declaration.states]
    own = [found.y, found.hy[0], *without_layer(found.cy)]
    for name, ours, wanted in zip(["y", *names], own, arrays(theirs.values), strict=True):
        assert_same(name, ours, wanted)
    own = [dx, back.dhx[0], *without_layer(back.dcx), *arrays(by_parameters)]
    for name, ours, wanted in zip(["x", *names, *theirs.parameters], own, arrays(theirs.gradients), strict=True):
        assert_same(f"d{name}", ours, wanted)
