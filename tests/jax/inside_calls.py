"""Values and gradients: those of the engine, bit for bit; by the equations, but for rounding."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from combinations import nightly, weekly
from jax_calls import DRAWING, LENGTHS, NETWORKS, OPTIONS, Case, N, T, assert_close, assert_same, narrowed
from messages import says
from refused import refusals

import rnnkit
import rnnkit.jax
from rnnkit.cells import RegularizedLSTM
from rnnkit.jax import network, rnn

jax.config.update("jax_enable_x64", True)
EACH = pytest.mark.parametrize("kind", NETWORKS)


@pytest.fixture
def by_equations(monkeypatch):
    """Calls run on JAX's operations, as on other devices."""
    monkeypatch.setattr(network, "_ENGINE", False)


@pytest.mark.parametrize(
    ("kind", "options", "dtype"),
    [
        (pytest.param if number % 11 == 0 else weekly)(*one, id="-".join(one))
        for number, one in enumerate(product(NETWORKS, OPTIONS, ("float32", "float64")))
    ],
)
def test_results_and_gradients_are_the_engines(kind, options, dtype):
    case = Case(kind, dtype, options)
    found, gradients = case.both()
    assert_same(case.values(found), case.values(case.result))
    assert_same(gradients, case.expected_gradients())


@EACH
def test_states_may_be_left_out(kind):
    case = Case(kind, states=False)
    assert_same(case.values(case.run(*case.given)), case.values(case.result))
    assert_same(jax.grad(case.loss, (0, 1))(*case.given), case.expected_gradients()[:2])


def test_arguments_may_be_traced():
    """Values that only the running program knows."""
    case = Case("lstm", options="resets to hx")
    options = {name: jnp.asarray(case.options[name]) for name in ("lengths", "resets")}
    found = jax.jit(lambda given, options: case.run(*given, **options))(case.given, options)
    assert_same(case.values(found), case.values(case.result))
    case = Case("mask" if "mask" in NETWORKS else "gru", options="mask")
    floats = {"mask": jnp.asarray(case.options["mask"], jnp.float32)}
    found = jax.jit(lambda given, options: case.run(*given, **options))(case.given, floats)
    assert_same(case.values(found), case.values(case.result))


@pytest.mark.parametrize("kind", DRAWING)
def test_seeds_are_numbers_arrays_and_keys(kind):
    case = Case(kind)
    run = jax.jit(lambda seed: case.run(*case.given, seed=seed).y)
    assert_same(run(jnp.uint64(case.options["seed"])), case.result.y)
    assert_same(run(jnp.int32(7)), rnnkit.forward(case.desc, case.w, *case.arrays, seed=7).y)
    first, again, other = (run(jax.random.key(one)) for one in (0, 0, 1))
    assert (first == again).all() and not (first == other).all()
    without = rnnkit.jax.rnn(case.desc, *case.given).y
    assert_same(without, rnnkit.infer(case.desc, case.w, *case.arrays).y)
    part = rnnkit.jax.rnn(case.desc, case.w, *(one[:, 2:] for one in case.arrays[:2]), seed=5, first_row=2).y
    expected = rnnkit.forward(case.desc, case.w, case.x[:, 2:], case.hx[:, 2:], seed=5, first_row=2).y
    assert_same(part, expected)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (pytest.param if number % 11 == 0 else weekly)(*one, id="-".join(one))
        for number, one in enumerate(product((one for one in NETWORKS if one not in DRAWING), OPTIONS))
    ],
)
def test_equations_have_the_same_values(kind, options, by_equations):
    case = Case(kind, "float64", options)
    found, gradients = case.both()
    assert_close(case.values(found), case.values(case.result))
    assert_close(gradients, case.expected_gradients())


@pytest.mark.parametrize("kind", ["dropout", nightly("noises")])
def test_equations_draw_numbers_of_their_own(kind, by_equations):
    """The same in forward and backward."""
    case = Case(kind, "float64")
    loss, w = jax.jit(lambda w: case.loss(w, *case.given[1:])), case.given[0]
    direction = jnp.asarray(np.random.default_rng(0).normal(size=w.shape))
    numeric = (loss(w + 1e-6 * direction) - loss(w - 1e-6 * direction)) / 2e-6
    assert_close(jnp.vdot(jax.grad(loss)(w), direction), numeric, 1e-7)
    assert not np.allclose(case.run(*case.given).y, case.run(*case.given, seed=1).y)
    assert not np.allclose(case.run(*case.given).y, rnnkit.infer(case.desc, case.w, *case.arrays).y)


