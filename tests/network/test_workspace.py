"""The workspace: what it lets one see, when its memory is used again, and when it is refused."""

import copy
import gc
import pickle
import weakref
from functools import partial

import numpy as np
import pytest
from messages import raises
from problems import CELLS, FLOAT32, Problem
from tolerances import GRADIENTS, OUTPUTS, assert_same_bits, assert_same_results
from traced import traced_bytes

import rnnkit
from rnnkit.call.steps import LISTED_ROWS, steps_of

SHAPE = dict(num_layers=2, bidirectional=True, dropout=0.5, lengths=(4, 0, 2))


def assert_as_in_memory_of_its_own(problem, workspace):
    """Raise unless results, states and gradients are the same in this workspace; return both forwards."""
    result, alone = problem.forward(workspace=workspace), problem.forward()
    assert_same_results(result, alone, OUTPUTS)
    for layer, direction in np.ndindex(problem.num_layers, problem.directions):
        for name in ("h", *problem.desc.states):
            found, expected = (one.workspace.state(name, layer, direction) for one in (result, alone))
            np.testing.assert_array_equal(found, expected, f"{name} of {layer}, {direction}", strict=True)
            assert not found[~problem.valid].any()
    for _ in range(2):
        assert_same_results(problem.backward(result.workspace), problem.backward(alone.workspace), GRADIENTS)
    return result, alone


def test_final_states_survive_the_next_call():
    """They are the caller's, to be carried on; only what views the workspace, y among it, is void."""
    first, second = (Problem(mode="lstm", **SHAPE, seed=seed) for seed in (1, 2))
    result = first.forward()
    kept = result._replace(hy=result.hy.copy(), cy=result.cy.copy())
    second.backward(second.forward(workspace=result.workspace).workspace)
    assert_same_results(result, kept, ("hy", "cy"))


def test_stale_workspace_is_refused():
    problem = Problem(mode="lstm", **SHAPE)
    results = [problem.forward()]
    for _ in range(2):
        results.append(problem.forward(workspace=results[-1].workspace))
        for stale in results[:-1]:
            with raises(rnnkit.WorkspaceError, "backward: workspace | latest forward"):
                problem.backward(stale.workspace)
        problem.backward(results[-1].workspace)


def test_workspace_of_another_descriptor_is_refused():
    """Even where all shapes agree."""
    problem = Problem(mode="lstm", **SHAPE)
    foreign = problem.twin(dropout=0.25).forward().workspace
    dw = np.ones_like(problem.w)
    with raises(rnnkit.WorkspaceError, f"backward: workspace | {problem.desc} | {foreign.desc}"):
        problem.backward(foreign, dw=dw)
    assert (dw == 1).all()


@pytest.mark.parametrize("cell", FLOAT32)
def test_workspace_has_views_of_every_state(cell):
    problem = Problem(**CELLS[cell], **SHAPE).twin(lengths=None)
    result = problem.forward()
    workspace = result.workspace
    for layer, direction in np.ndindex(2, 2):
        views = [("hy", workspace.hidden(layer, direction), problem.output_size)]
        if problem.mode == "lstm":
            views.append(("cy", workspace.cell(layer, direction), problem.hidden_size))
        for name, states, size in views:
            assert states.shape == (4, 3, size) and not states.flags.writeable
            assert_same_bits(name, states[0 if direction else -1], getattr(result, name)[2 * layer + direction])
    top = np.concatenate([workspace.hidden(1, 0), workspace.hidden(1, 1)], axis=2)
    assert_same_bits("y", top, result.y)
    assert not result.y.flags.writeable  # it is a view of what backward reads


def test_cell_is_refused_without_lstm():
    workspace = Problem(mode="gru", dtype="float32").forward().workspace
    with raises(ValueError, "cell: mode | lstm | 'gru'"):
        workspace.cell(0, 0)


PLACES = [
    ((2, 0), ValueError, "layer | 2"),
    ((-1, 0), ValueError, "layer | -1"),
    ((0, 2), ValueError, "direction | 2"),
    ((0, 1.0), TypeError, "direction | float"),
    (("0", 0), TypeError, "layer | str"),
]


@pytest.mark.parametrize("method", ["hidden", "cell", "gates"])
@pytest.mark.parametrize(("place", "error", "text"), PLACES)
def test_layer_or_direction_that_is_not_there_is_refused(method, place, error, text):
    workspace = Problem(mode="lstm", **SHAPE).forward().workspace
    with raises(error, f"{method}: {text}"):
        getattr(workspace, method)(*place)


