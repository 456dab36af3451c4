"""Steps to skip: the state stays as it is. The steps that run, as sequences of their own, say to the bit what comes
out."""

import numba
import numpy as np
import pytest
from messages import raises
from problems import ALL_CASES, Problem, problem_of
from tolerances import GRADIENTS, OUTPUTS, assert_same_bits, assert_same_results

import rnnkit
from rnnkit.cells import AUGRU

of_each_cell = pytest.mark.parametrize(("cell", "dtype"), ALL_CASES)
T, N = 9, 6
LENGTHS = 9, 7, 9, 4, 9, 8


def network(cell, dtype="float64", **options):
    sizes = dict(seq_len=T, batch_size=N, num_layers=2, bidirectional=True, lengths=LENGTHS, hidden_size=5)
    return problem_of(cell, **sizes | {"masked": True, "dtype": dtype} | options)


def running(problem):
    """The steps that run, as indices t and n, and the number of each among those of its sequence."""
    runs = problem.mask & problem.valid
    t, n = np.nonzero(runs)
    return t, n, (np.cumsum(runs, 0) - 1)[t, n]


def compacted(problem):
    """The steps that run, as a batch of sequences, and the gradients of what they return."""
    t, n, place = running(problem)
    counts = np.bincount(n, minlength=problem.batch_size).tolist()
    other = problem.twin(masked=False, lengths=tuple(counts), seq_len=max(counts))
    other.x[...], other.dy[...] = 0, 0
    other.x[place, n] = problem.x[t, n]
    return other


def repeated(problem, y, initial):
    """y of all steps (T, N, D*P) from that of the steps that run; `initial` (D, N, P). And the step that each repeats:
    (T, N, D), -1 for the initial state."""
    size, found = problem.output_size, np.zeros((problem.seq_len, *y.shape[1:]), y.dtype)
    places = np.full((*found.shape[:2], problem.directions), -1)
    for t, n in np.argwhere(problem.valid):
        steps = np.flatnonzero(problem.mask[:, n] & problem.valid[:, n])
        for d in range(problem.directions):
            done = [i for i, step in enumerate(steps) if (step <= t if d == 0 else step >= t)]
            places[t, n, d] = (done[-1] if d == 0 else done[0]) if done else -1
            own = slice(d * size, (d + 1) * size)
            found[t, n, own] = y[places[t, n, d], n, own] if done else initial[d, n]
    return found, places


def with_sums(problem, alone, places):
    """The batch of the steps that run with dy of all that repeat them, and the share of hx of the last layer."""
    size, of_initial = problem.output_size, np.zeros((problem.directions, *problem.hx.shape[1:]), problem.dtype)
    for t, n in np.argwhere(problem.valid):
        for d in range(problem.directions):
            own = slice(d * size, (d + 1) * size)
            target = of_initial[d, n] if places[t, n, d] < 0 else alone.dy[places[t, n, d], n, own]
            target += problem.dy[t, n, own]
    return of_initial


def assert_steps_are_sequences(problem, initial=None):
    """Raise unless all calls have the bits of the steps that run alone; with resets where it says what they are to."""
    alone, options, of_alone, (t, n, place) = compacted(problem), {}, {}, running(problem)
    if initial:
        resets = (np.random.default_rng(1).random((T, N)) < 0.3) & (problem.mask | ~problem.valid)
        own = np.zeros((alone.seq_len, N), bool)
        own[place, n] = resets[t, n]
        options, of_alone = {"resets": resets, "initial": initial}, {"resets": own, "initial": initial}
    expected = alone.forward(**of_alone)
    y, places = repeated(problem, expected.y, problem.hx[-2:])
    of_initial = with_sums(problem, alone, places)
    found = problem.forward(**options)
    gradients, wanted = problem.backward(found.workspace), alone.backward(expected.workspace)
    plan, given = rnnkit.prepare(problem.desc, problem.w), problem.options | options
    inferred = rnnkit.infer(problem.desc, *problem.inputs, **given), plan.infer(*problem.inputs[1:], **given)
    for result in (found, *inferred):
        assert_same_results(result, expected._replace(y=y), OUTPUTS)
    wanted.dhx[-2:] += of_initial
    dx = np.zeros_like(problem.x)
    dx[t, n] = wanted.dx[place, n]
    assert_same_results(gradients, wanted._replace(dx=dx), GRADIENTS)
    kept = problem.forward(checkpoint_steps=2, **options)
    assert_same_results(kept, found, OUTPUTS)
    assert_same_results(problem.backward(kept.workspace), gradients, GRADIENTS)


