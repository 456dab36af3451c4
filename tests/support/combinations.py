"""Combinations of options: a few that hold every pair of them by default, all of them in the nightly part."""

from itertools import combinations, product

import pytest


def nightly(*values, id=None):
    """A case of `parametrize` that only the nightly part runs."""
    return pytest.param(*values, marks=pytest.mark.nightly, id=id)


def weekly(*values, id=None):
    """A case of `parametrize` that only the weekly part runs."""
    return pytest.param(*values, marks=pytest.mark.weekly, id=id)


def is_nightly(value):
    """Whether a value of `parametrize`, or a case, is one that the default part does not run."""
    return any(mark.name in ("nightly", "weekly") for mark in getattr(value, "marks", ()))


def value_of(option):
    """The value of a case for one argument."""
    return option.values[0] if isinstance(option, type(pytest.param())) else option


def pairs(*options, each=2):
    """Cases of `parametrize` for several arguments: all of the product, nightly but for enough to have every pair.

    With `each` of 1 enough to have every value. A case with a value that is nightly is so, too. The next case taken is
    always the one that has the most pairs which none has so far, the first of several.
    """
    options = [list(values) for values in options]
    cases = list(product(*(range(len(values)) for values in options)))
    later = [{k for k, value in enumerate(values) if is_nightly(value)} for values in options]
    by_default = [case for case in cases if not any(k in rare for k, rare in zip(case, later, strict=True))]

    def parts_of(case):
        return set(combinations(enumerate(case), min(each, len(case))))

    left = {part for case in by_default for part in parts_of(case)}
    chosen = set()
    while left:
        best = max(by_default, key=lambda case: len(left & parts_of(case)))
        chosen.add(best)
        left -= parts_of(best)
    given = ((case, [value_of(values[k]) for values, k in zip(options, case, strict=True)]) for case in cases)
    return [pytest.param(*values) if case in chosen else nightly(*values) for case, values in given]
