"""One call of a network on the tensors of Keras's backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rnnkit.descriptor.descriptor import RNNDescriptor


class Call(NamedTuple):
    """A network, and its arguments as tensors."""

    desc: RNNDescriptor
    w: Any  # flat weights
    x: Any  # (T, N, I)
    states: Sequence[Any]  # the initial ones, (D, N, H) each
    mask: Any  # (T, N) bool: steps that are not skipped; None: all
    seed: Any  # an integer, of the noises; None: none are drawn
    training: bool  # whether a gradient is expected
    sequences: bool  # whether y is read; else it may be None


Run = Callable[[Call], tuple[Any, list[Any]]]
"""Returns y (T, N, D*H) and the states after the last step."""
