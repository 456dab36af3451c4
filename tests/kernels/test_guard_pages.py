"""Arrays that end where their memory ends: whoever reads or writes one number more ends the process."""

import ctypes
import mmap
import sys

import numpy as np
import pytest
from combinations import nightly

import rnnkit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mprotect is called with Linux's flags")
PAGE = mmap.PAGESIZE


@pytest.fixture
def at_end():
    """Copies an array to the end of a page, behind which is one that nobody may touch."""
    libc, memories = ctypes.CDLL(None, use_errno=True), []

    def copied(array):
        pages = -(-array.nbytes // PAGE)
        memories.append(mmap.mmap(-1, (pages + 1) * PAGE))
        guard = ctypes.addressof(ctypes.c_char.from_buffer(memories[-1])) + pages * PAGE
        assert libc.mprotect(ctypes.c_void_p(guard), PAGE, 0) == 0
        place = (ctypes.c_char * array.nbytes).from_address(guard - array.nbytes)
        found = np.frombuffer(place, array.dtype).reshape(array.shape)
        found[...] = array
        return found

    return copied


SIZES = [(1, 1, 5, 5), (1, 9, 5, 3), (3, 4, 17, 7), (1, 1, 33, 16), (5, 8, 20, 9), (40, 3, 18, 5), (2, 20, 70, 40)]
MODES = [("gru", "float32"), nightly("lstm", "float64"), nightly("rnn_tanh", "float32")]


@pytest.mark.parametrize(("seq_len", "batch_size", "hidden_size", "input_size"), SIZES)
@pytest.mark.parametrize(("mode", "dtype"), MODES)
def test_memory_behind_an_array_is_not_touched(at_end, mode, dtype, seq_len, batch_size, hidden_size, input_size):
    """Without biases the last row of R is the last of the weights."""
    for bias in ("none", "both"):
        desc = rnnkit.RNNDescriptor(mode, input_size, hidden_size, bias=bias, dtype=dtype)
        w, x = at_end(rnnkit.init_weights(desc, seed=0)), at_end(np.ones((seq_len, batch_size, input_size), dtype))
        result = rnnkit.forward(desc, w, x)
        rnnkit.backward(desc, w, result.workspace, at_end(np.ones_like(result.y)), dw=at_end(np.zeros_like(w)))
        assert rnnkit.infer(desc, w, x).y.tobytes() == result.y.tobytes()
