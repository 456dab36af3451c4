"""The pattern of facts that tests of errors use."""

import doctest

import messages
import pytest

WRONG = """infer: hx must have shape (4, 3, 8)
forward: hxs must have shape (4, 3, 8)
in forward: hx must have shape (4, 3, 8)
forward: hx must have shape (4, 3, 7)
forward: hx must have shape (14, 3, 8)"""


def test_examples_of_says_are_right():
    failed, tried = doctest.testmod(messages)
    assert tried > 2 and not failed


@pytest.mark.parametrize("text", WRONG.splitlines())
def test_message_without_a_fact_does_not_match(text):
    with pytest.raises(AssertionError), pytest.raises(ValueError, match=messages.says("forward: hx", (4, 3, 8))):
        raise ValueError(text)
