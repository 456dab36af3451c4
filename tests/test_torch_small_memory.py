"""Small calls prepare memory once for a size: who has it when, and how much there is."""

import copy
import gc
import os
import pickle
import threading
import tracemalloc
import weakref

import numpy as np
import pytest
from messages import says

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")
from small_calls import F, H, N, T, assert_same, calls_made, drawn, module, trained, ways_to_keep  # noqa: E402, F401 - fixtures  # noqa: E402

import rnnkit  # noqa: E402
from rnnkit.call.pool import IDLE, Shelf  # noqa: E402
from rnnkit.cpu import prepared, route  # noqa: E402
from rnnkit.torch import calls, plain  # noqa: E402


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
    same = sum(call.ws_memory.nbytes == made[-1].ws_memory.nbytes for call in made)
    assert same == (1 if kept == "copied" else len(steps))


def test_a_forward_without_backward_gives_its_arrays_back(made):
    own, x = module(), drawn(T, N, F)
    for _ in range(5):
        own(x)
    assert len(made) == 1


def test_idle_calls_keep_so_much_memory_and_no_more(made, monkeypatch):
    monkeypatch.setattr(route, "_COPIED_BYTES", 0)
    own, x = module(), drawn(T, N, F)
    own(x)
    monkeypatch.setattr(IDLE, "limit", 3 * made[0].nbytes)
    held = [own(x) for _ in range(6)]
    del held
    (size,) = (one for one in own._rnnkit_cache.flat.sizes.values() if one.layout.shape[0] == T)
    assert len(size.calls.shelf.idle) == 3


def test_sizes_that_a_module_keeps_are_few(made, monkeypatch):
    monkeypatch.setattr(plain, "_MAX_SIZES", 16)
    own = module()
    for length in range(1, 40):
        own(drawn(length, N, F))
        assert len(own._rnnkit_cache.flat.sizes) <= 16
    assert len(made) < 20


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_batches_of_other_lengths_have_the_results_of_first_ones(made, kept, kind):
    own, lengths = module(kind, bidirectional=True), (9, 4, 1, 12, 11, 13, 40, 7)
    expected = [trained(copy.deepcopy(own), drawn(length, N, F)) for length in lengths if IDLE.clear() is None]
    IDLE.clear()
    made.clear()
    graphs = [own(drawn(length, N, F)) for length in lengths]  # all before the first backward
    for (output, states), length, one in zip(graphs, lengths, expected, strict=True):
        assert_same(trained(own, drawn(length, N, F)), one)
        states = states if isinstance(states, tuple) else (states,)
        loss = output.square().sum() + sum(map(torch.sum, states))
        assert_same(torch.autograd.grad(loss, list(own.parameters())), one[1 + len(states) :])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_inference_of_other_lengths_in_between(bidirectional):
    """Modules and NumPy share what is prepared for one network."""
    own = module("LSTM", bidirectional=bidirectional)
    net, lengths = rnnkit.LSTM(F, H, bidirectional=bidirectional, seed=0), (40, 9, 40, 9, 12, 40, 1, 9)
    for block in rnnkit.weight_layout(net.desc):
        net.views[block.name][...] = getattr(own, block.name).detach().numpy()
    inputs = {length: drawn(length, N, F) for length in lengths}
    expected = {length: own(x)[0].detach().clone() for length, x in inputs.items()}
    with torch.no_grad():
        for length, other in zip(lengths, lengths[1:] + lengths[:1], strict=True):
            assert_same([own(inputs[length])[0]], [expected[length]])
            assert_same([torch.from_numpy(net.infer(inputs[other].numpy()).y)], [expected[other]])


def test_the_first_call_of_a_module_is_plain(made, monkeypatch):
    monkeypatch.setattr(calls, "run_sequences", None)
    own = module()
    own(drawn(T, N, F))
    copy.deepcopy(own)(drawn(T, N, F))
    assert len(made) == 1  # for both


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


def test_hooks_that_move_saved_tensors(made, kept):
    own, x = module(), drawn(T, N, F)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda one: one):
        output, _ = own(x)
    if kept == "copied":
        found = torch.autograd.grad(output.sum(), list(own.parameters()))
        return assert_same(found, torch.autograd.grad(own(x)[0].sum(), list(own.parameters())))
    with pytest.raises(rnnkit.errors.BackendError, match=says("backward: what forward saved", "save_on_cpu")):
        output.sum().backward()
    assert made


def test_another_thread_takes_a_call_between_forward_and_backward(made, monkeypatch):
    """It may run as soon as the call is given back."""
    own, x, give_back = module(), drawn(T, N, F), Shelf.give_back
    expected = torch.autograd.grad(own(x)[0].square().sum(), list(own.parameters()))

    def taken(self, call):
        give_back(self, call)
        call.forward(T, own._rnnkit_cache.flat.weights, np.ones((T, N, F), "f4"), 0, 0)

    monkeypatch.setattr(Shelf, "give_back", taken)
    assert_same(torch.autograd.grad(own(x)[0].square().sum(), list(own.parameters())), expected)


def test_a_graph_does_not_keep_the_call_that_it_has_a_copy_of(made, monkeypatch):
    monkeypatch.setattr(IDLE, "limit", 0)
    output, _ = module()(drawn(T, N, F))
    found = weakref.ref(made.pop())
    assert found() is None
    output.sum().backward()


def test_a_backward_during_another(made, monkeypatch, kept):
    """Each works in arrays of its own."""
    own, x, at_work, run = module(), drawn(T, N, F), [], prepared.PreparedBackward.run
    loss, weights = own(x)[0].square().sum(), list(own.parameters())
    expected, inner = torch.autograd.grad(loss, weights, retain_graph=True), []

    def interrupted(self, *given):
        at_work.append(self)
        if len(at_work) == 1:
            inner.extend(torch.autograd.grad(loss, weights, retain_graph=True))
        run(self, *given)

    monkeypatch.setattr(prepared.PreparedBackward, "run", interrupted)
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
    wanted, old = [], prepared.PreparedCall.backward
    monkeypatch.setattr(prepared.PreparedCall, "backward", lambda *given: wanted.append(given[-4:-2]) or old(*given))
    for of_x, of_h in ((False, False), (True, False), (False, True)):
        trained(module(), drawn(T, N, F, gradient=of_x), drawn(1, N, H, gradient=of_h))
    assert wanted == [(False, False), (True, False), (False, True)]
