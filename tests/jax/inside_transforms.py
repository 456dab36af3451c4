"""What JAX makes of a call: mapped, in loops, differentiated in every way, exported, in threads and on one core."""

import os
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from combinations import nightly, weekly
from jax.test_util import check_grads
from jax_calls import Case, assert_close, assert_same

import rnnkit
import rnnkit.jax

jax.config.update("jax_enable_x64", True)
KINDS = "lstm", "gru", "several states", "own", "side inputs"
EACH = pytest.mark.parametrize("kind", ["lstm", *map(nightly, KINDS[1:])])
B = 3


def stacked(results):
    return jax.tree.map(lambda *each: jnp.stack(each), *results)


def several(case):
    """So many x, and weights."""
    scales = jnp.arange(1, B + 1, dtype=case.w.dtype)
    return scales[:, None, None, None] * case.x, scales[:, None] * case.w


@EACH
@pytest.mark.parametrize("options", ["nothing", "mask", "resets to hx"])
def test_mapped_calls_are_those_one_by_one(kind, options):
    case = Case(kind, options=options)
    w, _, *states = case.given
    xs, ws = several(case)
    run = lambda w, x: case.run(w, x, *states)  # noqa: E731
    expected = stacked([run(w, x) for x in xs])
    assert_same(jax.jit(jax.vmap(run, (None, 0)))(w, xs), expected)
    assert_same(jax.vmap(run, (0, None))(ws, xs[0]), stacked([run(one, xs[0]) for one in ws]))
    assert_same(jax.vmap(run)(ws, xs), stacked([run(*one) for one in zip(ws, xs, strict=True)]))
    nested = jax.vmap(jax.vmap(run, (None, 0)), (None, 1), 1)(w, jnp.stack([xs, 2 * xs], 1))
    assert_same(jax.tree.map(lambda one: one[:, 0], nested), expected)
    third = jax.vmap(run, (None, 2))(w, jnp.moveaxis(xs, 0, 2))
    assert_same(third, expected)


@EACH
def test_gradients_of_mapped_calls_and_mapped_gradients(kind):
    case = Case(kind)
    w, _, *states = case.given
    xs, ws = several(case)
    loss = lambda w, x: case.loss(w, x, *states)  # noqa: E731
    each = stacked([jax.grad(loss, (0, 1))(w, x) for x in xs])
    assert_same(jax.jit(jax.vmap(jax.grad(loss, (0, 1)), (None, 0)))(w, xs), each)
    dw, dxs = jax.grad(lambda w, xs: jax.vmap(loss, (None, 0))(w, xs).sum(), (0, 1))(w, xs)
    assert_same(dxs, each[1])
    assert_close(dw, each[0].sum(0), 1e-5)
    dws = jax.grad(lambda ws: jax.vmap(loss, (0, None))(ws, xs[0]).sum())(ws)
    assert_same(dws, jnp.stack([jax.grad(loss)(one, xs[0]) for one in ws]))


def test_mapped_options_and_seeds():
    case = Case("lstm", options="lengths")
    lengths = jnp.array([[6, 0, 3, 5, 6], [1, 2, 3, 4, 5], [6] * 5])
    run = lambda lengths, loss=case.run: loss(*case.given, lengths=lengths)  # noqa: E731
    assert_same(jax.vmap(run)(lengths), stacked([run(one) for one in lengths]))
    gradient = lambda lengths: jax.grad(case.loss)(*case.given, lengths=lengths)  # noqa: E731
    assert_same(jax.vmap(gradient)(lengths), stacked([gradient(one) for one in lengths]))
    case = Case("dropout")
    run = lambda seed: case.run(*case.given, seed=seed).y  # noqa: E731
    seeds = jnp.arange(3)
    assert_same(jax.vmap(run)(seeds), stacked([run(one) for one in seeds]))
    xs, _ = several(case)
    of_x = lambda x: case.run(case.given[0], x, *case.given[2:]).y  # noqa: E731
    assert_same(jax.vmap(of_x)(xs), stacked([of_x(x) for x in xs]))


@EACH
def test_loops_branches_and_checkpoints(kind):
    """A scan around calls of one step, a branch, and a call that is run again in backward."""
    case = Case(kind, states=kind != "side inputs")
    if kind == "side inputs":
        return
    w, x, hx, cx = case.given

    def steps(w, x):
        def step(states, x):
            y, *states = rnnkit.jax.rnn(case.desc, w, x[None], *states)
            return tuple(states), y[0]

        return jax.lax.scan(step, (hx, cx), x)[1]

    if not case.desc.bidirectional:
        assert_same(jax.jit(steps)(w, x), case.result.y)
    found = jax.grad(lambda w: jax.checkpoint(lambda w: case.loss(w, x, hx, cx))(w))(w)
    assert_same(found, case.expected_gradients()[0])
    branch = jax.jit(
        lambda w, yes: jax.lax.cond(yes, lambda w: case.run(w, x, hx, cx).y, lambda w: jnp.zeros_like(case.result.y), w)
    )
    assert_same(branch(w, True), case.result.y)
    assert not branch(w, False).any()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (weekly if (kind, options) != ("gru", "mask") else nightly)(kind, options, id=f"{kind}-{options}")
        for kind in KINDS
        for options in ("nothing", "mask", "resets to hx")
    ],
)
def test_derivatives_of_every_order_and_mode(kind, options):
    case = Case(kind, "float64", options)
    w, x, hx, cx = case.given
    check_grads(lambda w, x: case.loss(w, x, hx, cx), (w, x), 2, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["gru", *(weekly(one) for one in KINDS if one != "gru")])
