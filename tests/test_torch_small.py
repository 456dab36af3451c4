"""Small training calls with plain tensors go a way of their own: to the bits of the long one."""

import copy
import gc
import os
import pickle
import threading
import tracemalloc
import weakref

import numpy as np
import pytest
from tolerances import assert_same_bits

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import rnnkit  # noqa: E402
import rnnkit.cells  # noqa: E402
import rnnkit.torch  # noqa: E402
from rnnkit.cells import RegularizedLSTM  # noqa: E402
from rnnkit.cpu import small  # noqa: E402
from rnnkit.interop import from_torch  # noqa: E402
from rnnkit.torch import Recurrent, calls, plain  # noqa: E402

T, N, F, H = 5, 3, 4, 6


@pytest.fixture(params=["copied", "held"])
def kept(request, monkeypatch):
    """How a call keeps what backward needs: as a copy of its arrays, or these, which no other call has meanwhile."""
    if request.param == "held":
        monkeypatch.setattr(small, "COPIED_BYTES", 0)
    return request.param


@pytest.fixture
def made(monkeypatch):
    """The calls that are laid out from here on."""
    found = []

    class Noted(small.SmallCall):
        def __init__(self, *size):
            super().__init__(*size)
            found.append(self)

    monkeypatch.setattr(small, "SmallCall", Noted)
    return found


def module(kind="GRU", size=F, **options):
    torch.manual_seed(0)
    return getattr(rnnkit.torch, kind)(size, H, **options)


def drawn(*shape, dtype=None, gradient=False):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype or torch.float32).requires_grad_(gradient)


def trained(own, *inputs, wanted=(), loss=lambda output, states: output.square().sum() + sum(map(torch.sum, states))):
    """Outputs, then the gradients of a loss of all of them by what is wanted and the parameters."""
    output, states = own(*inputs)
    states = states if isinstance(states, tuple) else (states,)
    return (output, *states, *torch.autograd.grad(loss(output, states), (*wanted, *own.parameters())))


def assert_same(found, expected):
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.shape == other.shape
        assert_same_bits(f"tensor {number}", one.detach().numpy(), other.detach().numpy())


def both_ways(monkeypatch, made, compute):
    """What is computed in small calls, and the long way."""
    found = compute()
    assert made
    with monkeypatch.context() as patch:
        patch.setattr(small, "is_small", lambda *size: False)
        count, expected = len(made), compute()
    assert len(made) == count
    return found, expected


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("options", [
    {}, {"bias": False}, {"num_layers": 3}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True},
    {"batch_first": True}, {"dtype": torch.float64},
], ids=lambda options: " ".join(options) or "plain")  # fmt: skip
def test_the_bits_of_the_long_way(monkeypatch, made, kind, options, kept):
    dtype = options.get("dtype")
    x = drawn(*((N, T, F) if options.get("batch_first") else (T, N, F)), dtype=dtype, gradient=True)
    found, expected = both_ways(monkeypatch, made, lambda: trained(module(kind, **options), x, wanted=(x,)))
    assert_same(found, expected)
    assert found[0].is_contiguous()


def test_a_projection_and_initial_states(monkeypatch, made):
    x, h, c = drawn(T, N, F), drawn(2, N, 3, gradient=True), drawn(2, N, H, gradient=True)
    for wanted in ((h, c), (c,)):
        compute = lambda wanted=wanted: trained(module("LSTM", proj_size=3, num_layers=2), x, (h, c), wanted=wanted)  # noqa: E731
        assert_same(*both_ways(monkeypatch, made, compute))


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (40, 1), (60, 20)])
def test_sizes_read_in_place_and_packed(monkeypatch, made, shape):
    x = drawn(*shape, F)
    assert_same(*both_ways(monkeypatch, made, lambda: trained(module("LSTM", num_layers=2), x)))


@pytest.mark.parametrize("used", ["output", "states", "one state"])
def test_what_the_loss_does_not_use(monkeypatch, made, used):
    loss = {
        "output": lambda output, states: output.sum(),
        "states": lambda output, states: states[0].sum() + states[1].sum(),
        "one state": lambda output, states: states[1].square().sum(),
    }[used]
    assert_same(*both_ways(monkeypatch, made, lambda: trained(module("LSTM"), drawn(T, N, F), loss=loss)))


def test_a_strided_input(monkeypatch, made):
    x = drawn(F, N, 2 * T).permute(2, 1, 0)[::2]
    assert not x.is_contiguous()
    assert_same(*both_ways(monkeypatch, made, lambda: trained(module(), x)))


def test_a_negated_gradient(monkeypatch, made):
    """PyTorch negates some tensors only when they are read."""
    def compute():
        own = module("LSTM")
        output, _ = own(drawn(T, N, F))
        return torch.autograd.grad(output, list(own.parameters()), torch._neg_view(drawn(T, N, H)))

    assert_same(*both_ways(monkeypatch, made, compute))


