"""The table of programs, in which compiled code finds those of a call by a key; the first call makes one."""

from __future__ import annotations

import os
import threading
from hashlib import blake2b
from math import prod

import numpy as np

from rnnkit.jax.problem import Problem
from rnnkit.network import engine
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.programs import (
    COPIES_WORDS,
    COUNT,
    PAIRS,
    PLACE_WORDS,
    PLACES,
    USED,
    replace_word,
    set_word,
)  # fmt: skip

_MOST_COPIES = (COPIES_WORDS - PAIRS) // 2  # of a program: calls that run at once
_MOST_KEYS = PLACES // 2  # places are not given back
_KEPT_BYTES, _KEPT_PROGRAMS = 1 << 28, 256  # of all programs; above, those that were not used lately are dropped

TABLE = np.zeros(PLACES * PLACE_WORDS, np.int64)
"""What compiled code reads; never freed."""
_lock = threading.RLock()  # a signal's handler may call, too
_found: dict[int, _Copies] = {}


class _Copies:
    """The copies of a program: by number, and as words that compiled code reads, which are never freed."""

    def __init__(self) -> None:
        self.words, self.programs = np.zeros(COPIES_WORDS, np.int64), {}

    def add(self, program: object) -> None:
        number = next(one for one in range(_MOST_COPIES) if one not in self.programs)
        pair = PAIRS + 2 * number
        self.programs[number] = program
        set_word(self.words, pair + 1, program.words.ctypes.data)
        set_word(self.words, COUNT, max(self.words[COUNT], number + 1))

    @property
    def size(self) -> tuple[int, int]:
        """The number of programs, and their bytes."""
        return len(self.programs), sum(one.nbytes for one in self.programs.values())

    def drop(self) -> None:
        """Drop the programs that do not run."""
        for number, program in [*self.programs.items()]:
            pair = PAIRS + 2 * number
            if replace_word(self.words, pair, 0, 1):
                if not program.is_helped:
                    self.words[pair + 1] = 0
                    del self.programs[number]
                set_word(self.words, pair, 0)


def key_of(text: str) -> int:
    """Return the key of a problem's text, which is above 0."""
    return int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "little") + 1


def add(key: int, problem: Problem) -> bool:
    """Make a program for a problem, if that is possible, and if it has not too many; returns whether it was made."""
    module, call = engine.cpu_module("program"), problem.call
    if call is None or not module.has_program(call):
        return False
    with _lock:
        copies = _found.get(key)
        if len(_found) >= _MOST_KEYS if copies is None else len(copies.programs) >= _MOST_COPIES:
            return False
        _make_room()
        each = zip(problem.names, problem.operands + problem.results, strict=True)
        buffers = {name: (n, prod(shape) * dtype.itemsize) for n, (name, (shape, dtype)) in enumerate(each, 1)}
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = min(problem.threads or thread_pool.max_threads(), cores)
        try:
            program = module.Program(call, buffers, threads)
        except MemoryError:  # a call in Python needs less
            return False
        if copies is None:
            copies = _found[key] = _Copies()
            copies.add(program)
            place = key % PLACES
            while TABLE[place * PLACE_WORDS]:
                place = (place + 1) % PLACES
            set_word(TABLE, place * PLACE_WORDS + 1, copies.words.ctypes.data)
            set_word(TABLE, place * PLACE_WORDS, key)
        else:
            copies.add(program)
    return True


def _make_room() -> None:
    """Drop programs that were not used since the last time, while there are too many."""
    count, nbytes = (sum(sizes) for sizes in zip((0, 0), *(copies.size for copies in _found.values()), strict=True))
    for key in [*_found]:
        if count < _KEPT_PROGRAMS and nbytes < _KEPT_BYTES:
            return
        copies = _found[key]
        if not copies.words[USED]:
            before = copies.size
            copies.drop()
            count, nbytes = (
                one - was + now for one, was, now in zip((count, nbytes), before, copies.size, strict=True)
            )
        copies.words[USED] = 0
        _found[key] = _found.pop(key)  # to the end
