"""The guides of the documentation, and their code."""

import re

from repository import ROOT

README = ROOT / "README.md"
DOCS = README.parent / "docs"
NEEDS = {  # a page whose code needs more than NumPy
    "tutorials/pytorch": ["torch"],
    "tutorials/cell-from-a-paper": ["torch"],
    "tutorials/classifier": ["matplotlib"],
    "tutorials/streaming": ["matplotlib"],
    "how-to/episodes": ["torch"],
    "how-to/export-c": ["cc"],
    "how-to/initial-states": ["torch"],
    "how-to/keras": ["torch", "keras"],
    "tutorials/keras": ["torch", "keras"],
    "how-to/look-inside": ["matplotlib"],
    "how-to/masks": ["torch"],
    "how-to/mixed-precision": ["torch"],
    "how-to/own-cells": ["torch"],
    "how-to/regularization": ["torch"],
    "how-to/scikit-learn": ["sklearn"],
    "how-to/other-libraries": ["torch", "keras", "onnx", "onnxruntime", "safetensors"],
}
# Pages whose code other tests run: test_readme.py, test_call_options.py, test_gallery.py, jax/inside_flax.py.
ELSEWHERE = {"explanation/engine", "explanation/layouts", "how-to/gpu", "how-to/jax", "tutorials/jax"}
PAGES = {str(path.relative_to(DOCS).with_suffix("")): path for path in sorted(DOCS.rglob("*.md"))}
GUIDES = [name for name, path in PAGES.items() if "\n```python\n" in path.read_text() and name not in ELSEWHERE]


def blocks_of(name, kind):
    text = PAGES[name].read_text()
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
