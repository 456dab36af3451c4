"""Flax's cells on the engine, beside flax.nnx.RNN, which loops over the steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from combinations import nightly
from flax import nnx
from guides import blocks_of
from jax_calls import assert_close, assert_same, narrowed
from messages import says

from rnnkit.jax.flax import RNN

jax.config.update("jax_enable_x64", True)
pytestmark = pytest.mark.filterwarnings("ignore:carry_init is provided")
CELLS = {
    "LSTMCell": {}, "OptimizedLSTMCell": {}, "GRUCell": {}, "SimpleCell": {}, "relu": dict(activation_fn=nnx.relu),
    "initial carry": dict(carry_init=nnx.initializers.normal()),
}  # fmt: skip
EACH = pytest.mark.parametrize("kind", ["LSTMCell", *(nightly(one) for one in CELLS if one != "LSTMCell")])
BATCH, T, F, H = 4, 6, 3, 5
LENGTHS = jnp.array([6, 1, 3, 5])


def both(kind, dtype=jnp.float64, **options):
    """A layer of Flax, and one of rnnkit around the same cell."""
    name = {"relu": "SimpleCell", "initial carry": "GRUCell"}.get(kind, kind)
    given = {"dtype": dtype} if name == "SimpleCell" else {}
    cell = getattr(nnx, name)(F, H, param_dtype=dtype, **given, **CELLS[kind], rngs=nnx.Rngs(0, carry=1))
    moved = lambda one: one + 0.1 * jnp.sin(jnp.arange(one.size)).reshape(one.shape)  # noqa: E731
    nnx.update(cell, jax.tree.map(moved, nnx.state(cell, nnx.Param)))
    return [layer(cell, rngs=nnx.Rngs(carry=3), **options) for layer in (nnx.RNN, RNN)]


def drawn(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape))


@EACH
@pytest.mark.parametrize(
    "options", [{}, dict(time_major=True), dict(reverse=True), dict(reverse=True, keep_order=True)]
)
def test_layers_match_flax(kind, options):
    plain, own = both(kind, return_carry=True, **options)
    x = drawn(T, BATCH, F) if options.get("time_major") else drawn(BATCH, T, F)
    assert_close(nnx.jit(lambda own, x: own(x))(own, x), plain(x))
    carry = plain.cell.initialize_carry((BATCH, F), nnx.Rngs(carry=5))
    carry = jax.tree.map(lambda one: drawn(*one.shape).astype(one.dtype), carry)
    assert_close(own(x, initial_carry=carry), plain(x, initial_carry=carry))


@EACH
@pytest.mark.parametrize("reverse", [False, True])
def test_lengths_match_flax(kind, reverse):
    """Where the sequence is; beyond it Flax goes on."""
    plain, own = both(kind, return_carry=True, reverse=reverse, keep_order=True)
    x, within = drawn(BATCH, T, F), (jnp.arange(T) < LENGTHS[:, None])[..., None]
    (carry, y), (expected, of_flax) = own(x, seq_lengths=LENGTHS), plain(x, seq_lengths=LENGTHS)
    assert_close([carry, y], [expected, jnp.where(within, of_flax, 0)])
    if kind != "initial carry":  # which each call draws anew
        assert_same(own(x, seq_lengths=LENGTHS, return_carry=False), y)


@EACH
def test_gradients_match_flax(kind):
    """Of the parameters of the cell, in a training step."""
    layers, x = both(kind), drawn(BATCH, T, F)
    loss = lambda layer, x: jnp.sin(layer(x)).sum()  # noqa: E731
    found, expected = (nnx.jit(nnx.grad(loss, argnums=(0, 1)))(one, x) for one in layers[::-1])
    assert_close(jax.tree.leaves(found), jax.tree.leaves(expected))


def test_batches_of_any_rank():
    plain, own = both("LSTMCell")
    for shape in ((T, F), (2, 3, T, F)):
        x = drawn(*shape)
        assert_close(own(x), plain(x))
    lengths = jnp.array([[6, 2, 1], [3, 4, 5]])
    assert_close(
        own(drawn(2, 3, T, F), seq_lengths=lengths)[1, 0], own(drawn(2, 3, T, F)[1, 0], seq_lengths=jnp.array(3))
    )


def test_cells_that_the_engine_lacks_are_named():
    rngs = nnx.Rngs(0)
    for error, text, cell in (
        (TypeError, says("RNN: cell", "nnx.LSTMCell", "flax.nnx.nn.linear.Linear"), nnx.Linear(F, H, rngs=rngs)),
        (ValueError, says("RNN: cell.activation_fn", "Flax's"), nnx.GRUCell(F, H, activation_fn=nnx.relu, rngs=rngs)),
        (ValueError, says("RNN: cell.gate_fn", "Flax's"), nnx.LSTMCell(F, H, gate_fn=nnx.relu, rngs=rngs)),
        (ValueError, says("RNN: cell.residual", "False"), nnx.SimpleCell(F, H, residual=True, rngs=rngs)),
        (ValueError, says("RNN: cell.param_dtype", "bfloat16"), nnx.GRUCell(F, H, dtype=jnp.bfloat16, rngs=rngs)),
    ):
        with pytest.raises(error, match=text):
            RNN(cell)


def test_tutorial_runs():
    with narrowed():
        exec("\n".join(blocks_of("tutorials/jax", "python")), names := {})  # noqa: S102
    np.testing.assert_allclose(names["losses"], names["losses_of_flax"], rtol=1e-4)
    assert names["losses"][-1] < 0.1 * names["losses"][0]
    w = names["gradient"]["params"]["w"], names["gradients"].w
    assert all(jnp.isfinite(one).all() and one.any() for one in w)


def test_guide_runs():
    """The program of the guide, in one piece."""
    blocks = blocks_of("how-to/jax", "python")
    with narrowed():
        exec("\n".join(blocks), names := {})  # noqa: S102
    assert names["dw"].shape == names["w"].shape and names["dw"].any() and names["y"].shape == (4, 20, 32)
    assert not names["y"][2].any() and names["h"].shape == (4, 32)
