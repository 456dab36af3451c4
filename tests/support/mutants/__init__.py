"""Faults that are planted one by one, to see that the suite notices each: `python -m mutants` in tests/support/."""