@pytest.mark.parametrize("used", [1, 3])
def test_a_cell_with_several_states_of_which_some_are_used(monkeypatch, made, kept, used):
    def compute():
        torch.manual_seed(0)
        own, x = rnnkit.torch.Recurrent(rnnkit.cells.SLSTM(), F, H), drawn(T, N, F)
        own(x)
        output, states = own(x, tuple(drawn(1, N, H, gradient=True).exp() for _ in range(4)))
        given = [output, *states][:used]
        return *given, *torch.autograd.grad(sum(one.sum() for one in given), list(own.parameters()))

    assert_same(*both_ways(monkeypatch, made, compute))


@pytest.mark.parametrize("negated", [False, True])
def test_strided_and_negated_states_and_their_gradients(monkeypatch, made, negated):
    """Kernels read them by their addresses."""
    def compute():
        own, x, given = module("LSTM"), drawn(T, N, F), drawn(2, H, N, 1)
        h, c = given[0].permute(2, 1, 0), given[1].permute(2, 1, 0).requires_grad_()
        output, (hy, cy) = own(x, (h, c))
        dhy = torch._neg_view(drawn(1, N, H)) if negated else drawn(1, H, N).transpose(1, 2)
        found = torch.autograd.grad((output, hy, cy), (c, *own.parameters()), (drawn(T, H, N).mT, dhy, dhy))
        with torch.no_grad():
            return *found, output, *own(x, (h, c))[1]

    assert_same(*both_ways(monkeypatch, made, compute))


@pytest.mark.parametrize("which", ["x", "state", "gradient"])
def test_a_tensor_of_zeros_without_memory(made, which):
    own, zeros, x = module(), torch._efficientzerotensor((1, N, H)), drawn(1, N, F, gradient=True)
    given = torch._efficientzerotensor((1, N, F)) if which == "x" else x, zeros if which == "state" else None
    found, cotangent = own(*given)[0], zeros if which == "gradient" else torch.ones(1, N, H)
    expected = own(torch.zeros(1, N, F) if which == "x" else x, torch.zeros(1, N, H))[0]
    assert_same([found], [expected])
    weights = list(own.parameters())
    assert_same(*(torch.autograd.grad(one, weights, cotangent.clone()) for one in (found, expected)))
    with torch.no_grad():
        assert_same([own(*given)[0]], [expected])


