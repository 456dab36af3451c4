"""explain: how a call of one size would run on this machine."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rnnkit.call import forking
from rnnkit.common.numbers import MAX_SIZE
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.errors import message, wrong_type


class Route(NamedTuple):
    """How one kind of call runs.

    Attributes
    ----------
    kind : str
        "stepwise": one kernel runs all layers, step by step; "by layer": a kernel call runs two pseudo-layers, the
        directions of a layer or two layers, over all steps; "nothing": there is no step.
    weights : str
        "in place": read from the flat buffer; "packed": packed in each call. A plan has packed them already.
    threads : int
        Number of threads that the work pays for.
    kernel_calls : int
        Number of kernel calls; Ctrl-C is handled between them.
    nbytes : int
        Bytes of memory that the call works in, beside its arguments and results: for forward the workspace.
    flops : int
        Floating-point operations of the matrix products, two for a multiply-add.
    """

    kind: str
    weights: str
    threads: int
    kernel_calls: int
    nbytes: int
    flops: int

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        calls = "1 kernel call" if self.kernel_calls == 1 else f"{self.kernel_calls} kernel calls"
        work = f"{self.nbytes / 2**20:.3g} MiB, {self.flops / 1e6:.4g} MFLOP"
        return f"{self.kind}, weights {self.weights}, {threads}, {calls}, {work}"


class Explanation(NamedTuple):
    """How calls of one size run; printing it shows all.

    Attributes
    ----------
    desc : RNNDescriptor
        The network.
    seq_len, batch_size : int
        T and N.
    forward, backward, infer : Route
        The calls of these names, of `seq_len` steps of `batch_size` sequences of full length.
    compiled : tuple of str
        Names of the kernels of this network's cell and dtype that this process has compiled or loaded so far.
    """

    desc: RNNDescriptor
    seq_len: int
    batch_size: int
    forward: Route
    backward: Route
    infer: Route
    compiled: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.desc}, T={self.seq_len}, N={self.batch_size}"]
        lines += [f"{name:9} {getattr(self, name)}" for name in ("forward", "backward", "infer")]
        return "\n".join([*lines, f"compiled  {', '.join(self.compiled) or 'nothing yet'}"])


def explain(net: Any, T: int, N: int) -> Explanation:
    """Return how calls of this size run on this machine's CPU, with the number of threads that the next call has.

    Parameters
    ----------
    net : Network or RNNDescriptor
        The network. Its weights are not read.
    T : int
        seq_len, at least 0.
    N : int
        batch_size, at least 0.

    Returns
    -------
    Explanation
        The routes of forward, backward and infer, their threads, memory and operations. Results do not depend on any of
        it.

    Raises
    ------
    TypeError, ValueError
        `net` is neither a network nor a descriptor, its dtype runs only on a GPU, or a size is not an int of at least
        0.

    Examples
    --------
    >>> import rnnkit
    >>> net = rnnkit.GRU(16, 32, seed=0)
    >>> explain(net, 5, 1).infer.kind, explain(net, 500, 64).infer.kind
    ('stepwise', 'by layer')
    """
    desc = net if isinstance(net, RNNDescriptor) else getattr(net, "desc", None)
    if not isinstance(desc, RNNDescriptor):
        raise wrong_type("explain", "net", "a network or an RNNDescriptor", net)
    if desc.dtype not in ("float32", "float64"):
        raise ValueError(message("explain", "net", "have the dtype float32 or float64", desc.dtype))
    for name, size in (("T", T), ("N", N)):
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)):
            raise wrong_type("explain", name, "an int", size)
        if not 0 <= size <= MAX_SIZE:
            raise ValueError(message("explain", name, f"be in 0..{MAX_SIZE}", size))
    explanation = forking.imported("rnnkit.cpu.explanation")
    routes = [Route(*facts) for facts in explanation.routes(desc, int(T), int(N))]
    return Explanation(desc, int(T), int(N), *routes, explanation.compiled(desc))