WAYS = [(LENGTHS, None), (None, None), (LENGTHS, "zeros"), (LENGTHS, "hx")]


@of_each_cell
@pytest.mark.parametrize(("lengths", "initial"), WAYS)
def test_steps_that_run_have_the_bits_of_sequences_of_their_own(cell, dtype, lengths, initial):
    assert_steps_are_sequences(network(cell, dtype, lengths=lengths), initial)


@pytest.mark.parametrize("seq_len", [0, 3])
def test_no_step_that_runs_passes_states_and_gradients_through(seq_len):
    problem = network("lstm", lengths=None, seq_len=seq_len)
    vars(problem)["mask"] = np.zeros((seq_len, N), bool)
    assert_steps_are_sequences(problem)


@of_each_cell
def test_steps_and_streams_equal_the_whole(cell, dtype):
    problem = network(cell, dtype, bidirectional=False, lengths=None)
    plan, mask = rnnkit.prepare(problem.desc, problem.w), problem.mask
    expected = plan.infer(problem.x, mask=mask)
    hx = cx = None
    stream, run, some = plan.stream(N), plan.stream(N), plan.stream(N + 2)
    assert_same_bits("y", run.run(problem.x, mask=mask), expected.y)
    rows = np.arange(N)[::-1] + 1
    for t, row in enumerate(problem.x):
        y, hx, cx = plan.step(row, hx, cx, mask=mask[t])
        assert_same_bits("y", y, expected.y[t])
        assert_same_bits("y", stream.step(row, mask=mask[t].astype(int)), expected.y[t])
        assert_same_bits("y", some.step(row, rows=rows, mask=list(map(float, mask[t]))), expected.y[t])
    assert_same_results(rnnkit.Infer(None, hx, cx), expected, OUTPUTS[1:])
    for one, pick in ((stream, slice(None)), (run, slice(None)), (some, rows)):
        assert_same_bits("hx", one.state["hx"][:, pick], expected.hy)


def test_random_numbers_are_those_of_the_steps_that_run():
    problem = network("lstm", dropout=0.5)
    found, expected = problem.forward(), compacted(problem).forward()
    assert_same_results(found, expected, OUTPUTS[1:])


def test_x_of_skipped_steps_and_all_beyond_a_length_is_ignored():
    clean = network("lstm")
    dirty = clean.twin()
    dirty.x[~(clean.mask & clean.valid)] = np.nan
    dirty.dy[~clean.valid] = np.nan
    found, expected = dirty.forward(), clean.forward()
    assert_same_results(found, expected, OUTPUTS)
    assert_same_results(dirty.backward(found.workspace), clean.backward(expected.workspace), GRADIENTS)
    plan, x = rnnkit.prepare(clean.desc, clean.w), np.full_like(clean.x[:1], np.nan)
    assert_same_bits("y", plan.infer(x, mask=np.zeros((1, N))).y, np.zeros((1, N, 2 * clean.output_size)))


def test_workspace_has_the_states_of_all_steps():
    problem = network("lstm")
    found, alone = problem.forward(), compacted(problem).forward()
    _, places = repeated(problem, alone.y, problem.hx[-2:])
    for layer, d in np.ndindex(2, 2):
        for name, initial in (("h", problem.hx), ("c", problem.cx)):
            states, after = (one.workspace.state(name, layer, d) for one in (found, alone))
            for t, n in np.argwhere(problem.valid):
                place = places[t, n, d]
                expected = initial[2 * layer + d, n] if place < 0 else after[place, n]
                assert_same_bits(f"{name} of {layer}, {d}", states[t, n], expected)
            assert not states[~problem.valid].any() and not states.flags.writeable
    expected = problem.backward(found.workspace)
    found.y[...] = np.nan  # it belongs to the caller
    assert_same_results(problem.backward(found.workspace), expected, GRADIENTS)
    assert repr(found.workspace).endswith(f"seq_len={T}, batch_size={N}>")


def test_mask_of_ones_changes_nothing():
    problem = network("gru", masked=False)
    for mask in (problem.valid, np.ones((T, N), int), np.ones((T, N), np.float32).tolist()):
        found = problem.forward(mask=mask)
        assert_same_results(found, problem.forward(), OUTPUTS)
        assert found.workspace.options.mask is None


