"""The memory of a workspace: its arena, and which calls may use it."""

from __future__ import annotations

from collections import deque
from collections.abc import MutableSequence
from functools import lru_cache
from typing import Any

from rnnkit.call.arena import Arena
from rnnkit.call.forking import Call, at_work, entering
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.errors import WorkspaceError

SMALL_BYTES, IDLE_BYTES = 1 << 20, 1 << 22
"""Limits in bytes: the memory of one small call; the idle memories of one descriptor and size in total."""


class Memory:
    """The memory that successive workspaces share.

    `calls` has a token of every call that reads or writes a workspace here; `borrowers` has the token of the call that
    uses the rest of the arena as scratch. A call adds its token inside a `try` and removes it by `discard(token)` in
    the `finally`. `discard` is atomic: an exception from a signal handler, which may come between any two instructions,
    leaves no token behind.
    """

    new_arena = Arena
    is_pooled = True  # whether a small memory returns to a pool when its workspace is deleted

    def __init__(self) -> None:
        self.arena = self.new_arena()
        self.calls: set[Call] = set()
        self.borrowers: set[Call] = set()
        self.generation = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"calls": set(), "borrowers": set()}  # a copy has no running calls

    @property
    def is_small(self) -> bool:
        """Whether the memory is small enough to return to the pool."""
        return self.is_pooled and self.arena.nbytes <= SMALL_BYTES

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
            raise WorkspaceError(f"{function}: workspace is older than the latest forward, which reused its memory")

    def borrow(self, call: Call) -> Arena:
        """Return an arena for scratch: this one, or a new one while another call uses this one."""
        with entering:
            if at_work(self.borrowers):
                return self.new_arena()
            self.borrowers.add(call)
        return self.arena


@lru_cache(64)
def idle_memories(kind: type[Memory], desc: RNNDescriptor, batch_size: int) -> deque[Memory]:
    """Return the pool of idle memories for small calls of so many sequences, with their prepared kernel calls."""
    return deque()


def popped(idle: MutableSequence[Any]) -> Any:
    """Pop an idle object, or return None. Another thread may take the last one at any moment."""
    try:
        return idle.pop()
    except IndexError:
        return None


class Lease:
    """The workspace's claim on the memory of a small call: when it is deleted, the memory returns to the pool."""

    def __init__(self, memory: Memory, idle: deque[Memory]) -> None:
        self.memory, self.idle, self.generation = memory, idle, memory.generation
        self.is_exposed = False  # whether an array of the user may still view the memory

    def __del__(self) -> None:
        memory, idle = self.memory, self.idle
        fits = memory.arena.nbytes * (len(idle) + 1) <= IDLE_BYTES
        if fits and not self.is_exposed and memory.generation == self.generation:
            idle.append(memory)
