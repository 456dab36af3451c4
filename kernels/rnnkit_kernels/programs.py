"""Programs: a call of the engine as a list of words, which compiled code runs without Python.

A program is prepared once for arrays of certain sizes, and run on the addresses of a call's arrays: its buffers. Buffer
0 is at address 0, so that a place, a buffer and an offset in bytes, may also be an address. A program has scratch of
its own: it runs once at a time.
"""

import numpy as np

from .machine.entries import address_of, call_of, clear_bytes, copy_bytes, int32_at, words_at, words_of
from .machine.jit import inner, kernel
from .machine.sync import CLOSED, NUMBER, SPIN_LIMIT, TICKET, TICKET_STEP, exchange, load, store, take_part
from .machine.thread_pool import SINGLE_THREAD_WORK, WORK_PER_SPIN
from .operands import BackwardArrays, ForwardArrays

SYNC, SYNC_SIZE, THREADS, SHARED, HELPERS, FIRST = range(6)
"""Words of a program: the address and the size of `sync`, the number of threads, the number of kernel calls that
helpers may share, the address of the helpers' words, and its first operation."""
END, POINT, COPY, CLEAR, LENGTHS, CALL = range(6)
"""Operations, the first word of each, and what follows it. A place takes two words.

END: nothing.
POINT: the address of a word, a place: write the place's address there.
COPY: a place, another one, bytes: copy from the latter.
CLEAR: a place, bytes.
LENGTHS: an address, a place, N, T: copy N int32 of 0..T to int64; others end the program.
CALL: form, address of the kernel, work, number of words of arguments, these (the bound ones first), each a place.
"""

_ARRAY, _ALL = np.zeros(1, np.float32), np.zeros(1, np.int64)
ARRAYS, GRADIENTS, ARRAY, TWO, NOTHING, STEPS = range(6)
FORMS = (
    ForwardArrays(*[_ARRAY] * 6), BackwardArrays(*[_ARRAY] * 9, False, False, False), _ARRAY, (_ARRAY, _ARRAY), 0,
    (*[_ARRAY] * 7, *[_ALL] * 2, *[_ARRAY] * 2, (0,) * 4),
)  # fmt: skip
"""What the kernels that a program calls expect as their second argument, but for dtypes."""
_arrays, _gradients, _array, _two, _nothing, _steps = map(call_of, FORMS)
_OWN_WORDS = 5  # of a kernel call: the bound arguments, and thread_id, size and sync
MAX_WORDS = max(map(words_of, FORMS)) + _OWN_WORDS


BUSY, KNOWN, LAST = range(3)
"""Words of a helper, of which a program has `THREADS` - 1: whether it runs, and the numbers of the kernel calls between
which it takes part. Then follow the address and the size of `sync`."""
HELPER_WORDS = 8
_SPINS_OF_HELPER = 100_000  # without a call to take part in, about 3 ms


def form_of(like):
    """Return the number of the form of a kernel call whose second argument is like this."""
    shapes = [_shape_of(one) for one in FORMS]
    return shapes.index(_shape_of(like))


def _shape_of(like):
    if isinstance(like, tuple):
        return tuple(map(_shape_of, like))
    return type(like)


@inner
def run_program(program, buffers, words):
    """Run a program; returns whether its lengths were valid, without which it does nothing. `words` is scratch of
    `MAX_WORDS`."""
    at = FIRST
    while program[at] != END:
        operation = program[at]
        if operation == CALL:
            at = _call(program, at + 1, buffers, words)
        elif operation == POINT:
            words_at(program[at + 1], 1)[0] = _place(program, at + 2, buffers)
            at += 4
        elif operation == COPY:
            copy_bytes(_place(program, at + 1, buffers), _place(program, at + 3, buffers), program[at + 5])
            at += 6
        elif operation == CLEAR:
            clear_bytes(_place(program, at + 1, buffers), program[at + 3])
            at += 4
        else:
            count, most = program[at + 4], program[at + 5]
            lengths, given = words_at(program[at + 1], count), int32_at(_place(program, at + 2, buffers), count)
            for n in range(count):
                if given[n] < 0 or given[n] > most:
                    return False
                lengths[n] = given[n]
            at += 6
    return True


@inner
def _place(program, at, buffers):
    return buffers[program[at]] + program[at + 1]


@inner
def _call(program, at, buffers, words):
    """Call a kernel, for whose work helpers may wait; returns where the next operation is."""
    form, address, work, count = program[at], program[at + 1], program[at + 2], program[at + 3]
    at += 4
    for number in range(count):
        words[number] = _place(program, at + 2 * number, buffers)
    sync, shared = words_at(program[SYNC], program[SYNC_SIZE]), program[THREADS] > 1 and work > SINGLE_THREAD_WORK
    words[count], words[count + 1] = 0, program[THREADS] if shared else 1
    words[count + 2], words[count + 3] = program[SYNC], program[SYNC_SIZE]
    number = sync[NUMBER] + 1
    if shared:
        sync[NUMBER], sync[SPIN_LIMIT] = number, work // WORK_PER_SPIN
    first = address_of(words)
    if form == ARRAYS:
        _arrays(address, first)
    elif form == GRADIENTS:
        _gradients(address, first)
    elif form == ARRAY:
        _array(address, first)
    elif form == TWO:
        _two(address, first)
    elif form == NOTHING:
        _nothing(address, first)
    else:
        _steps(address, first)
    closed = number * TICKET_STEP + CLOSED
    if shared and load(sync, TICKET) < closed:  # the kernel handed out no tickets
        store(sync, TICKET, closed)
    return at + 2 * count


def help_program(helper):
    """Take part in the kernel calls of a program: what a thread does that helps; its words are at an address."""
    words = words_at(helper, HELPER_WORDS)
    take_part(words_at(words[LAST + 1], words[LAST + 2]), words[KNOWN], words[LAST], _SPINS_OF_HELPER)
    store(words, BUSY, 0)
    return 0


PLACES, PLACE_WORDS, COPIES_WORDS = 16384, 2, 18
"""Sizes of a table of programs: its places, which are found by a key from 1 on; the words of a place, the key and the
address of the copies of its program; and the words of these copies."""
USED, COUNT, PAIRS = range(3)
"""Words of the copies: whether one was used, their number, and for each copy two: whether it runs, and its address, 0
if it has been dropped."""


@inner
def take_program(table, key):
    """Return the address of the two words of a copy that nobody runs, of the program with this key; 0 without any."""
    place = key % PLACES * PLACE_WORDS
    for _ in range(PLACES):
        found = load(table, place)
        if found == 0:
            return 0
        if found == key:
            copies = words_at(load(table, place + 1), COPIES_WORDS)
            copies[USED] = 1
            for number in range(load(copies, COUNT)):
                pair = PAIRS + 2 * number
                if exchange(copies, pair, 0, 1):
                    if copies[pair + 1] != 0:
                        return address_of(copies) + 8 * pair
                    store(copies, pair, 0)
            return 0
        place = (place + PLACE_WORDS) % (PLACES * PLACE_WORDS)
    return 0


@inner
def give_back_program(pair):
    """Return a program, by the address that `take_program` returned."""
    store(words_at(pair, 1), 0, 0)


@kernel
def set_word(words, place, value):
    """Write a word, after all that was written before."""
    store(words, place, value)


@kernel
def replace_word(words, place, expected, value):
    """Replace a word, if it is what is expected; returns whether it was."""
    return exchange(words, place, expected, value)
