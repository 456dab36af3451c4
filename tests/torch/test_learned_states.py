"""Initial states that are parameters of a module: converters, and what cannot be. What is computed: `test_bits`."""

import torch
from messages import raises
from torch import nn

import rnnkit
import rnnkit.torch
from rnnkit.cells import SLSTM
from rnnkit.interop import from_torch, to_torch

F, H = 3, 5


def module():
    own = rnnkit.torch.LSTM(F, H, 2, bidirectional=True, learned_initial_state=True, dtype=torch.float64)
    assert not own.h0_l0.any() and not own.c0_l1_reverse.any() and repr(own).endswith("learned_initial_state=True)")
    return own


def test_converters_have_them():
    own, written = module(), module()
    for parameter in own.parameters():
        nn.init.normal_(parameter)
    net = from_torch(own)
    assert net.desc.learned_initial_state
    to_torch(net, module=written)
    assert all(torch.equal(one, other) for one, other in zip(own.parameters(), written.parameters(), strict=True))
    recurrent = rnnkit.torch.Recurrent(SLSTM, F, H, learned_initial_state=True)
    again = rnnkit.torch.Recurrent.from_network(recurrent.network())
    assert again.learned_initial_state and repr(again).endswith("learned_initial_state=True)")
    for one in (own, again):
        nn.init.ones_(one.h0_l0)
        one.reset_parameters()
        assert not one.h0_l0.any() and one.weight_hh_l0.all()


def test_what_cannot_be_is_refused():
    own = module()
    model = nn.Sequential(rnnkit.torch.GRU(F, H), own)
    with raises(ValueError, "restore: learned_initial_state | False | '1' | LSTM | True"):
        rnnkit.torch.restore(model)
    assert type(model[0]) is rnnkit.torch.GRU
    with raises(TypeError, "LSTM: learned_initial_state | bool | int"):
        rnnkit.torch.LSTM(F, H, learned_initial_state=1)
    with raises(TypeError, "RNNDescriptor: learned_initial_state | bool | int"):
        rnnkit.torch.Recurrent(SLSTM, F, H, learned_initial_state=1)
    with raises(ValueError, "to_torch: module | h0_l0"):
        to_torch(from_torch(own), module=nn.LSTM(F, H, 2, bidirectional=True, dtype=torch.float64))