def test_workspace_nbytes_is_a_count_by_hand():
    """Ten steps of gates, and of states with those before."""
    gates, states = 10 * 2 * 4 * 5, 11 * 2 * (5 + 5)
    assert rnnkit.workspace_nbytes(rnnkit.RNNDescriptor("lstm", 3, 5), T=10, N=2) == 4 * (gates + states)


SIZES_REFUSED = [
    ((-1, 3), ValueError, "T | 0 | -1"),
    ((4, -2), ValueError, "N | 0 | -2"),
    ((4.0, 3), TypeError, "T | int | float"),
    ((4, True), TypeError, "N | int | bool"),
]


@pytest.mark.parametrize(("sizes", "error", "text"), SIZES_REFUSED)
def test_wrong_size_of_a_workspace_is_refused(sizes, error, text):
    with raises(error, f"workspace_nbytes: {text}"):
        rnnkit.workspace_nbytes(Problem(mode="lstm").desc, *sizes)


def peak_bytes(call):
    """The most memory at once of a call that has been made before."""
    call()
    return traced_bytes(call)[1]


LONG = dict(dtype="float32", input_size=8, hidden_size=256, batch_size=4, states=False)


@pytest.mark.parametrize("cell", FLOAT32)
def test_training_loop_allocates_little(cell):
    """From the second step on, forward and backward find their memory in the workspace; only results are new."""
    problem = Problem(**CELLS[cell], **LONG, num_layers=2, seq_len=50)
    workspaces = [problem.forward().workspace]
    dw = np.zeros_like(problem.w)

    def train():
        workspaces.append(problem.forward(workspace=workspaces.pop()).workspace)
        problem.backward(workspaces[0], dw=dw)

    assert peak_bytes(train) < 0.2 * rnnkit.workspace_nbytes(problem.desc, 50, 4)


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("cell", FLOAT32)
def test_inference_memory_grows_with_y_alone(cell, num_layers):
    short, long = (Problem(**CELLS[cell], **LONG, num_layers=num_layers, seq_len=n) for n in (300, 600))
    plan = rnnkit.prepare(short.desc, short.w)
    grown = peak_bytes(lambda: plan.infer(long.x)) - peak_bytes(lambda: plan.infer(short.x))
    y_nbytes = 300 * 4 * short.output_size * 4
    rows_nbytes = 300 * 4 * 16 * 8  # the row numbers of every step
    assert grown < 1.1 * (y_nbytes + rows_nbytes)


def test_plan_keeps_no_sequence():
    """Between two calls it has the gates of some steps, whatever the length of the last batch."""
    problem = Problem(mode="lstm", **LONG, num_layers=2, bidirectional=True, seq_len=600)
    plan = rnnkit.prepare(problem.desc, problem.w)
    plan.infer(problem.x[:1])
    after, peak = traced_bytes(lambda: plan.infer(problem.x))
    outputs = 600 * 4 * 2 * 256 * 4
    assert peak > 2 * outputs  # of both layers
    assert after < 2 * 2**20


def test_input_that_is_not_contiguous_is_copied_once():
    """Also backward with two directions, both of which read it: a batch-major x costs one copy, not two."""
    problem = Problem(mode="gru", input_size=512, hidden_size=4, seq_len=200, batch_size=8, bidirectional=True)
    batch_major = problem.x.swapaxes(0, 1).copy().swapaxes(0, 1)
    peaks = []
    for x in (problem.x, batch_major):
        result = rnnkit.forward(problem.desc, problem.w, x)
        backward = partial(rnnkit.backward, problem.desc, problem.w, result.workspace, result.y)
        backward()
        peaks.append(peak_bytes(backward))
    assert peaks[1] - peaks[0] < 1.1 * problem.x.nbytes


@pytest.mark.parametrize("cell", FLOAT32)
def test_calls_of_many_sizes_are_right_in_one_memory(cell):
    """Whatever came before: what is laid out for one size, and used again, is of the arrays that are there."""
    first = Problem(**CELLS[cell], num_layers=2, seq_len=5, batch_size=3, dtype="float32")
    longer = {"seq_len": 6, "num_layers": 1}  # in another place, but for what a second layer has
    others = [{}, {"batch_size": 2}, {"lengths": (5, 0, 2)}, longer, {"num_layers": 3}, {"bidirectional": True}]
    others += [{"hidden_size": 6}, {"dtype": "float64"}, {"seq_len": 3, "batch_size": 5}]  # the last: as many rows
    rng, workspace = np.random.default_rng(0), None
    for seed, number in enumerate((0, 3, 0, *rng.integers(len(others), size=30))):
        problem = first.twin(**others[number], seed=seed)
        result, alone = problem.forward(workspace=workspace), problem.forward()
        workspace = result.workspace
        assert_same_results(result, alone, OUTPUTS)
        for dy in () if number == 3 else (problem.dy, None):  # what backward left there is of the call before
            found, expected = (
                rnnkit.backward(problem.desc, problem.w, one.workspace, dy, problem.dhy, problem.dcy)
                for one in (result, alone)
            )
            assert_same_results(found, expected, GRADIENTS)