def test_a_seed_of_a_network_that_draws_nothing_is_not_used():
    """Also of one with noises in evaluation, whose text is that of training."""
    desc = rnnkit.RNNDescriptor(RegularizedLSTM(zoneout=0.3), 3, 4).evaluating
    w, x = rnnkit.init_weights(desc, 0), np.ones((T, N, 3), np.float32)
    found = jax.jit(lambda w, x: rnnkit.jax.rnn(desc, w, x, seed=0).y)(w, x)
    assert_same(found, rnnkit.infer(desc, w, x).y)
    gradient = jax.jit(jax.grad(lambda w: rnnkit.jax.rnn(desc, w, x, seed=0).y.sum()))(jnp.asarray(w))
    result = rnnkit.forward(desc, w, x)
    assert_same(gradient, rnnkit.backward(desc, w, result.workspace, np.ones_like(result.y)).dw)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (1, 1), (17, 16), (15, 33)])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_batches_of_any_size(mode, shape):
    net = rnnkit.RNNDescriptor(mode, 3, 17, num_layers=2)
    w, x = rnnkit.init_weights(net, 0), np.random.default_rng(0).standard_normal((*shape, 3), np.float32)
    found = jax.jit(lambda w, x: rnnkit.jax.rnn(net, w, x))(w, x)
    assert_same([found.y, found.hy], rnnkit.infer(net, w, x)[:2])
    dw = jax.grad(lambda w: rnnkit.jax.rnn(net, w, jnp.asarray(x)).y.sum())(jnp.asarray(w))
    result = rnnkit.forward(net, w, x)
    assert_same(dw, rnnkit.backward(net, w, result.workspace, np.ones_like(result.y)).dw)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_lstm_of_jax_is_the_reference(bidirectional):
    from jax.experimental.rnn import get_num_params_in_lstm, init_lstm_weight, lstm_ref, unpack_lstm_weights

    sizes = 3, 5, 2, 0.0, bidirectional
    weights = init_lstm_weight(jax.random.key(0), 3, 5, 2, bidirectional)
    assert weights.shape == (get_num_params_in_lstm(3, 5, 2, bidirectional),)
    x = jax.random.normal(jax.random.key(1), (N, T, 3), jnp.float32)
    states = jnp.zeros((4 if bidirectional else 2, N, 5), jnp.float32)
    lengths = jnp.full(N, T, jnp.int32)
    expected = lstm_ref(x, states, states, *unpack_lstm_weights(weights, 3, 5, 2, bidirectional), lengths, *sizes)
    found = jax.jit(lambda x, w: rnnkit.jax.lstm(x, states, states, w, lengths, *sizes))(x, weights)
    assert_close(found, expected, 1e-6)
    y, _, _ = rnnkit.jax.lstm(x, states, states, weights, jnp.asarray(LENGTHS), *sizes, precision="highest")
    assert not y[1].any() and not y[2, 3:].any() and y[2, :3].all()


GRU = rnnkit.RNNDescriptor("gru", 3, 5)
W, X = np.zeros(rnnkit.num_weights(GRU), np.float32), np.zeros((T, N, 3), np.float32)
H = np.zeros((1, N, 5), np.float32)


@refusals(
    rnn=[
        (lambda: rnn("gru", W, X), "TypeError network | RNNDescriptor | str"),
        (lambda: rnn(GRU, W[:3], X), "w | num_weights=150 | (3,)"),
        (lambda: rnn(GRU, W, [1.0]), "TypeError x | array | list"),
        (lambda: rnn(GRU, W, X.astype("float64")), "TypeError x | float32 | float64"),
        (lambda: rnn(GRU, W, X[..., :2]), "x | input_size=3 | (6, 5, 2)"),
        (lambda: rnn(GRU, W, X, H[:, 1:]), "hx | batch_size=5 | (1, 4, 5)"),
        (lambda: rnn(GRU, W, X, H, H), "TypeError cx | None"),
        (lambda: rnn(GRU, W, X, lengths=[7] * N), "lengths[0] | 0..seq_len=6 | 7"),
        (lambda: rnn(GRU, W, X, lengths=[1] * 4), "lengths | batch_size=5 | (4,)"),
        (lambda: rnn(GRU, W, X, mask=np.full((T, N), 2)), "mask | 0 and 1"),
        (lambda: rnn(GRU, W, X, resets=np.ones((N, T))), "resets | seq_len=6 | (5, 6)"),
        (lambda: rnn(GRU, W, X, initial="cx"), "initial | hx"),
        (lambda: rnn(GRU, W, X, seed="1"), "TypeError seed | int | str"),
        (lambda: rnn(GRU, W, X, inputs={}), "TypeError inputs | None | dict"),
        (lambda: rnn(GRU, W, X, first_row=-1), "first_row | -1"),
    ],
    lstm=[(lambda: rnnkit.jax.lstm(X, H, H, W, jnp.full(T, N), 3, 5, 1, 0.5, False), "dropout | 0 | rnnkit.jax.rnn")],
)
def test_wrong_arguments_are_named_at_trace_time(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()


def test_wrong_values_are_named_when_the_program_runs():
    run = jax.jit(lambda **options: rnn(GRU, W, X, **options).y)
    for options, text in (
        (dict(lengths=jnp.full(N, 7)), "lengths[0] must be in 0..seq_len=6, got 7"),
        (dict(resets=jnp.ones((T, N)), mask=jnp.zeros((T, N))), "resets[0, 0] must be 0 where mask is 0"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            run(**options).block_until_ready()
        assert text in str(caught.value)
    assert not run().any()  # the next call works


def test_sizes_must_be_known():
    """As the memory of a call is laid out when it is traced."""
    (steps,) = jax.export.symbolic_shape("T")
    x = jax.ShapeDtypeStruct((steps, N, 3), jnp.float32)
    with pytest.raises(TypeError, match=says("rnn: x", "sizes", "(T, 5, 3)")):
        jax.export.export(jax.jit(lambda x: rnnkit.jax.rnn(GRU, W, x).y))(x)


def test_float64_that_jax_narrows_is_refused():
    """The engine would read twice the memory."""
    case = Case("gru", "float64")
    with narrowed(), pytest.raises(TypeError, match=says("rnn: w", "float64", "float32", "jax_enable_x64")):
        case.run(case.w, *case.arrays)
