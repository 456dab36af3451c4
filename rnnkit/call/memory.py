"""The memory of a workspace: its arena, and who may use it when."""

from __future__ import annotations

from collections import deque
from collections.abc import MutableSequence
from functools import lru_cache
from typing import Any

from rnnkit.call.arena import Arena
from rnnkit.call.forking import Call, at_work, entering
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.errors import WorkspaceError, message

SMALL_BYTES, IDLE_BYTES = 1 << 20, 1 << 22
"""Of the memory of a small call, and of idle ones of one descriptor and size, at most."""


class Memory:
    """What a workspace and its successors share.

    `calls` has a token of every call that reads or writes a workspace here, `borrowers` of the one that works in what
    is no workspace's. A call puts its token there inside a `try` and takes it out by `discard(token)` in the `finally`,
    in one step that Python does not interrupt: an exception from a signal handler, which may come between any two
    instructions, leaves none behind.
    """

    new_arena = Arena
    is_pooled = True  # whether small ones are used again when nobody has them any more

    def __init__(self) -> None:
        self.arena = self.new_arena()
        self.calls: set[Call] = set()
        self.borrowers: set[Call] = set()
        self.generation = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"calls": set(), "borrowers": set()}  # nobody ends calls that are at work in this

    @property
    def is_small(self) -> bool:
        """Whether a workspace here may be given back when it is not needed any more."""
        return self.is_pooled and self.arena.nbytes <= SMALL_BYTES

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


@lru_cache(64)
def idle_memories(kind: type[Memory], desc: RNNDescriptor, seq_len: int, batch_size: int) -> deque[Memory]:
    """Memories of small calls of this size whose workspaces are gone, with what was laid out on them."""
    return deque()


def popped(idle: MutableSequence[Any]) -> Any:
    """Take one of what is idle; None if there is none. Another thread may take the last one at any moment."""
    try:
        return idle.pop()
    except IndexError:
        return None


class Lease:
    """What a workspace holds its memory by in a small call: when it is deleted, the memory is idle."""

    def __init__(self, memory: Memory, idle: deque[Memory]) -> None:
        self.memory, self.idle, self.generation = memory, idle, memory.generation
        self.is_shown = False  # whether an array outside may still view the memory then

    def __del__(self) -> None:
        memory, idle = self.memory, self.idle
        fits = memory.arena.nbytes * (len(idle) + 1) <= IDLE_BYTES
        if fits and not self.is_shown and memory.generation == self.generation:
            idle.append(memory)