@pytest.mark.parametrize("more", [dict(num_layers=3, dropout=0.5), dict(num_layers=2, bidirectional=True)])
@pytest.mark.parametrize("cell", CELLS)
def test_batches_of_other_lengths_are_right_in_one_memory(cell, more):
    """Their rows are listed in place of the last one's; what lies beyond lengths that are shorter now is zero again."""
    first, workspace = Problem(**CELLS[cell], **more, seq_len=5, batch_size=3, lengths=(5, 0, 2)), None
    batches = [(5, 0, 2), (1, 1, 1), (5, 4, 5), None, (0, 0, 0), (2, 3, 5), (6, 0, 5, 2), (2, 0, 1)]
    for seed, lengths in enumerate(batches):
        size = {} if lengths is None else {"seq_len": max(5, *lengths), "batch_size": len(lengths)}
        problem, before = first.twin(lengths=lengths, seed=seed, **size), workspace and workspace.hidden(1)
        result, alone = assert_as_in_memory_of_its_own(problem, workspace)
        workspace, seen = result.workspace, result.workspace.hidden(1)
        assert not np.shares_memory(seen, alone.workspace.hidden(1))
        assert before is None or before.shape != seen.shape or np.shares_memory(before, seen)


@pytest.mark.parametrize("lengths", [None, (5, 0, 2)])
def test_inputs_and_memory_are_let_go(lengths):
    """The memory keeps no input, and nobody keeps the memory, also where no collector of cycles looks."""
    problem = Problem(mode="lstm", num_layers=2, seq_len=5, batch_size=3, lengths=lengths)
    gc.collect()
    gc.disable()
    try:
        workspace, given = None, []
        for _ in range(3):
            x = problem.x.copy()
            given.append(weakref.ref(x))
            workspace = rnnkit.forward(problem.desc, problem.w, x, lengths=lengths, workspace=workspace).workspace
            rnnkit.backward(problem.desc, problem.w, workspace, problem.dy)
        del x
        workspace = problem.forward(workspace=workspace).workspace
        assert [one() for one in given] == [None] * 3
        memory, arena = weakref.ref(workspace.memory), weakref.ref(workspace.memory.arena)
        del workspace
        assert memory() is None is arena()
    finally:
        gc.enable()


def test_copied_workspace_is_no_larger_than_its_arrays():
    """Many calls of a kernel are laid out, each with views of all arrays, and none of them goes with it."""
    problem = Problem(mode="lstm", hidden_size=2, num_layers=2, seq_len=300, batch_size=1000)
    workspace = problem.forward().workspace
    before = len(pickle.dumps(workspace))
    for _ in range(2):
        problem.backward(workspace)
        workspace = problem.forward(workspace=workspace).workspace
    assert len(pickle.dumps(workspace)) < 1.5 * before
    for copied in (pickle.loads(pickle.dumps(workspace)), copy.deepcopy(workspace)):
        assert_same_results(problem.backward(copied), problem.backward(workspace), GRADIENTS)
        again = problem.twin(seed=1)
        assert_same_results(again.forward(workspace=copied), again.forward(), OUTPUTS)


def test_batch_of_more_rows_than_are_listed_keeps_no_lists():
    """Steps run one by one then, and share their row numbers while they do; the next call has its own."""
    desc = rnnkit.RNNDescriptor("rnn_tanh", 1, 1)
    w, x = rnnkit.init_weights(desc, seed=0), np.zeros((40, LISTED_ROWS + 1, 1), np.float32)
    rnnkit.backward(desc, w, rnnkit.forward(desc, w, x[:2]).workspace, x[:2])
    kept = []

    def train():
        kept.append(rnnkit.forward(desc, w, x).workspace)
        rnnkit.backward(desc, w, kept[0], x)
        kept.append(rnnkit.forward(desc, w, x, workspace=kept.pop()).workspace)

    held, peak = traced_bytes(train)
    known, rows_nbytes = rnnkit.workspace_nbytes(desc, *x.shape[:2]), 8 * x.shape[1]
    assert held < known + 12 * rows_nbytes
    assert peak < known + 2 * x.nbytes + 20 * rows_nbytes


def test_lengths_of_full_sequences_are_none():
    lengths = np.full(3, 5)
    assert steps_of(5, 3, lengths) is steps_of(5, 3)
