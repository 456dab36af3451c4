"""What the stand-in for libcudnn answers with: statuses, refusals, and the numbers of its enumerations."""

import ctypes

SUCCESS, BAD_PARAM, NULL_POINTER, NOT_SUPPORTED, EXECUTION_FAILED = 0, 2000, 2002, 3000, 5000
STANDARD, PERSIST_STATIC, SMALL_H = 0, 1, 3
UNPACKED, PACKED = 0, 1  # of the layouts
PRECISIONS = {(0, 0), (1, 1), (2, 0), (2, 2), (9, 0)}  # of data and of arithmetic
MODES = ("rnn_relu", "rnn_tanh", "lstm", "gru")
BIASES = ("none", "input", "both", "recurrent")
WORK_NBYTES, STATES_NBYTES = 4096, 64
LISTENER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Refusal(Exception):
    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status


def require(condition, reason, status=BAD_PARAM):
    if not condition:
        raise Refusal(status, reason)
