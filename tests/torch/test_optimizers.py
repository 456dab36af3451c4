"""Optimizers step parameters in one buffer as they do PyTorch's."""

import copy
from functools import partial

import pytest
import torch
from torch import nn, optim

import rnnkit
from rnnkit.torch import accelerate
from rnnkit.torch.function import flat_weights

F, H = 3, 5
OPTIMIZERS = {f"adam-{way}": partial(optim.Adam, lr=0.01, **{way: True}) for way in ("foreach", "fused")}
OPTIMIZERS |= {"rprop": partial(optim.Rprop, lr=0.01), "sgd": partial(optim.SGD, lr=0.1, momentum=0.9)}
OPTIMIZERS |= {"adagrad": partial(optim.Adagrad, lr=0.1), "lbfgs": partial(optim.LBFGS, lr=0.1, max_iter=2)}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_as_with_pytorchs_modules(name):
    """And the parameters stay neighbours."""
    torch.manual_seed(0)
    x, plain, losses = torch.randn(6, 4, F), nn.LSTM(F, H, 2, bidirectional=True), []
    own = copy.deepcopy(plain)
    accelerate(own)
    for module in (plain, own):
        stepped = OPTIMIZERS[name](module.parameters())

        def closure(module=module, stepped=stepped):
            stepped.zero_grad()
            loss = module(x)[0].square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            return loss

        losses.append([stepped.step(closure).item() for _ in range(5)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[1][-1] < losses[1][0]
    desc = own._rnnkit_desc(0.0)
    _, is_copy = flat_weights(desc, [own.get_parameter(block.name) for block in rnnkit.weight_layout(desc)])
    assert not is_copy
