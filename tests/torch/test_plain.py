"""A module that has had a plain call knows where its parameters were: it notices all that is unusual in the next."""

import pytest
import torch
from messages import says
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch_tensors import assert_equal

import rnnkit.torch

T, N, H = 5, 2, 4


def module(kind="GRU", **options):
    torch.manual_seed(0)
    return getattr(rnnkit.torch, kind)(H, H, **options)


def x(*shape):
    torch.manual_seed(1)
    return torch.randn(*shape or (T, N, H))


def with_data(own, name, change):
    """Call a module whose parameter has other data."""
    parameter = own.get_parameter(name)
    parameter.data = change(parameter.data)
    return own(x())


def with_integers(own):
    return with_data(own.requires_grad_(False), "weight_hh_l0", lambda one: one.view(torch.int32))


def without_parameter(own):
    weight = own.weight_hh_l0
    del own.weight_hh_l0
    own.weight_hh_l0 = 2 * weight.detach()
    return own(x())


def under_autocast(own):
    with torch.autocast("cpu", torch.bfloat16):
        return own(x())


def with_a_forward_derivative(own):
    with forward_ad.dual_level():
        return own(forward_ad.make_dual(x(), x()))


SITUATIONS = {
    "shape of a weight": lambda own: with_data(own, "weight_ih_l0", lambda one: one.view(H, 3 * H)),
    "transposed weight": lambda own: with_data(own, "weight_hh_l0", lambda one: one.view(H, 3 * H).t()),
    "dtype of a weight": with_integers,
    "no parameter": without_parameter,
    "width": lambda own: own(x(T, N, H + 1)),
    "dtype": lambda own: own(x().double()),
    "negated": lambda own: own(torch._neg_view(x())),
    "sparse": lambda own: own(x().to_sparse()),
    "no steps": lambda own: own(x(T, N, H)[:0]),
    "no rows": lambda own: own(x(T, N, H)[:, :0]),
    "one sequence": lambda own: own(x(T, H)),
    "states of N rows": lambda own: own(x(), x(1, N, H)),  # right if T comes first, else those of another batch
    "states of T rows": lambda own: own(x(), x(1, T, H)),
    "dtype of states": lambda own: own(x(), x(1, N, H).double()),
    "states in a list": lambda own: own(x(), [x(1, N, H)]),
    "autocast": under_autocast,
    "forward derivative": with_a_forward_derivative,
    "traced": lambda own: torch.jit.trace(own, x()),
    "traced by fx": lambda own: make_fx(own)(x()),
    "exported": lambda own: torch.export.export(own, (x(),)),
    "transformed": lambda own: torch.func.grad(lambda one: own(one)[0].sum())(x()),
    "mapped": lambda own: torch.func.vmap(own)(x(3, T, N, H)),
}


def outcome(situation, own):
    """The tensors of a result, or the error."""
    try:
        return [one.clone() for one in SITUATIONS[situation](own)]
    except Exception as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.trace.*:DeprecationWarning")
@pytest.mark.parametrize("options", [{}, {"batch_first": True}], ids=["", "batch_first"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_unusual_call_after_a_plain_one_is_as_the_first(situation, options):
    own, new = module(**options), module(**options)
    own(torch.ones(N, T, H) if options else torch.ones(T, N, H))
    assert own._rnnkit_cache.flat is not None
    found, expected = outcome(situation, own), outcome(situation, new)
    if isinstance(expected, tuple):
        assert found == expected
    else:
        assert_equal(found, expected)


def test_states_of_an_lstm_are_a_tuple_or_a_list():
    own = module("LSTM")
    own(x())
    states = x(1, N, H), x(1, N, H)
    assert own(x(), states)[0].equal(own(x(), list(states))[0])
    for given, got in ((states[0], "Tensor of 1"), (2, "int")):
        with pytest.raises(TypeError, match=says("forward: hx", None, "tuple", "h and c", got)):
            own(x(), given)
