"""The workspace: what it lets one see, when its memory is used again, and when it is refused."""

import copy
import gc
import pickle
import tracemalloc
import weakref
from functools import partial
from itertools import product

import numpy as np
import pytest
from messages import says
from problems import CASES, CELLS, FLOAT32, Problem
from tolerances import GRADIENTS, OUTPUTS, assert_same_bits, assert_same_results

import rnnkit
from rnnkit.call.steps import LISTED_ROWS, steps_of

SHAPE = dict(num_layers=2, bidirectional=True, dropout=0.5, lengths=(4, 0, 2))


@pytest.mark.parametrize(("cell", "dtype"), CASES)
def test_its_memory_is_used_again(cell, dtype):
    """A second forward with other values writes into the same memory and is right in every bit."""
    first, second = (Problem(**CELLS[cell], **SHAPE, dtype=dtype, seed=seed) for seed in (1, 2))
    workspace = first.forward().workspace
    seen = workspace.hidden(1, 1)
    reused = second.forward(workspace=workspace)
    assert np.shares_memory(seen, reused.workspace.hidden(1, 1))
    alone = second.forward()
    assert not np.shares_memory(seen, alone.workspace.hidden(1, 1))
    assert_same_results(reused, alone, OUTPUTS)
    assert_same_results(second.backward(reused.workspace), second.backward(alone.workspace), GRADIENTS)


# With seq_len 7 the states of a batch of 2 are as many numbers as those of the first.
@pytest.mark.parametrize(
    "changes",
    [
        {"seq_len": 5},
        {"batch_size": 4, "lengths": None},
        {"seq_len": 7, "batch_size": 2, "lengths": None},
        {"hidden_size": 6},
    ],
)
def test_another_size_gets_its_own_memory(changes):
    small = Problem(mode="lstm", **SHAPE)
    other = small.twin(**changes)
    result = other.forward(workspace=small.forward().workspace)
    assert_same_results(result, other.forward(), OUTPUTS)
    assert_same_results(other.backward(result.workspace), other.backward(other.forward().workspace), GRADIENTS)


@pytest.mark.parametrize(("before", "after"), [("float32", "float64"), ("float64", "float32")])
def test_another_dtype_gets_its_own_memory(before, after):
    """All shapes agree."""
    first = Problem(mode="lstm", **SHAPE, dtype=before)
    other = first.twin(dtype=after)
    result = other.forward(workspace=first.forward().workspace)
    alone = other.forward()
    assert_same_results(result, alone, OUTPUTS)
    for layer in range(2):
        assert_same_bits("hidden", result.workspace.hidden(layer), alone.workspace.hidden(layer))
        assert_same_bits("cell", result.workspace.cell(layer), alone.workspace.cell(layer))
    assert_same_results(other.backward(result.workspace), other.backward(alone.workspace), GRADIENTS)


@pytest.mark.parametrize("lengths", [None, (0, 4, 3)])
@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_other_lengths_fit(mode, lengths):
    """Nothing of the longer sequences that were there before comes through, nor is it shown."""
    long = Problem(mode=mode, **SHAPE).twin(lengths=(4, 4, 4))
    other = long.twin(lengths=lengths, seed=9)
    result = other.forward(workspace=long.forward().workspace)
    alone = other.forward()
    assert_same_results(result, alone, OUTPUTS)
    for layer, direction in product(range(2), range(2)):
        assert not result.workspace.hidden(layer, direction)[~other.valid].any()
        if mode == "lstm":
            assert not result.workspace.cell(layer, direction)[~other.valid].any()
    assert_same_results(other.backward(result.workspace), other.backward(alone.workspace), GRADIENTS)


def test_final_states_survive_the_next_call():
    """They are the caller's, to be carried on; only what views the workspace, y among it, is void."""
    first, second = (Problem(mode="lstm", **SHAPE, seed=seed) for seed in (1, 2))
    result = first.forward()
    kept = [array.copy() for array in (result.hy, result.cy)]
    second.backward(second.forward(workspace=result.workspace).workspace)
    for name, before in zip(("hy", "cy"), kept, strict=True):
        assert_same_bits(name, getattr(result, name), before)


