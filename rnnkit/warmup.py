"""Compile kernels ahead of the first call, for example in a container image or before a benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rnnkit import RNNDescriptor, backward, forward, prepare, training
from rnnkit.descriptor.weights import init_weights
from rnnkit.types import Precision
from rnnkit_kernels.cells.modes import MODES


def networks(modes: Iterable[str], dtypes: Iterable[str]) -> Iterator[RNNDescriptor]:
    """Yield small networks that together use every kernel of these modes and dtypes.

    Parameters
    ----------
    modes, dtypes : iterable of str
        As for :class:`rnnkit.RNNDescriptor`.

    Yields
    ------
    RNNDescriptor
        Each formula of a mode: one layer, and two bidirectional layers with dropout between them.
    """
    for mode in modes:
        formulas = (True, False) if "reset_after" in MODES[mode].options else (True,)
        for reset_after in formulas:
            for dtype in dtypes:
                options = {"reset_after": reset_after, "dtype": dtype}
                yield RNNDescriptor(mode, 1, 1, **options)
                yield RNNDescriptor(mode, 1, 1, 2, True, dropout=0.5, **options)


def compile_kernels(desc: RNNDescriptor, precisions: Iterable[Precision] = ()) -> None:
    """Compile the CPU kernels for inference and training of a network, or load them from the cache on disk.

    Parameters
    ----------
    desc : RNNDescriptor
        The network, with a mode or a custom cell. The kernels do not depend on its sizes.
    precisions : iterable of {"bfloat16", "int8"}
        Also compile plans with quantized weights of these precisions.
    """
    w, x = init_weights(desc, seed=0), np.zeros((1, 1, desc.input_size), desc.np_dtype)
    result = forward(desc, w, x, lengths=[0], seed=0)  # below T: packed rows and padding
    dw = backward(desc, w, result.workspace, result.y).dw
    training.clip_gradient_norm(dw, 1.0)
    for optimizer in (training.Adam(w), training.SGD(w), training.SGD(w, momentum=0.9)):
        optimizer.step(dw, 0.0)
    for precision in (None, *precisions):
        plan = prepare(desc, w, precision=precision)
        _, hy, cy = plan.infer(x)
        if not desc.bidirectional:
            plan.step(x[0], hy, cy)
