"""Measure rnnkit's speed: as a share of this machine's peak, and against other engines. See `python -m perf --help`."""