def test_a_stale_workspace_is_refused():
    problem = Problem(mode="lstm", **SHAPE)
    first = problem.forward()
    second = problem.forward(workspace=first.workspace)
    with pytest.raises(rnnkit.WorkspaceError, match=says("backward: workspace", "latest forward")):
        problem.backward(first.workspace)
    problem.backward(second.workspace)
    third = problem.forward(workspace=second.workspace)
    for stale in (first, second):
        with pytest.raises(rnnkit.WorkspaceError, match=says("backward: workspace", "latest forward")):
            problem.backward(stale.workspace)
    problem.backward(third.workspace)


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float32"},
        {"cell_clip": (-1.0, 1.0)},
        {"dropout": 0.25},
        {"bias": "input"},
        {"num_layers": 1},
        {"hidden_size": 5},
    ],
)
def test_a_foreign_workspace_is_refused(changes):
    """Another descriptor's, even where all shapes agree."""
    problem = Problem(mode="lstm", **SHAPE)
    foreign = problem.twin(**changes).forward().workspace
    dw = np.ones_like(problem.w)
    with pytest.raises(rnnkit.WorkspaceError, match=says("backward: workspace", problem.desc, foreign.desc)):
        problem.backward(foreign, dw=dw)
    assert (dw == 1).all()


def test_an_equal_descriptor_is_the_same():
    problem = Problem(mode="lstm", **SHAPE)
    twin = problem.twin()
    assert problem.desc is not twin.desc
    workspace = problem.forward().workspace
    assert_same_results(twin.backward(workspace), problem.backward(workspace), GRADIENTS)


@pytest.mark.parametrize("cell", FLOAT32)
def test_views_of_every_state(cell):
    problem = Problem(**CELLS[cell], **SHAPE).twin(lengths=None)
    result = problem.forward()
    workspace, size = result.workspace, problem.output_size
    for layer in range(2):
        for direction in range(2):
            hidden = workspace.hidden(layer, direction)
            assert hidden.shape == (4, 3, size)
            assert not hidden.flags.writeable
            last = 0 if direction else -1
            assert_same_bits("hy", hidden[last], result.hy[2 * layer + direction])
            if problem.mode == "lstm":
                states = workspace.cell(layer, direction)
                assert states.shape == (4, 3, problem.hidden_size)
                assert not states.flags.writeable
                assert_same_bits("cy", states[last], result.cy[2 * layer + direction])
    top = np.concatenate([workspace.hidden(1, 0), workspace.hidden(1, 1)], axis=2)
    assert_same_bits("y", top, result.y)
    assert not result.y.flags.writeable  # it is a view of what backward reads


def test_there_is_no_cell_without_lstm():
    workspace = Problem(mode="gru", dtype="float32").forward().workspace
    with pytest.raises(ValueError, match=says("cell: mode", "lstm", "'gru'")):
        workspace.cell(0, 0)


@pytest.mark.parametrize("method", ["hidden", "cell"])
@pytest.mark.parametrize(("layer", "direction", "argument"), [(2, 0, "layer"), (-1, 0, "layer"), (0, 2, "direction")])
def test_there_is_no_such_layer(method, layer, direction, argument):
    workspace = Problem(mode="lstm", **SHAPE).forward().workspace
    got = (layer, direction)[argument != "layer"]
    with pytest.raises(ValueError, match=says(f"{method}: {argument}", got)):
        getattr(workspace, method)(layer, direction)


@pytest.mark.parametrize(("cell", "dtype"), CASES)
def test_its_size_is_known_before(cell, dtype):
    """It holds at least the activated gates, hidden and cell states, and grows in proportion to T."""
    problem = Problem(**CELLS[cell], num_layers=2, bidirectional=True, dtype=dtype)
    sizes = [rnnkit.workspace_nbytes(problem.desc, seq_len, 3) for seq_len in (0, 100, 200)]
    gates = {"lstm": 5, "gru": 3}.get(problem.mode, 1)  # with the cell as a fifth
    states = 4 * 100 * 3 * (gates * problem.hidden_size + problem.output_size)
    itemsize = np.dtype(dtype).itemsize
    assert states * itemsize <= sizes[1] - sizes[0] <= 4 * states * itemsize
    assert abs((sizes[2] - sizes[1]) - (sizes[1] - sizes[0])) <= 4096  # up to alignment


@pytest.mark.parametrize(
    ("sizes", "error", "argument", "facts"),
    [
        ((-1, 3), ValueError, "T", [0, -1]),
        ((4, -2), ValueError, "N", [0, -2]),
        ((4.0, 3), TypeError, "T", ["int", "float"]),
        ((4, True), TypeError, "N", ["int", "bool"]),
    ],
)
def test_a_wrong_size(sizes, error, argument, facts):
    with pytest.raises(error, match=says(f"workspace_nbytes: {argument}", *facts)):
        rnnkit.workspace_nbytes(Problem(mode="lstm").desc, *sizes)


def test_inference_leaves_no_workspace():
    problem = Problem(mode="lstm", dtype="float32")
    result = problem.infer()
    assert result._fields == OUTPUTS
    with pytest.raises(TypeError, match=says("backward: workspace", "Workspace", "rnnkit.network.engine.Infer")):
        rnnkit.backward(problem.desc, problem.w, result)


