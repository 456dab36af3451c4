"""Hypothesis profiles: few examples while developing, more and always the same ones in continuous integration."""

import os

from hypothesis import HealthCheck, settings

# A first example may compile kernels, hence no deadline. Rejecting problems near a kink is meant, hence no check of it.
COMMON = dict(deadline=None, suppress_health_check=[HealthCheck.filter_too_much])

settings.register_profile("dev", max_examples=10, **COMMON)
settings.register_profile("ci", max_examples=50, derandomize=True, print_blob=True, **COMMON)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")
