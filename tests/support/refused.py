"""Refusals as a table, a line each: a call, and a text of the facts that its error must state."""

import pytest
from messages import says


def refusals(**tables):
    """A mark that gives a test `call`, `kind` and `expected`, from tables by the function that refuses.

    The text of a row is the argument and what else the message says, as in "source[1].mode | gru | source[0]". The
    error is a ValueError unless the text begins with "TypeError ". In a table `anywhere` the texts name the function.
    """
    cases = [_case(where, *row) for where, rows in tables.items() for row in rows]
    return pytest.mark.parametrize(("call", "kind", "expected"), cases)


def _case(where, call, text):
    kind = TypeError if text.startswith("TypeError ") else ValueError
    argument, *facts = text.removeprefix("TypeError ").split(" | ")
    expected = says(argument if where == "anywhere" else f"{where}: {argument}", *facts)
    return pytest.param(call, kind, expected, id=argument)
