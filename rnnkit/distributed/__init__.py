"""Data-parallel training: every rank has all weights and a share of the batch, and the gradients are summed by MPI.

mpi4py is imported only under an MPI launcher. Without one, `world` returns None, and every function accepts
``comm=None``: the same program then runs in one process.

>>> import numpy as np
>>> import rnnkit
>>> from rnnkit.distributed import allreduce_gradients, broadcast_weights, shard, world
>>> comm = world()
>>> desc = rnnkit.RNNDescriptor("gru", 3, 5)
>>> w = rnnkit.init_weights(desc)  # after the broadcast: those of rank 0
>>> broadcast_weights(w, comm)
>>> rows = shard(8, comm)  # this rank's slice of a batch of 8
>>> sums = np.zeros(w.size + 1, np.float32)  # the gradient, and one more element to sum
>>> dw = sums[:-1]
>>> x = np.ones((4, 8, 3), np.float32)[:, rows]
>>> y, _, _, workspace = rnnkit.forward(desc, w, x)
>>> _ = rnnkit.backward(desc, w, workspace, y, dw=dw)
>>> sums[-1] = np.square(y).sum() / 2
>>> allreduce_gradients(sums, comm)  # one collective a step
>>> w -= 0.01 * dw
"""

from rnnkit.distributed.collectives import allreduce_gradients, broadcast_weights
from rnnkit.distributed.launch import world
from rnnkit.distributed.ranks import aborting, shard, share_cores

__all__ = ["aborting", "allreduce_gradients", "broadcast_weights", "shard", "share_cores", "world"]
