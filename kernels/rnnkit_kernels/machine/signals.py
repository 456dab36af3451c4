"""Signals wait while LLVM works, and while packages are imported."""

import signal
import threading
from contextlib import contextmanager


@contextmanager
def held():
    """Let signals that Python handles, such as Ctrl-C, wait for the end of a compilation or an import; but a second one
    does not wait.

    llvmlite does not stand an exception between any two of its lines: a module whose owner has changed in C, but not
    yet in Python, is freed twice, and the process crashes, possibly when it ends.
    """
    if threading.current_thread() is not threading.main_thread():  # where no handler runs
        yield
        return
    handlers, came = {}, []

    def wait(number, frame):
        release()
        came.append((number, frame))

    def release():
        for number, handler in handlers.items():
            if signal.getsignal(number) is wait:
                signal.signal(number, handler)

    try:
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler):  # not SIG_DFL, SIG_IGN or a handler in C
                handlers[number] = handler
                signal.signal(number, wait)
        yield
    finally:
        release()
        for number, frame in came:
            handlers[number](number, frame)
