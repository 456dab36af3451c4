"""Small calls prepare memory once for a size: who has it when, and how much there is."""

import copy
import gc
import threading
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from messages import says
from small_calls import F, H, N, T, assert_same, calls_made, drawn, module, trained, ways_to_keep  # noqa: E402, F401 - fixtures
from torch_tensors import flat

import rnnkit
import rnnkit.torch
from rnnkit.call.pool import IDLE, Shelf
from rnnkit.cells import SLSTM
from rnnkit.cpu import prepared, route
from rnnkit.interop import from_torch
from rnnkit.torch import Recurrent, calls, plain


def test_chain_of_calls_reuses_its_arrays(made, kept):
    """Its calls share one call's arrays, or each has its own until its backward; the next chain reuses them."""
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


def test_idle_calls_keep_no_more_than_the_limit(made, monkeypatch):
    monkeypatch.setattr(route, "_COPIED_BYTES", 0)
    own, x = module(), drawn(T, N, F)
    own(x)
    monkeypatch.setattr(IDLE, "limit", 3 * made[0].nbytes)
    held = [own(x) for _ in range(6)]
    del held
    (size,) = (one for one in own._rnnkit_cache.flat.sizes.values() if one.layout.shape[0] == T)
    assert len(size.calls.shelf.idle) == 3


def test_number_of_prepared_sizes_is_limited(made, monkeypatch):
    monkeypatch.setattr(plain, "_MAX_SIZES", 16)
    own = module()
    for length in range(1, 40):
        own(drawn(length, N, F))
        assert len(own._rnnkit_cache.flat.sizes) <= 16
    assert len(made) < 20


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_batches_of_other_lengths_are_bit_identical(made, kept, kind):
    own, lengths = module(kind, bidirectional=True), (9, 4, 1, 12, 11, 13, 40, 7)
    expected = [trained(copy.deepcopy(own), drawn(length, N, F)) for length in lengths if IDLE.clear() is None]
    IDLE.clear()
    made.clear()
    graphs = [own(drawn(length, N, F)) for length in lengths]  # all before the first backward
    for (output, states), length, one in zip(graphs, lengths, expected, strict=True):
        assert_same(trained(own, drawn(length, N, F)), one)
        states = flat(states)
        loss = output.square().sum() + sum(map(torch.sum, states))
        assert_same(torch.autograd.grad(loss, list(own.parameters())), one[1 + len(states) :])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_inference_of_other_lengths_is_bit_identical(bidirectional):
    """Modules and NumPy share what is prepared for one network."""
    own = module("LSTM", bidirectional=bidirectional)
    net, lengths = from_torch(own), (40, 9, 40, 9, 12, 40, 1, 9)
    inputs = {length: drawn(length, N, F) for length in lengths}
    expected = {length: own(x)[0].detach().clone() for length, x in inputs.items()}
    with torch.no_grad():
        for length, other in zip(lengths, lengths[1:] + lengths[:1], strict=True):
            assert_same([own(inputs[length])[0]], [expected[length]])
            assert_same([torch.from_numpy(net.infer(inputs[other].numpy()).y)], [expected[other]])


KINDS = pytest.mark.parametrize("kind", ["GRU", "LSTMCell", "SLSTM"])


def module_and_input(kind, rows=N):
    torch.manual_seed(0)
    own = Recurrent(SLSTM, F, H) if kind == "SLSTM" else getattr(rnnkit.torch, kind)(F, H)
    return own, drawn(rows, F) if "Cell" in kind else drawn(2, rows, F)


@KINDS
def test_first_call_takes_the_fast_path(made, monkeypatch, kind):
    """With and without states and gradients, and in copies. A call without a backward releases its arrays."""
    for run in ("run_sequences", "run_step"):
        monkeypatch.setattr(calls, run, None)
    own, x = module_and_input(kind)
    for mode in torch.enable_grad, torch.no_grad:
        with mode():
            results = own(x)
            own(x, results if "Cell" in kind else results[1])
    copy.deepcopy(own)(x)
    assert len(made) == 1  # for all


def test_second_backward_is_bit_identical(made, kept):
    own, x = module(), drawn(T, N, F)
    loss = own(x)[0].square().sum()
    first = torch.autograd.grad(loss, list(own.parameters()), retain_graph=True)
    own(x)[0].sum().backward()  # in other arrays
    assert_same(torch.autograd.grad(loss, list(own.parameters())), first)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@KINDS
