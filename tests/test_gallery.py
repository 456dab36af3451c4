"""Cells of papers, those shipped and those of the gallery, against torchrecurrent's on its own weights: values, states,
gradients by x, the states and each of its parameters. What is in the gallery is what its page lists."""

import numpy as np
import pytest
from combinations import nightly
from examples.gallery.page import CELLS, PAGE, page_of

import rnnkit

T, N, I, H = 7, 3, 4, 5
BOUND = 1e-9  # relative to the largest number of an array: both compute in float64
BY_DEFAULT = "WMCLSTM", "DSGU", "LEM"
LEARNED = "alpha", "beta"  # that torchrecurrent learns and papers give as numbers


@pytest.mark.parametrize("kind", CELLS.values(), ids=CELLS)
def test_the_gradients_of_its_equations(kind):
    rnnkit.check_cell(kind)


def test_the_page_is_that_of_the_cells():
    assert PAGE.read_text() == page_of(CELLS), "write it anew: python -m examples.gallery.page"


def test_every_cell_of_torchrecurrent_is_there():
    theirs = pytest.importorskip("torchrecurrent")
    from torchrecurrent_cells import GALLERY, MISSING, PEERS

    compared = {peer.theirs.__name__ for name, peer in PEERS.items() if name != "RHN"}
    assert compared | set(MISSING) == {name for name in theirs.__all__ if name.endswith("Cell")}
    assert {name for name, kind in CELLS.items() if kind.__module__.startswith("examples")} == set(GALLERY)
    assert all(type(peer.kind).__name__ == name for name, peer in PEERS.items())


def assert_same(name, own, wanted):
    np.testing.assert_allclose(own, wanted, rtol=0, atol=BOUND * max(np.abs(wanted).max(), 1e-3), err_msg=name)


def run_theirs(peer, torch):
    """Their cell with weights that are drawn anew, the tensors that it has seen, what it computes, and the gradients by
    x, h, the states and each parameter that is learned here too."""
    cell = peer.theirs(I, H, **peer.options).double()
    draw = torch.Generator().manual_seed(3)
    parameters = {}
    for name, one in cell.named_parameters():
        if name in LEARNED:
            one.requires_grad_(False)
        else:
            one.data.uniform_(-0.7, 0.7, generator=draw)
            parameters[name] = one
    drawn = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64)  # noqa: E731
    states = [drawn(N, H).requires_grad_() for _ in peer.kind.declaration.states]
    x, hx = drawn(T, N, I).requires_grad_(), drawn(N, H).requires_grad_()
    h, now, y, before = hx, states, [], torch.zeros(N, I, dtype=torch.float64)
    for row in x:
        h, now = peer.step(cell, row, before, h, now)
        before = row
        y.append(h)
    values = [torch.stack(y), h, *now]
    cotangents = [drawn(*one.shape) for one in values]
    loss = sum((one * d).sum() for one, d in zip(values, cotangents, strict=True))
    inputs = [x, hx, *states]
    gradients = torch.autograd.grad(loss, [*inputs, *parameters.values()], allow_unused=True)
    gradients = [torch.zeros_like(one) if d is None else d for one, d in
                 zip([*inputs, *parameters.values()], gradients, strict=True)]  # fmt: skip
    return cell, parameters, inputs, values, cotangents, gradients


def arrays(tensors):
    return [one.detach().numpy() for one in tensors]


def with_layer(states):
    """States or their gradients as the engine takes them."""
    found = [one[None] for one in states]
    return None if not found else found[0] if len(found) == 1 else tuple(found)


def without_layer(states):
    return [] if states is None else [one[0] for one in (states if isinstance(states, tuple) else (states,))]


def cases():
    """All names by the page's cells, without torchrecurrent at hand."""
    from importlib.util import find_spec

    if find_spec("torchrecurrent") is None:
        return [pytest.param(None, marks=pytest.mark.skip(reason="needs torchrecurrent"))]
    from torchrecurrent_cells import PEERS

    return [pytest.param(one, id=name) if name in BY_DEFAULT else nightly(one, id=name) for name, one in PEERS.items()]


@pytest.mark.parametrize("peer", cases())
def test_it_is_the_cell_of_torchrecurrent(peer):
    import torch
    from examples.gallery.strongly_typed import beside_the_one_before

    cell, parameters, inputs, values, cotangents, gradients = run_theirs(peer, torch)
    (x, hx, *states), (dy, dhy, *dstates) = arrays(inputs), arrays(cotangents)
    mapped = peer.weights(cell)
    sees_before = mapped["weight_ih"].shape[1] == 2 * I
    net = rnnkit.Network(peer.kind, I * (1 + sees_before), H, dtype="float64", seed=0)
    assert set(net.views) == {f"{name}_l0" for name in mapped}
    for name, one in mapped.items():
        net.views[f"{name}_l0"][...] = one.detach().numpy()
    found = net.forward(beside_the_one_before(x) if sees_before else x, hx[None], with_layer(states))
    back = net.backward(found.workspace, dy, dhy[None], with_layer(dstates))
    dx = back.dx[:, :, :I].copy()
    if sees_before:
        dx[:-1] += back.dx[1:, :, I:]
    dw = rnnkit.weight_views(net.desc, back.dw)
    by_theirs = torch.autograd.grad(
        list(mapped.values()), list(parameters.values()),
        [torch.from_numpy(dw[f"{name}_l0"].copy()) for name in mapped], allow_unused=True,
    )  # fmt: skip
    by_theirs = [torch.zeros_like(one) if d is None else d for one, d in
                 zip(parameters.values(), by_theirs, strict=True)]  # fmt: skip
    names = ["x", "hx", *peer.kind.declaration.states]
    own = [found.y, found.hy[0], *without_layer(found.cy)]
    for name, ours, wanted in zip(["y", *names[1:]], own, arrays(values), strict=True):
        assert_same(name, ours, wanted)
    own = [dx, back.dhx[0], *without_layer(back.dcx), *arrays(by_theirs)]
    for name, ours, wanted in zip([*names, *parameters], own, arrays(gradients), strict=True):
        assert_same(f"d{name}", ours, wanted)
