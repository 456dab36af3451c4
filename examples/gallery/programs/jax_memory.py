"""
How far back a network looks, by JAX
====================================

`jax.grad` through `rnnkit.jax.rnn`: how much the last output depends on
each input before it, for forget gates that are more or less open.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import rnnkit
import rnnkit.jax

STEPS, UNITS, BATCH = 100, 64, 16
net = rnnkit.LSTM(4, UNITS, seed=0)
x = np.random.default_rng(0).standard_normal((STEPS, BATCH, 4), np.float32)


@jax.jit
def sensitivity(w, x):
    """The length of the gradient by each step's input, of a random sum of
    the last outputs."""
    direction = jax.random.normal(jax.random.key(0), (BATCH, UNITS))

    def last(x):
        return (rnnkit.jax.rnn(net, w, x).y[-1] * direction).sum()

    return jnp.sqrt((jax.grad(last)(x) ** 2).sum(axis=2)).mean(axis=1)


# %%
# The forget gates are the second of i, f, g, o. Their bias says how open
# they are at the beginning.

plt.figure(figsize=(7, 3.5))
for bias in (0, 1, 2, 4):
    net.views["bias_ih_l0"][UNITS : 2 * UNITS] = bias
    found = np.asarray(sensitivity(jnp.asarray(net.weights), x))[::-1]
    below = np.flatnonzero(found < found[0] / 100)
    reach = f"{below[0]} steps" if len(below) else "the first step"
    print(f"bias {bias}: above a hundredth back to {reach}")
    plt.semilogy(found / found[0], label=f"bias {bias}")
plt.xlabel("steps back")
plt.ylabel("relative sensitivity")
plt.ylim(1e-6, 10)
plt.legend()
plt.tight_layout()
plt.show()
