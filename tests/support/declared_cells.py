"""Declarations of small cells, stage by stage."""

from typing import NamedTuple

from rnnkit.cells import cell, forward, gradient


def declared(*stages, fields=(), base=NamedTuple, **said):
    """Declare a cell named Mine with these stages."""
    kind = NamedTuple("Mine", fields) if base is NamedTuple else type("Mine", (base,), {})
    for stage in stages:
        setattr(kind, stage.function.__name__, stage)
    return cell(**{"gates": "a"} | said)(kind)


@forward("a h")
def output(self, a):
    return a, a


@gradient("da")
def back(self, dh):
    return dh


def of(function, **said):
    """A cell named Mine whose h is this function of two gates."""

    class Mine(NamedTuple):
        p: float = 0.7
        flag: bool = False

    Mine.step = forward("h")(function)
    return cell(**{"gates": "a b"} | said)(Mine)
