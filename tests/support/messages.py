"""What tests ask of an error: who raised it, the argument, and the facts. Its sentence may change."""

import re

import pytest


def says(where, *facts):
    r"""Return a pattern for ``match=``: a message that begins with `where` and then has each fact, in any order.

    >>> import re
    >>> pattern = says("forward: hx", (4, 3, 8), "batch_size=3")
    >>> bool(re.search(pattern, "forward: hx must have shape (L*D=4, batch_size=3, H=8) = (4, 3, 8), got None"))
    True
    >>> bool(re.search(pattern, "forward: hx must have shape (4, 3, 80), batch_size=3"))
    False
    """
    return rf"(?s)\A{_whole(where)}" + "".join(rf"(?=.*{_whole(fact)})" for fact in facts)


def raises(error, text):
    """`pytest.raises` with a message that says what stands between the bars: `"forward: x | float32 | list"`."""
    return pytest.raises(error, match=says(*text.split(" | ")))


def one_line_says(text, where, *facts):
    """Whether the text is a single line that says so: what a command prints of an error."""
    return text.count("\n") == 1 and re.search(says(where, *facts) + r".*\n\Z", text) is not None


def _whole(fact):
    """The text of a fact, not as a part of a longer word or number."""
    text = str(fact)
    before = r"(?<![\w.])" if text[:1].isalnum() else ""
    after = r"(?!\w|\.\d)" if text[-1:].isalnum() else ""
    return f"{before}{re.escape(text)}{after}"
