"""The time of one stress test, its random numbers, and the count of what it tried."""

import time

import numpy as np


class Trial:
    """What a test, or a process that it starts, works with: rounds until the time is spent, `rng`, and a tally."""

    def __init__(self, tally, seconds, seed):
        self.tally, self._end = tally, time.monotonic() + seconds
        self.seed, self.rng = seed, np.random.default_rng(seed)

    @property
    def seconds_left(self):
        return max(self._end - time.monotonic(), 0.0)

    def rounds(self, least=1, most=None):
        """Number the rounds from 0 until the time is spent, or until there were `most`; at least `least`."""
        number = 0
        while number < least or (self.seconds_left > 0 and number != most):
            yield number
            number += 1

    def part(self, seconds):
        """A trial of so many seconds, with random numbers of its own, that counts into the same tally."""
        return Trial(self.tally, seconds, int(self.rng.integers(2**32)))

    def count(self, **tried):
        """Add to what is printed at the end: calls, threads, forks, inputs, bytes, ..."""
        self.tally.update(tried)