def peak_bytes(call):
    """The most memory that NumPy and Python held at once during a call, beyond what they held before it."""
    call()
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


LONG = dict(dtype="float32", input_size=8, hidden_size=256, batch_size=4, states=False)


@pytest.mark.parametrize("cell", FLOAT32)
def test_a_training_loop_allocates_nothing_big(cell):
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


def test_a_plan_keeps_no_sequence():
    """Between two calls it has the gates of some steps, whatever the length of the last batch."""
    problem = Problem(mode="lstm", **LONG, num_layers=2, bidirectional=True, seq_len=600)
    plan = rnnkit.prepare(problem.desc, problem.w)
    plan.infer(problem.x[:1])
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        plan.infer(problem.x)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    outputs = 600 * 4 * 2 * 256 * 4
    assert peak - before > 2 * outputs  # of both layers
    assert after - before < 2 * 2**20


def test_an_input_that_is_not_contiguous_is_copied_once():
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


def test_an_input_in_the_memory_that_is_used_again_is_refused():
    """Forward would be right, but backward would read an x that forward has overwritten."""
    problem = Problem(mode="lstm", input_size=4, hidden_size=4, dtype="float32")
    first = problem.forward()
    with pytest.raises(ValueError, match=says("forward: x", "workspace", "copy")):
        rnnkit.forward(problem.desc, problem.w, first.workspace.hidden(0), workspace=first.workspace)
    problem.backward(first.workspace)
    again = rnnkit.forward(problem.desc, problem.w, first.y.copy(), workspace=first.workspace)
    assert again.y.shape == first.y.shape


@pytest.mark.parametrize("cell", FLOAT32)
def test_calls_of_many_sizes_in_one_memory(cell):
    """Whatever came before: what is laid out for one size, and used again, is of the arrays that are there."""
    first = Problem(**CELLS[cell], num_layers=2, seq_len=5, batch_size=3, dtype="float32")
    longer = {"seq_len": 6, "num_layers": 1}  # in another place, but for what a second layer has
    others = [{}, {"batch_size": 2}, {"lengths": (5, 0, 2)}, longer, {"num_layers": 3}, {"bidirectional": True}]
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
def test_batches_of_other_lengths_in_one_memory(cell, more):
    """Their rows are listed in place of the last one's; what lies beyond lengths that are shorter now is zero again."""
    first, workspace = Problem(**CELLS[cell], **more, seq_len=5, batch_size=3, lengths=(5, 0, 2)), None
    batches = [(5, 0, 2), (1, 1, 1), (5, 4, 5), None, (0, 0, 0), (2, 3, 5), (6, 0, 5, 2), (2, 0, 1)]
    for seed, lengths in enumerate(batches):
        size = {} if lengths is None else {"seq_len": max(5, *lengths), "batch_size": len(lengths)}
        problem = first.twin(lengths=lengths, seed=seed, **size)
        result, alone = problem.forward(workspace=workspace), problem.forward()
        workspace = result.workspace
        assert_same_results(result, alone, OUTPUTS)
        for layer, direction in np.ndindex(problem.desc.num_layers, problem.desc.num_directions):
            for name in ("h", *problem.desc.states):
                found, expected = (one.workspace.state(name, layer, direction) for one in (result, alone))
                np.testing.assert_array_equal(found, expected)
        for _ in range(2):
            assert_same_results(problem.backward(workspace), problem.backward(alone.workspace), GRADIENTS)


@pytest.mark.parametrize("lengths", [None, (5, 0, 2)])
def test_what_a_call_was_given_goes_with_it(lengths):
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


def test_a_copy_is_no_larger_than_its_arrays():
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


def test_a_batch_of_more_rows_than_are_listed_keeps_no_lists():
    """Steps run one by one then, and share their row numbers while they do; the next call has its own."""
    desc = rnnkit.RNNDescriptor("rnn_tanh", 1, 1)
    w, x = rnnkit.init_weights(desc, seed=0), np.zeros((40, LISTED_ROWS + 1, 1), np.float32)
    rows_nbytes = 8 * x.shape[1]
    rnnkit.backward(desc, w, rnnkit.forward(desc, w, x[:2]).workspace, x[:2])
    tracemalloc.start()
    try:
        workspace = rnnkit.forward(desc, w, x).workspace
        rnnkit.backward(desc, w, workspace, x)
        workspace = rnnkit.forward(desc, w, x, workspace=workspace).workspace
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    known = rnnkit.workspace_nbytes(desc, *x.shape[:2])
    assert held < known + 12 * rows_nbytes
    assert peak < known + 2 * x.nbytes + 20 * rows_nbytes


def test_lengths_that_are_all_as_long_are_none():
    lengths = np.full(3, 5)
    assert steps_of(5, 3, lengths) is steps_of(5, 3)
