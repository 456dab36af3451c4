"""The hostile trial as a suite: every test goes on with new random work until its share of the minutes is spent.

`python -m pytest -m stress` takes two hours, `--stress-minutes 5` five. At the end stands what was tried.
"""

import os
from collections import Counter

import pytest
from child import run_child
from clock import Trial
from warm import compile_every_kernel

_TALLY = pytest.StashKey[Counter]()
_SHARES = pytest.StashKey[float]()


def pytest_configure(config):
    config.stash[_TALLY] = Counter()


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.path.is_relative_to(os.path.dirname(__file__)):
            item.add_marker(pytest.mark.stress)


def pytest_collection_finish(session):
    shares = [_share(item) for item in session.items if item.get_closest_marker("stress")]
    session.config.stash[_SHARES] = sum(shares)


def _share(item):
    """What a test takes of the time, relative to the others: `pytest.mark.share(3)`; 1 where it does not say."""
    marker = item.get_closest_marker("share")
    return marker.args[0] if marker else 1


@pytest.fixture(scope="session")
def warm(request):
    """Every kernel is in the cache before the first test's time begins: children load, and need not compile."""
    run_child(Trial(Counter(), 0, 0), compile_every_kernel, limit=3600)


@pytest.fixture
def trial(request, warm):
    """The test's share of the minutes; a failure says the seed, `--stress-seed` repeats it."""
    config = request.config
    seconds = 60 * config.getoption("--stress-minutes") * _share(request.node) / config.stash[_SHARES]
    seed = config.getoption("--stress-seed")
    seed = int.from_bytes(os.urandom(4)) if seed is None else seed
    print(f"--stress-seed {seed}")  # shown with a failure
    return Trial(config.stash[_TALLY], seconds, seed)


def pytest_terminal_summary(terminalreporter, config):
    tally = config.stash[_TALLY]
    if tally:
        tried = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(tally.items()))
        terminalreporter.write_line(f"tried: {tried}")
