"""Packages that only some tests need. Without one they are skipped, but not in continuous integration."""

import os
import re
from importlib import import_module

import pytest

IN_CI = os.environ.get("CI") == "true"
OPTIONAL = (
    *("torch", "docutils", "keras", "matplotlib", "onnx", "onnxruntime", "safetensors", "scipy", "sklearn"),
    "torchrecurrent",
)


def needs(*names):
    """Return the first of these packages, or skip the test if one is missing."""
    found = [import_module(name) if IN_CI else pytest.importorskip(name) for name in names]
    return found[0]


def skipped_without(report):
    """Skip a file that imports such a package at its top: `report` is that of its import."""
    found = (
        report.failed and not IN_CI and re.search(r"ModuleNotFoundError: No module named '(\w+)", str(report.longrepr))
    )
    if found and found[1] in OPTIONAL:
        report.outcome, report.longrepr = "skipped", (report.nodeid, None, f"needs {found[1]}")
    return report
