"""The memory of a workspace: its arena, and which calls may use it."""

from __future__ import annotations

from typing import Any

from rnnkit.call.arena import Arena
from rnnkit.call.forking import Call, at_work, entering
from rnnkit.call.pool import IDLE, Shelf
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.errors import WorkspaceError, message


class Memory:
    """The memory that successive workspaces share.

    `calls` has a token of every call that reads or writes a workspace here; `borrowers` has the token of the call that
    uses the rest of the arena as scratch. A call adds its token inside a `try` and removes it by `discard(token)` in
    the `finally`. `discard` is atomic: an exception from a signal handler, which may come between any two instructions,
    leaves no token behind.
    """

    new_arena = Arena

    def __init__(self) -> None:
        self.arena = self.new_arena()
        self.calls: set[Call] = set()
        self.borrowers: set[Call] = set()
        self.generation = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"calls": set(), "borrowers": set()}  # a copy has no running calls

    @property
    def nbytes(self) -> int:
        """Bytes of the arena."""
        return self.arena.nbytes

    @classmethod
    def shelf(cls, desc: RNNDescriptor, batch_size: int) -> Shelf | None:
        """Return the shelf of idle memories for calls of so many sequences, whatever their steps."""
        return IDLE.shelf(cls, desc, batch_size)

    def renew(self, call: Call) -> None:
        """Begin a forward, which overwrites this memory: older workspaces become invalid."""
        with entering:
            if at_work(self.calls):
                raise WorkspaceError("forward: workspace is in use by another call")
            self.calls.add(call)
            self.generation += 1

    def read(self, function: str, call: Call, generation: int) -> None:
        """Begin a call that reads the workspace of this generation; no `renew` can intervene."""
        with entering:
            self.calls.add(call)
            self.check(function, generation)

    def check(self, function: str, generation: int) -> None:
        """Raise unless this generation is the latest."""
        if generation != self.generation:
            expected, got = "be of the latest forward that used its memory", "one of an earlier forward"
            raise WorkspaceError(message(function, "workspace", expected, got, "use it before the next forward"))

    def borrow(self, call: Call) -> Arena:
        """Return an arena for scratch: this one, or a new one while another call uses this one."""
        with entering:
            if at_work(self.borrowers):
                return self.new_arena()
            self.borrowers.add(call)
        return self.arena
