"""Errors with what their messages say, as one text that fits into a row of a table."""

import pytest
from messages import says


def raises(error, text):
    """`pytest.raises`; the message has the facts, which are between bars: `"forward: x | float32 | list"`."""
    return pytest.raises(error, match=says(*text.split(" | ")))
