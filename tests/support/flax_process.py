"""Flax in a process of its own, as JAX warns of every fork: networks from a pickle on stdin, what it makes of them out.

A case has the class of its cells, the trees of its layers, and what to run them on; the result the outputs, the trees
that Flax itself would make, and the network that `from_jax` makes of the arrays of JAX.
"""

import pickle
import sys

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rnnkit.interop import from_jax

jax.config.update("jax_enable_x64", True)


def run_linen(case, layer, x, carry):
    def rnn():
        options = dict(activation_fn=linen.relu) if case["relu"] else {}
        cell = getattr(linen, case["cell"].removeprefix("linen."))
        return linen.RNN(cell(case["hidden_size"], param_dtype=x.dtype, **options))

    module = linen.Bidirectional(rnn(), rnn()) if case["bidirectional"] else rnn()
    own = module.init(jax.random.key(0), x)["params"]
    params = jax.tree.map(jnp.asarray, layer)
    carry, y = module.apply({"params": params}, x, initial_carry=carry, return_carry=True)
    return y, carry, own, {"params": params}


def run_nnx(case, layer, x, carry):
    def rnn():
        options = dict(activation_fn=nnx.relu) if case["relu"] else {}
        cell = getattr(nnx, case["cell"].removeprefix("nnx."))
        dtypes, rngs = dict(dtype=x.dtype, param_dtype=x.dtype), nnx.Rngs(0)
        return nnx.RNN(cell(x.shape[-1], case["hidden_size"], rngs=rngs, **dtypes, **options), rngs=rngs)

    module = nnx.Bidirectional(rnn(), rnn(), rngs=nnx.Rngs(0)) if case["bidirectional"] else rnn()
    own = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    nnx.update(module, layer)
    carry, y = module(x, initial_carry=carry, return_carry=True)
    return y, carry, own, nnx.state(module, nnx.Param)


def run(case):
    """Run a stack; a carry is h, or c and h, of one direction."""
    y, last, made, live = jnp.asarray(case["x"].swapaxes(0, 1)), [], [], []
    states = [jnp.asarray(state) for state in (case["cx"], case["hx"]) if state is not None]
    carries = [tuple(state[row] for state in states) for row in range(len(states[-1]))]
    carries = [carry if len(carry) == 2 else carry[0] for carry in carries]
    for number, layer in enumerate(case["layers"]):
        carry = tuple(carries[2 * number : 2 * number + 2]) if case["bidirectional"] else carries[number]
        run_layer = run_linen if case["cell"].startswith("linen.") else run_nnx
        y, carry, own, tree = run_layer(case, layer, y, carry)
        last += carry if case["bidirectional"] else [carry]
        made.append(jax.tree.map(np.asarray, own))
        live.append(tree)
    last = [state if isinstance(state, tuple) else (state,) for state in last]
    net = from_jax(live, activation="relu" if case["relu"] else None)
    return dict(
        y=np.asarray(y).swapaxes(0, 1),
        states=[np.stack(state) for state in reversed(list(zip(*last, strict=True)))],
        made=made,
        desc=net.desc,
        weights=net.weights,
    )


if __name__ == "__main__":
    pickle.dump([run(case) for case in pickle.load(sys.stdin.buffer)], sys.stdout.buffer)
