"""Calls run as programs, without Python: which do, how they find them, and what becomes of those that nobody uses."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from combinations import nightly
from jax_calls import Case, N, T, assert_same

import rnnkit
import rnnkit.jax
from rnnkit.cpu import kept
from rnnkit.jax import network, problem, table, xla
from rnnkit_kernels import programs
from rnnkit_kernels.machine.sync import NUMBER

GRU = rnnkit.RNNDescriptor("gru", 3, 5)
W = jnp.asarray(rnnkit.init_weights(GRU, 0))


@pytest.fixture
def fresh(monkeypatch):
    """No programs; those of other tests stay."""
    monkeypatch.setattr(table, "_found", {})
    TABLE = table.TABLE.copy()
    table.TABLE[:] = 0
    yield
    table.TABLE[:] = TABLE


@pytest.fixture
def in_python(monkeypatch):
    """The kinds of the calls that run in Python."""
    kinds, run = [], xla.run
    monkeypatch.setattr(xla, "run", lambda problem, arrays: (kinds.append(problem.kind), run(problem, arrays))[1])
    return kinds


@pytest.mark.parametrize("kind", ["lstm", "gru", "projected", "several states", "shipped", "own"])
@pytest.mark.parametrize("options", ["nothing", "lengths", "resets"])
def test_these_never_run_in_python(kind, options, in_python):
    case = Case(kind, options=options)
    found, gradients = case.both()
    assert_same(case.values(found), case.values(case.result))
    assert_same(gradients, case.expected_gradients())
    assert not in_python


@pytest.mark.parametrize(
    ("kind", "options"),
    [("lstm", "mask"), ("lstm", "resets to hx"), ("side inputs", None), ("learned", None), ("dropout", None)],
)
def test_these_do(kind, options, in_python):
    case = Case(kind, options=options)
    case.both()
    assert {*in_python} >= {"forward", "backward"}


def test_weights_are_packed_once_for_the_steps_of_a_loop(in_python):
    case = Case("gru", options="nothing")

    def steps(w, x):
        def step(h, x):
            y, h, _ = rnnkit.jax.rnn(case.desc, w, x[None], h)
            return h, y[0]

        return jax.lax.scan(step, jnp.asarray(case.hx), x)

    run = jax.jit(steps).lower(*case.given[:2]).compile()
    text = run.as_text()
    entry = text[text.index("\nENTRY") :]
    assert "rnnkit_pack" in entry and "rnnkit_infer" not in entry and text.count("= f32[") > entry.count("= f32[")
    hy, y = run(*case.given[:2])
    expected = rnnkit.infer(case.desc, case.w, case.x, case.hx)
    assert_same((hy, y), (expected.hy, expected.y))
    for w in case.w, case.given[0]:  # packed when it is traced
        known = jax.jit(lambda x, w=w: steps(w, x))
        assert_same(known(case.given[1]), (expected.hy, expected.y))
        assert "'packed'" in str(jax.make_jaxpr(known)(case.given[1]))
        assert "rnnkit_pack" not in known.lower(case.given[1]).compile().as_text()
    assert not in_python


def test_weights_of_a_mapped_call_are_not_packed_outside_a_loop():
    """A call of one step reads them as they are in less time."""
    case = Case("gru", options="nothing")
    step = lambda w, x: rnnkit.jax.rnn(case.desc, w, x).y  # noqa: E731
    text = str(jax.make_jaxpr(jax.vmap(step, (None, 1), 1))(case.given[0], case.given[1][:1, :, None]))
    assert "rnnkit_infer" in text and "packed" not in text


def test_weights_elsewhere_are_not_packed_when_it_is_traced(monkeypatch):
    """There they would be packed by JAX's operations, which is not to be read here."""
    monkeypatch.setattr(network, "is_known_on_cpu", lambda value: False)
    case = Case("gru", options="nothing")
    run = jax.jit(lambda x: rnnkit.jax.rnn(case.desc, case.w, x, case.given[2]).y)
    assert "rnnkit_pack" in run.lower(case.given[1]).as_text() or "rnnkit_pack" in str(
        jax.make_jaxpr(run)(case.given[1])
    )
    assert_same(run(case.given[1]), rnnkit.infer(case.desc, case.w, case.x, case.hx).y)