@pytest.mark.parametrize("rows", [1, N])
@pytest.mark.parametrize("is_small", [True, False])
def test_results_can_be_changed_in_place(made, kept, is_small, rows, kind):
    """Also the states of one row, whose numbers are neighbours."""
    own, x = module_and_input(kind, rows)
    options = {} if is_small or "Cell" in kind else {"lengths": [2] * rows}
    expected, found = (flat(own(x, **options)) for _ in range(2))
    for number, one in enumerate(found):
        one.mul_(2 + number)
    expected = [(2 + number) * one for number, one in enumerate(expected)]
    assert_same(found, expected)
    assert_same(*(torch.autograd.grad(sum(map(torch.sum, one)), list(own.parameters())) for one in (found, expected)))


def test_hooks_that_copy_saved_tensors_work_or_are_refused(made, kept):
    """A copy of the weights is read as it is, as in PyTorch; no version counter tells, if they change meanwhile."""
    own, x = module(), drawn(T, N, F, gradient=True)
    leaves = [x, *own.parameters()]
    expected = torch.autograd.grad(own(x)[0].sum(), leaves)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda one: one):
        output, _ = own(x)
    with torch.no_grad():
        own.weight_hh_l0.mul_(2)
    if kept == "copied":
        return assert_same(torch.autograd.grad(output.sum(), leaves), expected)
    with pytest.raises(rnnkit.errors.BackendError, match=says("backward: what forward saved", "copy", "save_on_cpu")):
        output.sum().backward()


def test_call_reused_by_another_thread_keeps_its_gradients(made, monkeypatch):
    """It may run as soon as the call is given back."""
    own, x, give_back = module(), drawn(T, N, F), Shelf.give_back
    expected = torch.autograd.grad(own(x)[0].square().sum(), list(own.parameters()))

    def taken(self, call):
        give_back(self, call)
        call.forward(T, own._rnnkit_cache.flat.weights, np.ones((T, N, F), "f4"), 0, 0)

    monkeypatch.setattr(Shelf, "give_back", taken)
    assert_same(torch.autograd.grad(own(x)[0].square().sum(), list(own.parameters())), expected)


def test_graph_with_a_copy_does_not_keep_the_call(made, monkeypatch):
    monkeypatch.setattr(IDLE, "limit", 0)
    output, _ = module()(drawn(T, N, F))
    found = weakref.ref(made.pop())
    assert found() is None
    output.sum().backward()


def test_nested_backward_has_its_own_arrays(made, monkeypatch, kept):
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


def test_concurrent_calls_and_passes_are_bit_identical(kept):
    """Forward and backward of one module, and backward of one graph."""
    own, x = module("LSTM", num_layers=2), drawn(T, N, F)
    expected = trained(own, x)
    graph = own(x)[0].square().sum()
    of_graph = torch.autograd.grad(graph, list(own.parameters()), retain_graph=True)
    start = threading.Barrier(8)

    def work(number):
        start.wait()
        for _ in range(60):
            if number % 2:
                assert_same(trained(own, x), expected)
            else:
                assert_same(torch.autograd.grad(graph, list(own.parameters()), retain_graph=True), of_graph)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))  # raises what a thread has raised


def test_repeated_training_does_not_leak(made, kept):
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


def test_input_gradients_are_computed_only_if_required(made, monkeypatch):
    """The product for those of the input is a third of a backward."""
    found, wanted, old = [], [(False, False), (True, False), (False, True)], prepared.PreparedCall.backward
    monkeypatch.setattr(prepared.PreparedCall, "backward", lambda *given: found.append(given[-4:-2]) or old(*given))
    for of_x, of_h in wanted:
        trained(module(), drawn(T, N, F, gradient=of_x), drawn(1, N, H, gradient=of_h))
    assert found == wanted


@pytest.mark.parametrize(("train", "others"), [(True, {"inference"}), (False, {"calls"})])
def test_size_prepares_only_what_its_calls_need(train, others):
    own = module("GRU")
    with torch.set_grad_enabled(train):
        own(drawn(T, N, F))
    (size,) = own._rnnkit_cache.flat.sizes.values()
    assert {"calls", "inference"} - vars(size).keys() == others
