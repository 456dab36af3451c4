"""How fast rnnkit is: as a share of what this machine can do, and beside other engines. See `python -m perf --help`."""
