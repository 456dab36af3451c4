"""Steps to skip: the state stays as it is. The naive twin says what that means; the steps that run, as sequences of
their own, say to the bit what comes out."""

import numba
import numpy as np
import pytest
from combinations import nightly
from gradcheck import assert_gradients
from messages import raises
from problems import ALL_CASES, KINK_MARGIN, Problem, gradient_problem, problem_of, smooth
from several_states import each_of
from tolerances import GRADIENTS, OUTPUTS, assert_outputs_close, assert_same_bits, assert_same_results

import rnnkit
from rnnkit.cells import AUGRU

of_each_cell = pytest.mark.parametrize(("cell", "dtype"), ALL_CASES)
T, N = 9, 6
LENGTHS = 9, 7, 9, 4, 9, 8


def network(cell, dtype="float64", **options):
    sizes = dict(seq_len=T, batch_size=N, num_layers=2, bidirectional=True, lengths=LENGTHS, hidden_size=5)
    return problem_of(cell, **sizes | {"masked": True, "dtype": dtype} | options)


def steps_of(problem, n):
    return np.flatnonzero(problem.mask[:, n] & problem.valid[:, n])


def compacted(problem):
    """The steps that run, as a batch of sequences, and the gradients of what they return."""
    counts = [len(steps_of(problem, n)) for n in range(problem.batch_size)]
    other = problem.twin(masked=False, lengths=tuple(counts), seq_len=max(counts))
    x, dy = np.zeros((max(counts), *problem.x.shape[1:]), problem.dtype), np.zeros_like(problem.dy[: max(counts)])
    for n in range(problem.batch_size):
        steps = steps_of(problem, n)
        x[: len(steps), n] = problem.x[steps, n]
    vars(other).update(x=x, dy=dy)
    return other


def repeated(problem, y, initial):
    """y of all steps (T, N, D*P) from that of the steps that run; `initial` (D, N, P). And the step that each repeats:
    (T, N, D), -1 for the initial state."""
    size, found = problem.output_size, np.zeros((problem.seq_len, *y.shape[1:]), y.dtype)
    places = np.full((*found.shape[:2], problem.directions), -1)
    for n in range(problem.batch_size):
        for t in range(int(problem.valid[:, n].sum())):
            for d in range(problem.directions):
                done = [i for i, step in enumerate(steps_of(problem, n)) if (step <= t if d == 0 else step >= t)]
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


@of_each_cell
def test_values_equal_the_reference(cell, dtype):
    problem = network(cell, dtype)
    assert_outputs_close(problem.forward(), problem.reference(), dtype)


