"""Compares results whose state is None, an array or a tuple of several."""

from shipped_networks import arrays_of
from tolerances import GRADIENTS, OUTPUTS, assert_same_bits


def assert_same(found, expected, names=OUTPUTS + GRADIENTS):
    """The bits of the results that both have, arrays or tuples of them."""
    for name in (name for name in names if hasattr(expected, name)):
        ours, others = arrays_of(getattr(found, name)), arrays_of(getattr(expected, name))
        assert len(ours) == len(others), name
        for number, pair in enumerate(zip(ours, others, strict=True)):
            assert_same_bits(f"{name}[{number}]", *pair)
