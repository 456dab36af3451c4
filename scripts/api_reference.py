"""Write the API reference, one HTML page a module, by pdoc (extra `docs`): `python scripts/api_reference.py FOLDER`.

A module whose framework is not installed is left out, and named.
"""

import argparse
import importlib
import warnings
from pathlib import Path

import pdoc

import rnnkit

MODULES = ("training", "cells", "compression", "interop", "distributed", "sklearn", "torch")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    folder = parser.parse_args().folder
    # pdoc reads it for what a package has; `rnnkit/__init__.py` says why there is none.
    rnnkit.__all__ = [*public_names(), *filter(importable, MODULES)]
    pdoc.render.configure(docformat="numpy")
    pdoc.doc_pyi.find_stub_file = lambda module: None  # a stub has no docstrings, but pdoc would show them
    warnings.filterwarnings("ignore", "Error parsing type annotation")  # it shows the annotation's text instead
    pdoc.pdoc("rnnkit", output_directory=folder)
    print(f"saved     {folder / 'index.html'}")


def public_names():
    """In the order of the package's docstring."""
    things = vars(rnnkit).items()
    found = [name for name, thing in things if getattr(thing, "__module__", "").startswith("rnnkit.")]
    return sorted(found, key=rnnkit.__doc__.index)


def importable(name):
    """Whether the module is; says why not."""
    try:
        importlib.import_module(f"rnnkit.{name}")
    except ImportError as error:
        print(f"left out  rnnkit.{name}: {error}")
        return False
    return True


if __name__ == "__main__":
    main()
