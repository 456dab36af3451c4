"""Recurrent networks in JAX: inside `jit`, `grad`, `vmap` and `scan`, on the engine's kernels on a CPU.

It imports JAX, so ``import rnnkit`` does not import it: write ``import rnnkit.jax``.
"""

from rnnkit.jax.network import lstm, rnn

__all__ = ["lstm", "rnn"]
