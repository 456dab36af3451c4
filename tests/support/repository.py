"""Where the repository's files are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS, SUPPORT = ROOT / "tests", ROOT / "tests" / "support"
