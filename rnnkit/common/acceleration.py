"""What `accelerate` returns, of a model of PyTorch or Keras."""

from __future__ import annotations

from typing import NamedTuple


class Acceleration(NamedTuple):
    """Result of `accelerate`.

    Attributes
    ----------
    changed : tuple of str
        Names of the modules or layers that this call switched to the engine. Their class has changed, to a subclass:
        comparisons of exact types no longer match.
    left : dict of str to str
        Recurrent ones that were not changed, or not for every call: name -> reason.
    """

    changed: tuple[str, ...]
    left: dict[str, str]
