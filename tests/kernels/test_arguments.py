"""What decides about the machine code of a kernel is told from its arguments."""

from itertools import product
from typing import NamedTuple

import numba
import numpy as np
import pytest
from messages import says
from numba import _dispatcher, types

from rnnkit_kernels.machine import arguments, thread_pool
from rnnkit_kernels.machine import compiler as chosen
from rnnkit_kernels.machine.arguments import types_of
from rnnkit_kernels.machine.arrays import FlatArray, signature_of
from rnnkit_kernels.machine.jit import kernel
from rnnkit_kernels.machine.matrix import Matrix, Range


def _named(name, *fields):
    """A class of named tuples, another one each time."""
    return NamedTuple(name, [(field, object) for field in fields])


ONE, OTHER = _named("Cell", "a"), _named("Cell", "a")
A, ROWS = np.zeros(3), np.zeros(3, np.int64)
APART = [1, 1.0, True, np.float32(1), A, ROWS, A.astype(np.float32), A > 0, A.reshape(1, 3)]
APART += [(), (1,), (1, 1), ((1,),), ((1,), 1), (1, (1,)), ((), (1,)), ((1,), ()), (A, 1), (1, A), (1, 1.0)]
APART += [ONE(1), OTHER(1), ONE(1.0), ONE(A), ONE(ROWS), ONE(OTHER(1)), ONE(ONE(1))]
APART += [(ONE(1), OTHER(1)), (OTHER(1), ONE(1)), _named("Cell", "b")(1), _named("Cella", "b")(1)]
APART += [Matrix(A, ROWS, 0, 1), Matrix(ROWS, ROWS, 0, 1), Range(0, 1)]
APART += [_named("One", "a", "bi")(1, 1), _named("One", "aib", "i")(1, 1)]
APART += [_named("\u00c9lan", "a")(1), _named("lan", "a")(1)]


class Own(np.ndarray):
    pass


@kernel
def _write_number(target, cell, thread_id, size, sync):
    target[0] = 1


def key_of(*arguments):
    return types_of(_write_number, arguments)


def _slow(values):
    return tuple(map(numba.typeof, values))


@pytest.mark.parametrize("look", [chosen.FINGERPRINT, _slow])
def test_types_that_differ_are_told_apart(monkeypatch, look):
    """Also where classes of tuples have one name and the same fields, which Numba's quick look takes for one."""
    monkeypatch.setattr(arguments, "FINGERPRINT", look)
    for known in (APART, list(product(APART, repeat=2))):
        assert len(set(map(key_of, known))) == len(known)


def test_slow_fingerprint_replaces_a_missing_one(monkeypatch):
    assert chosen.FINGERPRINT is _dispatcher.compute_fingerprint
    monkeypatch.delattr(_dispatcher, "compute_fingerprint")
    assert chosen._fingerprint()((1.0, A)) == (numba.float64, numba.typeof(A))


NUMBERS = np.arange(12.0)
ALIKE = [(1, -5), (1, 1 << 62), (0.0, np.inf), (True, False), (A, NUMBERS[3:5]), (A, np.empty(0)), (A, A.view(Own))]
ALIKE += [(A.reshape(1, 3), NUMBERS.reshape(4, 3)), (np.zeros((2, 0)), NUMBERS.reshape(3, 4)), (ONE(A), ONE(NUMBERS))]


def test_types_do_not_depend_on_values_and_sizes():
    for one, other in ALIKE:
        assert key_of(one) == key_of(other)
        assert numba.typeof(one) == numba.typeof(other)


READ_ONLY = np.zeros(3)
READ_ONLY.flags.writeable = False
ARRAYS, OTHERS = ["arrays", "C-contiguous"], ["arguments", "numbers", None, "arrays", "tuples"]
REFUSED = {
    "strided": (np.zeros(6)[::2], [*ARRAYS, (16,), (3,), "writeable=True"]),
    "Fortran": (np.zeros((2, 3)).T, [*ARRAYS, (8, 24), (3, 2), "writeable=True"]),
    "read-only": (READ_ONLY, [*ARRAYS, (8,), (3,), "writeable=False"]),
    "list": ([1.0], [*OTHERS, "list"]),
    "bytes": (b"", [*OTHERS, "bytes"]),
    "short": (np.int32(1), [*OTHERS, "int32"]),
}


@pytest.mark.parametrize(("wrong", "facts"), REFUSED.values(), ids=REFUSED)
def test_argument_of_a_type_without_kernels_is_refused(wrong, facts):
    """Wherever it stands, also after calls with what is right."""
    thread_pool.run(_write_number, 1, np.zeros(1), ONE(A))
    for given in ((wrong, ONE(5)), (np.zeros(1), ONE(wrong))):
        with pytest.raises(TypeError, match=says("_write_number:", *facts)):
            thread_pool.run(_write_number, 1, *given)


def test_only_arrays_of_one_dimension_are_flat_types():
    numbers, matrix, pair = np.zeros(3, np.float32), np.zeros((2, 3)), _named("Pair", "source", "target")
    found = signature_of((pair(numbers, (numbers, 1)), matrix, 2.0, (), pair(1, 2)))
    reals = FlatArray(types.float32)
    assert found[0] == types.NamedTuple([reals, types.Tuple([reals, types.int64])], pair)
    assert found[1:] == tuple(map(numba.typeof, (matrix, 2.0, (), pair(1, 2))))
    assert signature_of((ONE(A),)) != signature_of((OTHER(A),))