@pytest.mark.parametrize("seq_len", [T, 60])
def test_workspace_is_used_again_with_another_mask_or_none(seq_len):
    one, other = (network("lstm", seed=seed, lengths=None, seq_len=seq_len, hidden_size=40) for seed in range(2))
    plain, workspace = one.twin(masked=False), None
    for problem in (one, other, plain, one):
        found = problem.forward(workspace=workspace)
        expected, workspace = problem.forward(), found.workspace
        assert_same_results(found, expected, OUTPUTS)
        assert_same_results(problem.backward(workspace), problem.backward(expected.workspace), GRADIENTS)


def test_arrays_may_be_in_any_memory_order():
    plain = network("lstm")
    found, other = plain.forward(), plain.twin()
    names = "x", "hx", "cx", "dy", "dhy", "dcy", "mask"
    vars(other).update({name: np.asfortranarray(getattr(plain, name)) for name in names})
    again = other.forward()
    assert_same_results(again, found, OUTPUTS)
    assert_same_results(other.infer(), found, OUTPUTS)
    assert_same_results(other.backward(again.workspace), plain.backward(found.workspace), GRADIENTS)


@pytest.mark.cores(2)
@pytest.mark.usefixtures("threads_as_before")
def test_threads_change_no_bit():
    problem, results = network("lstm", lengths=None, seq_len=200, batch_size=17, hidden_size=40, input_size=64), []
    for threads in (1, 2):
        numba.set_num_threads(threads)
        found = problem.forward()
        results.append((found, problem.backward(found.workspace)))
    for one, two, names in zip(*results, (OUTPUTS, GRADIENTS), strict=True):
        assert_same_results(one, two, names)


def test_side_inputs_are_skipped_with_x():
    net, rng = rnnkit.Network(AUGRU, 3, 5, dtype="float64", seed=0), np.random.default_rng(0)
    x, attention, dy = rng.normal(size=(T, N, 3)), rng.random((T, N, 1)), rng.normal(size=(T, N, 5))
    mask = Problem("gru", seq_len=T, batch_size=N, masked=True).mask
    found = net.forward(x, inputs={"attention": attention}, mask=mask)
    gradients = net.backward(found.workspace, dy)
    for n, steps in enumerate(map(np.flatnonzero, mask.T)):
        alone = net.forward(x[steps, n : n + 1], inputs={"attention": attention[steps, n : n + 1]})
        assert_same_bits("hy", found.hy[:, n : n + 1], alone.hy)
        assert_same_bits("y", found.y[steps, n], alone.y[:, 0])
        assert not gradients.inputs["attention"][~mask[:, n], n].any() and gradients.inputs["attention"][steps, n].all()


SKIPPED = np.ones((T, N), int)
SKIPPED[4, 2] = 0
REFUSED = [
    (dict(mask=np.ones((T, N + 1))), ValueError, "mask | shape (seq_len=9, batch_size=6) | (9, 7)"),
    (dict(mask=np.full((T, N), 2)), ValueError, "mask | 0 and 1 | 2"),
    (dict(mask=np.full((T, N), np.nan)), ValueError, "mask | 0 and 1 | nan"),
    (dict(mask=np.full((T, N), "a")), TypeError, "mask | bool, integers or floats | <U1"),
    (dict(mask="all"), TypeError, "mask | array | str"),
    (dict(mask=SKIPPED, resets=1 - SKIPPED), ValueError, "resets[4, 2] | 0 where mask is 0 | 1"),
]


@pytest.mark.parametrize(("options", "error", "text"), REFUSED)
def test_wrong_mask_is_refused(options, error, text):
    problem = network("gru", masked=False, lengths=None, bidirectional=False)
    plan = rnnkit.prepare(problem.desc, problem.w)
    with raises(error, f"forward: {text}"):
        problem.forward(**options)
    with raises(error, f"infer: {text}"):
        plan.infer(problem.x, **options)
    with raises(error, f"run: {text}"):
        plan.stream(N).run(problem.x, **options)


def test_wrong_mask_of_a_step_is_refused():
    problem = network("gru", lengths=None, bidirectional=False)
    plan, x = rnnkit.prepare(problem.desc, problem.w), problem.x[0]
    for call in (plan.step, plan.stream(N).step):
        with raises(ValueError, "step: mask | (batch_size=6,) | (1,)"):
            call(x, mask=[1])
        with raises(ValueError, "step: resets[3] | 0 where mask is 0 | 1"):
            call(x, mask=[1, 1, 1, 0, 1, 1], resets=[0, 0, 0, 1, 0, 0])