def test_as_pytorch(made):
    own, x = module("LSTM", num_layers=2, bidirectional=True), drawn(T, N, F, gradient=True)
    plain = nn.LSTM(F, H, num_layers=2, bidirectional=True)
    plain.load_state_dict(own.state_dict())
    for found, expected in zip(trained(own, x, wanted=(x,)), trained(plain, x, wanted=(x,)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert made


def test_a_chain_of_calls_and_then_another(made, kept):
    """All have the same arrays, or each its own until its backward has come; the next chain has the same."""
    own, steps = module(), drawn(7, 2, N, F)

    def chain():
        state, outputs = None, []
        for step in steps:
            output, state = own(step, state)
            outputs.append(output)
        return torch.autograd.grad(torch.cat(outputs).square().sum(), list(own.parameters()))

    whole = torch.autograd.grad(own(steps.flatten(0, 1))[0].square().sum(), list(own.parameters()))
    first = chain()
    count = len(made)
    for one, again, expected in zip(first, chain(), whole, strict=True):
        assert torch.equal(one, again)
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-5)
    assert len(made) == count
    assert sum(call.kept.nbytes == made[-1].kept.nbytes for call in made) == (1 if kept == "copied" else len(steps))


def test_a_forward_without_backward_gives_its_arrays_back(made):
    own, x = module(), drawn(T, N, F)
    for _ in range(5):
        own(x)
    assert len(made) == 1


def test_idle_calls_keep_so_much_memory_and_no_more(made, monkeypatch):
    monkeypatch.setattr(small, "COPIED_BYTES", 0)
    own, x = module(), drawn(T, N, F)
    own(x)
    monkeypatch.setattr(small, "_MOST_IDLE_BYTES", 3 * made[0].nbytes)
    held = [own(x) for _ in range(6)]
    del held
    (size,) = (one for one in own._place.found.sizes.values() if one.layout.shape[0] == T)
    assert len(size.idle) == 3


@pytest.mark.parametrize(("most", "nbytes", "limit"), [("_MOST_SIZES", None, 16), ("_MOST_BYTES", 1, 2)])
def test_sizes_that_a_module_keeps_are_few(made, monkeypatch, most, nbytes, limit):
    monkeypatch.setattr(plain, most, nbytes or limit)
    own = module()
    for length in range(1, 40):
        own(drawn(length, N, F))
        assert len(own._place.found.sizes) <= limit


def test_the_first_call_of_a_module_is_plain(made, monkeypatch):
    monkeypatch.setattr(calls, "run_sequences", None)
    own = module()
    own(drawn(T, N, F))
    copy.deepcopy(own)(drawn(T, N, F))
    assert len(made) == 2


def test_backward_twice(made, kept):
    own, x = module(), drawn(T, N, F)
    loss = own(x)[0].square().sum()
    first = torch.autograd.grad(loss, list(own.parameters()), retain_graph=True)
    own(x)[0].sum().backward()  # in other arrays
    assert_same(torch.autograd.grad(loss, list(own.parameters())), first)


def test_results_are_the_users(made, kept):
    own, x = module(), drawn(T, N, F)
    output, state = own(x)
    expected = torch.autograd.grad(output.sum() + state.sum(), list(own.parameters()), retain_graph=True)
    with torch.no_grad():
        output.zero_(), state.zero_()
    assert_same(torch.autograd.grad(output.sum() + state.sum(), list(own.parameters())), expected)


def test_a_weight_or_an_input_that_is_changed_before_backward(made):
    own, x = module(), drawn(T, N, F)
    for changed in (own.weight_hh_l0, x):
        output, _ = own(x)
        with torch.no_grad():
            changed.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()
    assert made


def test_the_gradient_of_a_gradient_is_refused(made):
    own, x = module(), drawn(T, N, F, gradient=True)
    (dx,) = torch.autograd.grad(own(x)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives need PyTorch's own module"):
        dx.sum().backward()
    assert made


def test_hooks_that_move_saved_tensors(made, kept):
    own, x = module(), drawn(T, N, F)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda one: one):
        output, _ = own(x)
    if kept == "copied":
        found = torch.autograd.grad(output.sum(), list(own.parameters()))
        return assert_same(found, torch.autograd.grad(own(x)[0].sum(), list(own.parameters())))
    with pytest.raises(rnnkit.errors.BackendError, match="save_on_cpu"):
        output.sum().backward()
    assert made


def test_debugging_goes_the_long_way(made):
    own, x = module(), drawn(T, N, F)
    own(x)
    rnnkit.set_debug(True)
    try:
        loss = own(x)[0].sum()
        own.weight_hh_l0.data.mul_(2)
        with pytest.raises(rnnkit.WorkspaceError, match="changed since"):
            loss.backward()
    finally:
        rnnkit.set_debug(False)


def test_no_steps_go_the_long_way(made):
    for shape in ((0, N), (T, 0)):
        module()(drawn(*shape, F))[0].sum().backward()
    assert not made


DRAWING = RegularizedLSTM(recurrent_dropout=0.4, zoneout=0.3)


@pytest.mark.parametrize(("cell", "options"), [
    ("lstm", {"num_layers": 3, "dropout": 0.5}), ("gru", {"num_layers": 2, "dropout": 0.5, "bidirectional": True}),
    (DRAWING, {"num_layers": 2, "dropout": 0.5}), (DRAWING, {"bidirectional": True}),
])  # fmt: skip
def test_what_is_drawn(monkeypatch, made, cell, options, kept):
    def compute():
        torch.manual_seed(0)
        own, x = Recurrent(cell, F, H, **options), drawn(T, N, F, gradient=True)
        own(x)  # which looks at the parameters
        return *trained(own, x, wanted=(x,)), *trained(own, x, wanted=(x,))

    found, expected = both_ways(monkeypatch, made, compute)
    assert_same(found, expected)
    assert not torch.equal(found[0], found[len(found) // 2]), "each call has a seed of its own"


def test_what_is_drawn_without_a_gradient(made):
    own, x = Recurrent(DRAWING, F, H), drawn(T, N, F)
    own(x)
    torch.manual_seed(1)
    expected, _ = own(x)
    with torch.no_grad():
        torch.manual_seed(1)
        found, _ = own(x)
    assert_same([found], [expected])
    assert made


def test_training_and_evaluation_in_turn(made):
    own, x = Recurrent(DRAWING, F, H, num_layers=2, dropout=0.5), drawn(T, N, F)
    with torch.no_grad():
        expected, _ = own.eval()(x)
    for _ in range(2):
        assert not torch.equal(own.train()(x)[0], own(x)[0])
        assert_same([own.eval()(x)[0], own(x)[0]], [expected, expected])
    own.dropout = 0.0
    assert not own.train()(x)[0].equal(own.eval()(x)[0])
    assert made


def test_a_chain_that_draws():
    """The calls of one sequence are gathered, with the noises that each has kept."""
    torch.manual_seed(0)
    own, steps = Recurrent(DRAWING, F, 128), drawn(40, 1, F)
    state, total, seeds = None, 0, range(len(steps))
    own(steps[:1])
    for step, seed in zip(steps, seeds, strict=True):
        torch.manual_seed(seed)
        output, state = own(step[None], state)
        total = total + output.square().sum()
    found = torch.autograd.grad(total, list(own.parameters()))
    (size,) = own._place.found.sizes.values()
    assert size.gathered
    state, loss = None, 0
    for step, seed in zip(steps, seeds, strict=True):
        torch.manual_seed(seed)
        output, state = own(step[None], state, resets=torch.zeros(1, 1))  # the long way
        loss = loss + output.square().sum()
    expected = torch.autograd.grad(loss, list(own.parameters()))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_another_thread_takes_a_call_between_forward_and_backward(made, monkeypatch):
    """It may run as soon as the call is given back."""
    own, x, give_back = module(), drawn(T, N, F), small.SmallCall.give_back
    expected = torch.autograd.grad(own(x)[0].square().sum(), list(own.parameters()))

    def taken(self, idle):
        give_back(self, idle)
        self.forward(own._place.found.weights, np.ones((T, N, F), "f4"), 0, 0)

    monkeypatch.setattr(small.SmallCall, "give_back", taken)
    assert_same(torch.autograd.grad(own(x)[0].square().sum(), list(own.parameters())), expected)


def test_a_graph_does_not_keep_the_call_that_it_has_a_copy_of(made, monkeypatch):
    monkeypatch.setattr(small, "_MOST_IDLE_BYTES", 0)
    output, _ = module()(drawn(T, N, F))
    found = weakref.ref(made.pop())
    assert found() is None
    output.sum().backward()


def test_a_backward_during_another(made, monkeypatch, kept):
    """Each works in arrays of its own."""
    own, x, at_work, run = module(), drawn(T, N, F), [], small.Gradient.run
    loss, weights = own(x)[0].square().sum(), list(own.parameters())
    expected, inner = torch.autograd.grad(loss, weights, retain_graph=True), []

    def interrupted(self, *given):
        at_work.append(self)
        if len(at_work) == 1:
            inner.extend(torch.autograd.grad(loss, weights, retain_graph=True))
        run(self, *given)

    monkeypatch.setattr(small.Gradient, "run", interrupted)
    assert_same(torch.autograd.grad(loss, weights, retain_graph=True), expected)
    assert_same(inner, expected)
    torch.autograd.grad(loss, weights)
    assert at_work[0] is not at_work[1] and at_work[2] in at_work[:2]


def test_eight_threads_at_once(kept):
    """Forward and backward of one module, and backward of one graph."""
    own, x = module("LSTM", num_layers=2), drawn(T, N, F)
    expected = trained(own, x)
    graph = own(x)[0].square().sum()
    of_graph = torch.autograd.grad(graph, list(own.parameters()), retain_graph=True)
    errors, start = [], threading.Barrier(8)

    def work(number):
        try:
            start.wait()
            for _ in range(60):
                if number % 2:
                    assert_same(trained(own, x), expected)
                else:
                    assert_same(torch.autograd.grad(graph, list(own.parameters()), retain_graph=True), of_graph)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_nothing_leaks(made, kept):
    own, x = module(), drawn(T, N, F)
    for _ in range(20):
        trained(own, x)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(200):
        trained(own, x)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    own_bytes = sum(one.nbytes for one in own.parameters())
    assert grown < 200 * own_bytes / 4, f"{grown} bytes in 200 steps"
    assert len(made) == 1


def test_a_copy_of_a_module_lays_out_its_own(made):
    own, x = module(), drawn(T, N, F)
    expected = trained(own, x)
    for other in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        assert_same(trained(other, x), expected)
        with torch.no_grad():
            other.weight_ih_l0.mul_(2)
    assert_same(trained(own, x), expected)


def test_gradients_are_left_out_where_nobody_asks(made, monkeypatch):
    """The product for those of the input is a third of a backward."""
    wanted, old = [], small.SmallCall.backward
    monkeypatch.setattr(small.SmallCall, "backward", lambda *given: wanted.append(given[-4:-2]) or old(*given))
    for of_x, of_h in ((False, False), (True, False), (False, True)):
        trained(module(), drawn(T, N, F, gradient=of_x), drawn(1, N, H, gradient=of_h))
    assert wanted == [(False, False), (True, False), (False, True)]


def test_numpy_has_the_same_bits(made):
    own, x = module("GRU", num_layers=2, bidirectional=True), drawn(T, N, F, gradient=True)
    output, state, dx, *_ = trained(own, x, wanted=(x,))
    net = from_torch(own.state_dict())
    result = net.forward(x.detach().numpy())
    back = net.backward(result.workspace, 2 * result.y, np.ones_like(result.hy))
    assert_same_bits("output", output.detach().numpy(), result.y)
    assert_same_bits("dx", dx.numpy(), back.dx)