def test_jacobians_and_hessians(kind):
    case = Case(kind, "float64")
    w, x, hx, cx = case.given
    output = lambda x: case.run(w, x, hx, cx).y  # noqa: E731
    assert_close(jax.jacfwd(output)(x), jax.jacrev(output)(x))
    loss = lambda x: case.loss(w, x, hx, cx)  # noqa: E731
    forward_over_reverse, reverse_over_reverse = jax.hessian(loss)(x), jax.jacrev(jax.grad(loss))(x)
    assert_close(forward_over_reverse, reverse_over_reverse)
    direction = jnp.asarray(np.random.default_rng(0).normal(size=x.shape))
    numeric = (jax.grad(loss)(x + 1e-6 * direction) - jax.grad(loss)(x - 1e-6 * direction)) / 2e-6
    assert_close(jnp.tensordot(forward_over_reverse, direction, x.ndim), numeric, 1e-7)


EXPORTED = """
import sys
from jax import export
import jax.numpy as jnp
import numpy as np
import rnnkit.jax
import jax_calls
if sys.argv[2] == "known":
    rnnkit.jax.rnn(rnnkit.RNNDescriptor(jax_calls.Leaking(), 3, 4), *map(jnp.zeros, ((72,), (1, 1, 3))))
case = jax_calls.Case(sys.argv[3])
program = export.deserialize(open(sys.argv[1], "rb").read())
np.testing.assert_array_equal(program.call(*case.given[:3]), case.result.y)
print("equal")
"""


@pytest.mark.parametrize(("kind", "knows"), [("vanilla", "nothing"), ("shipped", "nothing"), ("own", "known")])
def test_exported_programs_run_in_another_process(kind, knows, tmp_path):
    case = Case(kind)
    run = jax.jit(lambda w, x, hx: case.run(w, x, hx, None).y)
    program = jax.export.export(run, disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("rnnkit")])
    (tmp_path / "program").write_bytes(program(*case.given[:3]).serialize())
    command = [sys.executable, "-c", EXPORTED, tmp_path / "program", knows, kind]
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths}, check=False)
    assert done.stdout == "equal\n", done.stderr[-2000:]


TWO_DEVICES = """
import jax, jax.numpy as jnp, numpy as np, rnnkit.jax
from jax.sharding import Mesh, PartitionSpec as P
shard_map = getattr(jax, "shard_map", None)
if shard_map is None:
    from jax.experimental.shard_map import shard_map
net = rnnkit.GRU(3, 5, seed=0)
w, x = jnp.asarray(net.weights), jnp.asarray(np.random.default_rng(0).standard_normal((6, 4, 3), np.float32))
loss = lambda w, x: (rnnkit.jax.rnn(net, w, x).y ** 2).sum()
each = lambda w, x: jax.lax.psum(loss(w, x), "d")
sharded = shard_map(each, mesh=Mesh(np.array(jax.devices()), ("d",)), in_specs=(P(), P(None, "d")), out_specs=P())
found, expected = (jax.jit(jax.grad(one, (0, 1)))(w, x) for one in (sharded, loss))
for one, other in zip(found, expected):
    np.testing.assert_allclose(one, other, atol=1e-5)
print(len(jax.devices()))
"""


def test_gradients_of_sharded_batches_are_summed_over_the_devices():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", TWO_DEVICES]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "2\n", done.stderr[-2000:]


def test_many_threads_call_at_once():
    case = Case("lstm")
    run = jax.jit(lambda w, x: jax.grad(case.loss)(w, x, *case.given[2:]))
    expected, found = run(*case.given[:2]), []
    threads = [threading.Thread(target=lambda: found.extend(run(*case.given[:2]) for _ in range(20))) for _ in range(6)]
    [one.start() for one in threads]
    [one.join() for one in threads]
    assert len(found) == 120
    for one in found:
        assert_same(one, expected)


ONE_CORE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax, jax.numpy as jnp, rnnkit.jax
net = rnnkit.LSTM(8, 16, seed=0)
run = jax.jit(jax.grad(lambda w, x: rnnkit.jax.rnn(net, w, x).y.sum()))
found = [run(jnp.asarray(net.weights), jnp.full((20, 4, 8), 0.1 * number)) for number in range(50)]
print(len([one.block_until_ready() for one in found]))
"""


def test_calls_on_one_core_wait_for_nobody():
    """A callback of JAX would wait for ever."""
    done = subprocess.run([sys.executable, "-c", ONE_CORE], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "50\n", done.stderr[-2000:]