def test_packed_weights_of_another_machine_are_not_read(monkeypatch):
    case = Case("gru", options="nothing")
    run = lambda w, x: jax.lax.scan(lambda h, x: (rnnkit.jax.rnn(case.desc, w, x[None], h).hy, 0), case.given[2], x)[0]  # noqa: E731
    monkeypatch.setattr(problem, "VECTOR_BYTES", 2 * problem.VECTOR_BYTES)
    program = jax.jit(run).lower(*case.given[:2]).compile()
    monkeypatch.undo()
    assert_same(program(*case.given[:2]), rnnkit.infer(case.desc, case.w, case.x, case.hx).hy)


@pytest.mark.parametrize("mapped", ["w", "x", "both"])
def test_steps_of_a_loop_are_mapped_and_differentiated(mapped):
    case = Case("gru", "float64" if jax.config.jax_enable_x64 else "float32", "nothing")
    w, x, hx, _ = case.given

    def steps(w, x):
        step = lambda h, x: (rnnkit.jax.rnn(case.desc, w, x[None], h).hy, 0)  # noqa: E731
        return jax.lax.scan(step, hx, x)[0]

    axes = (None if mapped == "x" else 0, None if mapped == "w" else 0)
    several = [one if axis is None else jnp.stack([one, 0.5 * one]) for one, axis in zip((w, x), axes, strict=True)]
    members = [[one if axis is None else one[n] for one, axis in zip(several, axes, strict=True)] for n in range(2)]
    for function in steps, jax.grad(lambda *given: (steps(*given) ** 2).sum(), (0, 1)):
        found = jax.jit(jax.vmap(function, axes))(*several)
        expected = [function(*one) for one in members]
        for one, *others in zip(*map(jax.tree.leaves, (found, *expected)), strict=True):
            np.testing.assert_allclose(one, np.stack(others), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wanted", ["w", "x"])
def test_gradients_that_nobody_wants_are_not_computed(wanted):
    case = Case("lstm", options="nothing")
    place = ("w", "x").index(wanted)
    gradient = jax.grad(case.loss, place)
    text = str(jax.make_jaxpr(gradient)(*case.given))
    assert f"wanted=('{wanted}', 'y')" in text
    assert_same(jax.jit(gradient)(*case.given), case.expected_gradients()[place])


@pytest.mark.parametrize("options", ["nothing", nightly("lengths"), nightly("mask")])
@pytest.mark.parametrize("engine", [True, nightly(False)])
def test_a_loss_of_the_last_states_has_no_gradient_of_y(options, engine, monkeypatch):
    """Nothing of its size is written or read."""
    monkeypatch.setattr(network, "_ENGINE", engine)
    case = Case("lstm", options=options)
    loss = lambda w: (case.run(w, *case.given[1:]).hy ** 2).sum()  # noqa: E731
    assert "wanted=('w',)" in str(jax.make_jaxpr(jax.grad(loss))(case.given[0]))
    dw = rnnkit.backward(case.result.workspace.desc, case.w, case.result.workspace, None, 2 * case.result.hy).dw
    found = jax.jit(jax.grad(loss))(case.given[0])
    if engine:
        assert_same(found, dw)
    else:
        np.testing.assert_allclose(found, dw, atol=1e-5)


@pytest.mark.nightly
def test_such_a_loss_has_second_derivatives():
    case = Case("gru", options="nothing")
    loss = lambda w: (case.run(w, *case.given[1:]).hy ** 2).sum()  # noqa: E731
    second = jax.jit(jax.grad(lambda w: (jax.grad(loss)(w) ** 2).sum()))(case.given[0])
    assert np.isfinite(second).all() and second.any()


def test_programs_of_another_version_are_refused(monkeypatch):
    """Those whose arrays have other sizes, and those whose texts are others."""
    case = Case("gru", options="nothing")
    for patched, value, expected in (
        ("_FORMAT", 0, "program must have format 1, got 0"),
        ("kept_nbytes", lambda *given: 64, "program must have arrays of"),
    ):
        jax.clear_caches()  # of what was lowered
        problem._text.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(problem if patched == "_FORMAT" else kept, patched, value)
            program = jax.jit(jax.grad(case.loss)).lower(*case.given).compile()
        problem._text.cache_clear()
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=expected):
            jax.block_until_ready(program(*case.given))


def test_memory_of_programs_counts_their_lists(fresh):
    lengths = jnp.full(50, 100)
    jax.jit(lambda w, x: rnnkit.jax.rnn(GRU, w, x, lengths=lengths).y)(
        W, jnp.ones((100, 50, 3), jnp.float32)
    ).block_until_ready()
    (copies,) = table._found.values()
    assert copies.size[0] == 1 and copies.size[1] > 5 * 8 * 100 * 50