@pytest.mark.parametrize("cell", ["lstm-projected-clipped", "gru", "slstm-heads"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_gradients_equal_central_differences(cell, bidirectional):
    problem = network(cell, bidirectional=bidirectional)
    assert_gradients(*gradient_problem(smooth(problem) if problem.kink < KINK_MARGIN else problem), seed=1)


@of_each_cell
@pytest.mark.parametrize("lengths", [LENGTHS, None])
def test_steps_that_run_have_the_bits_of_sequences_of_their_own(cell, dtype, lengths):
    problem = network(cell, dtype, lengths=lengths)
    alone = compacted(problem)
    expected = alone.forward()
    y, places = repeated(problem, expected.y, problem.hx[-2:])
    of_initial = with_sums(problem, alone, places)
    found = problem.forward()
    gradients, wanted = problem.backward(found.workspace), alone.backward(expected.workspace)
    plan = rnnkit.prepare(problem.desc, problem.w)
    for result in (found, problem.infer(), plan.infer(*problem.inputs[1:], **problem.options)):
        assert_same_results(result, expected._replace(y=y), OUTPUTS)
    wanted.dhx[-2:] += of_initial
    dx = np.zeros_like(problem.x)
    for n in range(N):
        steps = steps_of(problem, n)
        dx[steps, n] = wanted.dx[: len(steps), n]
    assert_same_results(gradients, wanted._replace(dx=dx), GRADIENTS)
    kept = problem.forward(checkpoint_steps=2)
    assert_same_results(kept, found, OUTPUTS)
    assert_same_results(problem.backward(kept.workspace), gradients, GRADIENTS)


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


@pytest.mark.parametrize("initial", ["zeros", "hx"])
@pytest.mark.parametrize("cell", ["lstm", "gru", nightly("slstm-heads")])
def test_resets_are_before_steps_that_run(cell, initial):
    problem = network(cell)
    resets = (np.random.default_rng(1).random((T, N)) < 0.3) & (problem.mask | ~problem.valid)
    alone = compacted(problem)
    own = np.zeros((alone.seq_len, N), bool)
    for n in range(N):
        steps = steps_of(problem, n)
        own[: len(steps), n] = resets[steps, n]
    expected = alone.forward(resets=own, initial=initial)
    y, places = repeated(problem, expected.y, problem.hx[-2:])
    of_initial = with_sums(problem, alone, places)
    found, wanted = problem.forward(resets=resets, initial=initial), alone.backward(expected.workspace)
    assert_same_results(found, expected._replace(y=y), OUTPUTS)
    wanted.dhx[-2:] += of_initial
    assert_same_results(problem.backward(found.workspace), wanted, GRADIENTS[1:])


def test_random_numbers_are_those_of_the_steps_that_run():
    problem = network("lstm", dropout=0.5)
    found, expected = problem.forward(), compacted(problem).forward()
    assert_same_results(found, expected, OUTPUTS[1:])


@pytest.mark.parametrize("garbage", [np.nan, np.inf])
def test_x_of_skipped_steps_and_all_beyond_a_length_is_ignored(garbage):
    clean = network("lstm")
    dirty = clean.twin()
    dirty.x[~(clean.mask & clean.valid)] = garbage
    dirty.dy[~clean.valid] = garbage
    found, expected = dirty.forward(), clean.forward()
    assert_same_results(found, expected, OUTPUTS)
    assert_same_results(dirty.backward(found.workspace), clean.backward(expected.workspace), GRADIENTS)
    plan, x = rnnkit.prepare(clean.desc, clean.w), np.full_like(clean.x[:1], garbage)
    assert_same_bits("y", plan.infer(x, mask=np.zeros((1, N))).y, np.zeros((1, N, 2 * clean.output_size)))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_workspace_has_the_states_of_all_steps(cell):
    problem = network(cell)
    found, alone = problem.forward(), compacted(problem).forward()
    for layer in range(2):
        initial = problem.hx[2 * layer : 2 * layer + 2]
        both = np.concatenate([alone.workspace.hidden(layer, d) for d in range(2)], 2)
        expected, places = repeated(problem, both, initial)
        for d in range(2):
            assert_same_bits("h", found.workspace.hidden(layer, d), expected[:, :, 5 * d : 5 * d + 5])
            for state in range(len(problem.desc.states)):
                after, before = alone.workspace.cell(layer, d), problem.cx[2 * layer + d]
                for t, n in np.argwhere(problem.valid):
                    place = places[t, n, d]
                    wanted = before[n] if place < 0 else after[place, n]
                    assert_same_bits(str(state), found.workspace.cell(layer, d)[t, n], wanted)
    assert not found.workspace.hidden(0).flags.writeable
    expected = problem.backward(found.workspace)
    found.y[...] = np.nan  # it belongs to the caller
    assert_same_results(problem.backward(found.workspace), expected, GRADIENTS)
    assert repr(found.workspace).endswith(f"seq_len={T}, batch_size={N}>")


@pytest.mark.parametrize("seq_len", [0, 3])
def test_no_step_that_runs_passes_states_and_gradients_through(seq_len):
    problem = network("lstm", lengths=None, seq_len=seq_len)
    none = np.zeros((seq_len, N))
    for checkpoint_steps in (None, 1):
        found = problem.forward(mask=none, checkpoint_steps=checkpoint_steps)
        gradients = problem.backward(found.workspace)
        for result in (found, rnnkit.infer(problem.desc, *problem.inputs, mask=none)):
            assert_same_results(result, rnnkit.Infer(None, problem.hx, problem.cx), OUTPUTS[1:])
            both = np.concatenate(list(problem.hx[-2:]), 1)
            assert_same_bits("y", np.array(result.y), np.repeat(both[None], seq_len, 0))
        dhx = problem.dhy.copy()
        for d in range(2):
            dhx[2 + d] += np.add.reduce(problem.dy[:, :, 5 * d : 5 * d + 5], 0) if seq_len else 0
        np.testing.assert_allclose(gradients.dhx, dhx, rtol=1e-13)
        assert_same_bits("dcx", gradients.dcx, problem.dcy)
        assert not gradients.dx.any() and not gradients.dw.any() and gradients.dx.shape == problem.x.shape


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


@pytest.mark.parametrize("batch_major", [False, True])
def test_arrays_may_be_in_any_memory_order(batch_major):
    plain = network("lstm")
    found, order = plain.forward(), (1, 0, 2) if batch_major else (2, 1, 0)

    def moved(array):
        return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))

    other = plain.twin()
    vars(other).update({name: each_of(moved, getattr(plain, name)) for name in ("x", "hx", "cx", "dy", "dhy", "dcy")})
    vars(other)["mask"] = np.asfortranarray(plain.mask)
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
    for n in range(N):
        steps = np.flatnonzero(mask[:, n])
        alone = net.forward(x[steps, n : n + 1], inputs={"attention": attention[steps, n : n + 1]})
        assert_same_bits("hy", found.hy[:, n : n + 1], alone.hy)
        assert_same_bits("y", found.y[steps, n], alone.y[:, 0])
        assert not gradients.inputs["attention"][~mask[:, n], n].any() and gradients.inputs["attention"][steps, n].all()


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_quantized_weights_skip_steps(precision):
    problem = network("lstm", "float32", lengths=None)
    plan, alone = rnnkit.prepare(problem.desc, problem.w, precision=precision), compacted(problem)
    expected = plan.infer(*alone.inputs[1:], lengths=alone.lengths_array)
    y, _ = repeated(problem, expected.y, problem.hx[-2:])
    assert_same_results(plan.infer(*problem.inputs[1:], mask=problem.mask), expected._replace(y=y), OUTPUTS)


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
