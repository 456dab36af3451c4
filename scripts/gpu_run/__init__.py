"""The parts of `scripts/gpu_first_run.py`, each with a function `run(here)`."""
