"""The memory of a workspace: its arena, and who may use it when."""

from __future__ import annotations

from typing import Any

from rnnkit.call.arena import Arena
from rnnkit.call.forking import Call, at_work, entering
from rnnkit.errors import WorkspaceError, message


class Memory:
    """What a workspace and its successors share.

    `calls` has a token of every call that reads or writes a workspace here, `borrowers` of the one that works in what
    is no workspace's. A call puts its token there inside a `try` and takes it out by `discard(token)` in the `finally`,
    in one step that Python does not interrupt: an exception from a signal handler, which may come between any two
    instructions, leaves none behind.
    """

    new_arena = Arena

    def __init__(self) -> None:
        self.arena = self.new_arena()
        self.calls: set[Call] = set()
        self.borrowers: set[Call] = set()
        self.generation = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"calls": set(), "borrowers": set()}  # nobody ends calls that are at work in this

    def renew(self, call: Call) -> None:
        """Begin a call that writes the workspace anew: what earlier ones left is void."""
        with entering:
            if at_work(self.calls):
                expected = "not be in use by another call"
                raise WorkspaceError(message("forward", "workspace", expected, "one at work in its memory"))
            self.calls.add(call)
            self.generation += 1

    def read(self, function: str, call: Call, generation: int) -> None:
        """Begin a call that reads what the workspace of this generation holds; no `renew` comes between."""
        with entering:
            self.calls.add(call)
            self.check(function, generation)

    def check(self, function: str, generation: int) -> None:
        """Raise unless this generation is the last one."""
        if generation != self.generation:
            expected = "be the one that the latest forward on its memory returned"
            raise WorkspaceError(message(function, "workspace", expected, "an older one, whose memory is used again"))

    def borrow(self, call: Call) -> Arena:
        """Return an arena to work in: this one, or a new one while another call is at work in this."""
        with entering:
            if at_work(self.borrowers):
                return self.new_arena()
            self.borrowers.add(call)
        return self.arena
