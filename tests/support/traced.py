"""Memory, as tracemalloc counts it: that of Python and NumPy."""

import tracemalloc


def traced_bytes(call):
    """Return how many bytes are held after a call, and the most at once, beyond what was held before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