def test_threads_of_python_have_a_program_each(fresh, in_python):
    """Up to the most; others run in Python."""
    x = jnp.ones((200, 64, 3))
    run = jax.jit(lambda w, x: rnnkit.jax.rnn(GRU, w, x).y)
    expected, found = run(W, x), []
    threads = [threading.Thread(target=lambda: found.extend(run(W, x) for _ in range(30))) for _ in range(12)]
    [one.start() for one in threads]
    [one.join() for one in threads]
    assert len(found) == 360
    assert all((one == expected).all() for one in found)
    (copies,) = table._found.values()
    assert 1 < len(copies.programs) <= table._MOST_COPIES


def run_sizes(sizes):
    for steps in sizes:
        x = np.random.default_rng(steps).standard_normal((steps, 2, 3), np.float32)
        found = jax.jit(lambda w, x: rnnkit.jax.rnn(GRU, w, x).y)(W, x)
        assert_same(found, rnnkit.infer(GRU, np.asarray(W), x).y)


def test_programs_that_were_not_used_lately_are_dropped(fresh, monkeypatch, in_python):
    monkeypatch.setattr(table, "_KEPT_PROGRAMS", 3)
    run_sizes(range(10, 22))
    kept = [len(copies.programs) for copies in table._found.values()]
    assert len(kept) == 12 and sum(kept) == 3
    run_sizes(range(10, 22))
    assert not in_python


def test_a_full_table_leaves_calls_to_python(fresh, monkeypatch, in_python):
    monkeypatch.setattr(table, "_MOST_KEYS", 2)
    run_sizes(range(30, 34))
    assert len(table._found) == 2 and in_python == ["infer"] * 2


def test_a_program_without_memory_leaves_the_call_to_python(fresh, monkeypatch, in_python):
    def without_memory(*given):
        raise MemoryError

    monkeypatch.setattr("rnnkit.cpu.program.Program", without_memory)
    run_sizes([34])
    assert in_python == ["infer"] and not table._found


def test_a_program_in_use_is_not_dropped(fresh):
    """It is running, or a thread that helped still reads it."""
    run_sizes([40])
    (copies,) = table._found.values()
    program, helpers = copies.programs[0], copies.programs[0]._helpers
    for running, read in ((1, helpers), (0, np.ones((1, programs.HELPER_WORDS), np.int64))):
        copies.words[programs.PAIRS], program._helpers = running, read
        copies.drop()
        assert copies.programs and copies.words[programs.PAIRS + 1] == program.words.ctypes.data
    program._helpers = helpers
    copies.drop()
    assert not copies.programs and copies.words[programs.PAIRS + 1] == 0
    run_sizes([40])
    assert len(copies.programs) == 1


@pytest.mark.cores(2)
def test_threads_of_xla_help(fresh):
    net = rnnkit.LSTM(64, 128, seed=0)
    x = np.random.default_rng(0).standard_normal((50, 16, 64), np.float32)
    found = jax.jit(lambda w, x: rnnkit.jax.rnn(net, w, x).y)(net.weights, x)
    assert_same(found, net.infer(x).y)
    (program,) = next(iter(table._found.values())).programs.values()
    assert program.words[programs.SHARED] > 0 and program._sync[NUMBER] > 0
    assert program._helpers[0, programs.LAST] > 0  # it was called


def test_the_number_of_threads_is_that_of_the_thread_that_compiles(fresh):
    from rnnkit_kernels.machine.thread_pool import thread_override

    with thread_override(1):
        run = jax.jit(lambda w, x: rnnkit.jax.rnn(GRU, w, x).y).lower(W, jnp.ones((300, 64, 3))).compile()
    run(W, jnp.ones((300, 64, 3)))
    (copies,) = table._found.values()
    assert copies.programs[0].words[programs.THREADS] == 1


def test_wrong_lengths_are_named_after_right_ones(in_python):
    run = jax.jit(lambda lengths: rnnkit.jax.rnn(GRU, W, jnp.ones((T, N, 3)), lengths=lengths).y)
    right = run(jnp.full(N, T))
    for wrong in (-1, T + 1):
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="lengths") as caught:
            run(jnp.full(N, T).at[2].set(wrong)).block_until_ready()
        assert f"lengths[2] must be in 0..seq_len={T}, got {wrong}" in str(caught.value)
        assert_same(run(jnp.full(N, T)), right)
    assert in_python == ["infer"] * 2
