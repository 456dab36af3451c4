"""A module that has had a plain call knows where its parameters were: it notices all that is unusual in the next."""

import os
import pickle
import sys

import pytest
from messages import says

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import rnnkit.torch  # noqa: E402
from rnnkit.torch import restore  # noqa: E402

T, N, H = 5, 2, 4


def module(kind="GRU", **options):
    torch.manual_seed(0)
    return getattr(rnnkit.torch, kind)(H, H, **options)


def plain_call(own, **options):
    own(torch.ones(T, N, H))


def x(*shape):
    torch.manual_seed(1)
    return torch.randn(*shape or (T, N, H))


def another_shape(own):
    own.weight_ih_l0.data = own.weight_ih_l0.data.view(H, 3 * H)
    return own(x())


def transposed(own):
    own.weight_hh_l0.data = own.weight_hh_l0.data.view(H, 3 * H).t()
    return own(x())


def another_dtype(own):
    own.requires_grad_(False)
    own.weight_hh_l0.data = own.weight_hh_l0.data.view(torch.int32)
    return own(x())


def changed_in_place(own):
    own.weight_hh_l0.data.mul_(2)
    return own(x())


def other_memory(own):
    own.weight_hh_l0.data = 2 * own.weight_hh_l0.data
    return own(x())


def no_parameter(own):
    weight = own.weight_hh_l0
    del own.weight_hh_l0
    own.weight_hh_l0 = 2 * weight.detach()
    return own(x())


def of_another_width(own):
    return own(x(T, N, H + 1))


def of_another_dtype(own):
    return own(x().double())


def negated(own):
    return own(torch._neg_view(x()))


def sparse(own):
    return own(x().to_sparse())


def no_steps(own):
    return own(x(T, N, H)[:0])


def no_rows(own):
    return own(x(T, N, H)[:, :0])


def one_sequence(own):
    return own(x(T, H))


def states_of_rows_in_front(own):
    """Right if T comes first, else those of another batch."""
    return own(x(), x(1, N, H))


def states_of_another_batch(own):
    return own(x(), x(1, T, H))


def states_of_another_dtype(own):
    return own(x(), x(1, N, H).double())


def states_in_a_list(own):
    return own(x(), [x(1, N, H)])


def under_autocast(own):
    with torch.autocast("cpu", torch.bfloat16):
        return own(x())


def with_a_forward_derivative(own):
    with forward_ad.dual_level():
        return own(forward_ad.make_dual(x(), x()))


def traced(own):
    return torch.jit.trace(own, x())


def traced_by_fx(own):
    return make_fx(own)(x())


def exported(own):
    return torch.export.export(own, (x(),))


def transformed(own):
    return torch.func.grad(lambda one: own(one)[0].sum())(x())


def mapped(own):
    return torch.func.vmap(own)(x(3, T, N, H))


SITUATIONS = [
    another_shape, transposed, another_dtype, changed_in_place, other_memory, no_parameter, of_another_width,
    of_another_dtype, negated, sparse, no_steps, no_rows, one_sequence, states_of_rows_in_front,
    states_of_another_batch, states_of_another_dtype, states_in_a_list, under_autocast, with_a_forward_derivative,
    traced, traced_by_fx, exported, transformed, mapped,
]  # fmt: skip


def outcome(situation, own):
    """The tensors of a result, or the error."""
    try:
        return [one.clone() for one in situation(own)]
    except Exception as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.trace.*:DeprecationWarning")
@pytest.mark.parametrize("options", [{}, {"batch_first": True}], ids=["", "batch_first"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_plain_call_before_changes_nothing(situation, options):
    own, new = module(**options), module(**options)
    own(torch.ones(N, T, H) if options else torch.ones(T, N, H))
    assert own._rnnkit_cache.flat is not None
    found, expected = outcome(situation, own), outcome(situation, new)
    if isinstance(expected, tuple):
        assert found == expected
    else:
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_parameter_of_another_dtype_in_its_place_is_an_error():
    with pytest.raises(TypeError, match=says("forward: weight_hh_l0", "torch.float32", "torch.int32")):
        another_dtype(module())


def test_dropout_begins_with_training():
    own = module("LSTM", num_layers=2, dropout=0.5).eval()
    plain_call(own)
    given = x()
    assert not own.train()(given)[0].equal(own(given)[0])
    assert own.eval()(given)[0].equal(own(given)[0])


def test_states_of_an_lstm_are_a_tuple():
    own = module("LSTM")
    plain_call(own)
    states = x(1, N, H), x(1, N, H)
    assert own(x(), states)[0].equal(own(x(), list(states))[0])
    for given, got in ((states[0], "Tensor of 1"), (2, "int")):
        with pytest.raises(TypeError, match=says("forward: hx", None, "tuple", "h and c", got)):
            own(x(), given)


def test_a_restored_module_is_a_file_without_rnnkit():
    own = module()
    plain_call(own)
    restore(own)
    assert "rnnkit" not in pickle.dumps(own).decode("latin1")
    assert type(own) is nn.GRU and sys.modules["rnnkit"]
