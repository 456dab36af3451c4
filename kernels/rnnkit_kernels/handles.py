"""Handles: words by which a user's compiled code runs the steps of a network, without Python.

A handle has what a call of `stack.run_stack` takes, for one sequence and one thread, and a few words to check it by. It
belongs to one process and stays where it is: a copy, one that was pickled, and one that a fork inherited are refused.
One function serves all networks of a dtype, as the handle has the address of the kernel.
"""

import secrets

import numpy as np
from llvmlite import binding

from .machine.entries import call_of, entry_of, symbol, words_of
from .machine.forks import after_fork_in_child
from .machine.jit import DIGEST
from .machine.thread_pool import SINGLE_SYNC

MAGIC_NUMBER = int(DIGEST, 16) >> 1
"""Of this version of the kernels: a program that was compiled for another one refuses the handle."""
MAGIC, SELF, PROCESS, BUSY, ITEMSIZE, ROW, OUTPUT, OUTPUTS, STATES, KERNEL, HY, CY, CALL = range(13)
"""Words: the numbers that it is checked by; bytes of a number, numbers of a row of x and of y, of h and of c; addresses
of the kernel and of where it writes h and c; then the words of the call."""
# Places of the words of a call: the arrays have two each, address and size.
X, HX, CX, Y, OWN_HY, OWN_CY, GATES, NUMBERS, LENGTHS, MARKS, W = range(CALL + 1, CALL + 23, 2)
STEPS = CALL + 23
THREAD = STEPS + 4
SIZE = THREAD + 4
_SYMBOL = "rnnkit_process"
_process = np.zeros(1, np.int64)
process_address = symbol(_SYMBOL)
"""Intrinsic: the address of this process's number, which handles must have."""


@after_fork_in_child
def _renew():
    _process[0] = secrets.randbits(62)


_renew()
binding.add_symbol(_SYMBOL, _process.ctypes.data)


def run_of(real):
    """Return an intrinsic that runs the call of a handle, by the addresses of the kernel and of the call's words."""
    none, ints = np.empty(0, real), np.empty(0, np.int64)
    like = *(none,) * 7, ints, ints, np.empty(0, np.uint8), none, (0,) * 4
    if 1 + words_of(like) + 4 != SIZE - CALL:
        raise AssertionError("a handle does not have the words of a call")
    return call_of(like)


def fill(handle, call, hy, cy, arrays, sizes):
    """Fill a handle, an array of SIZE words: with the prepared `call` of `stack.run_stack`, the arrays that it writes h
    and c to, its scratch (gates and numbers), and (row of x, of y, h, c)."""
    entry, (gates, numbers) = entry_of(call), arrays
    handle[:] = 0
    handle[[MAGIC, SELF, PROCESS, ITEMSIZE]] = MAGIC_NUMBER, handle.ctypes.data, _process[0], hy.itemsize
    handle[[ROW, OUTPUT, OUTPUTS, STATES]] = sizes
    handle[[KERNEL, HY, CY, CALL]] = entry.address, hy.ctypes.data, cy.ctypes.data, int(entry.bound)
    given = {OWN_HY: hy, OWN_CY: cy, GATES: gates, NUMBERS: numbers}
    for place, array in given.items():
        handle[place : place + 2] = array.ctypes.data, array.size
    row, _, _, states = sizes
    handle[STEPS : STEPS + 4] = 1, 1, row, cy.shape[-1] if states else 0
    handle[THREAD : THREAD + 4] = 0, 1, SINGLE_SYNC.ctypes.data, SINGLE_SYNC.size
