"""Lets pytest show what an assertion of a module in this folder has compared. It comes before those are imported."""

from pathlib import Path

import pytest

NAMES = {path.stem for path in Path(__file__).parent.glob("*.py")}
pytest.register_assert_rewrite(*NAMES - {"assertions"})
