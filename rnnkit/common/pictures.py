"""What commands that write a picture share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rnnkit.common import archive
from rnnkit.common.console import CommandError, optional_import


def checked_picture(command: str, option: str, path: str | os.PathLike[str]) -> Path:
    """Return the path of a picture to write, before the work that it shows.

    Raises
    ------
    CommandError, OSError, ValueError
        Matplotlib is missing, the name does not end with .png, or the file cannot be written.
    """
    optional_import(command, "matplotlib")
    found = Path(path)
    if found.suffix.lower() != ".png":
        raise CommandError(f"{command}: {option} must end with .png, got {found}")
    archive.check_target(found)
    return found


def write_picture(command: str, path: Path, figure: Any) -> None:
    """Write a Matplotlib figure; a failed write keeps the old file."""
    with archive.replacing(command, path) as file:
        figure.savefig(file, format="png")
