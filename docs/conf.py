"""The site's configuration: `pip install -e '.[docs]'`, then `python -m sphinx -W -n docs build/site`."""

import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("KERAS_BACKEND", "torch")  # in which the modules of the reference are imported

project = "rnnkit"
author = "the authors of rnnkit"
copyright = "the authors of rnnkit, Apache License 2.0"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "sphinx_copybutton", "sphinx_design"
]  # fmt: skip
exclude_patterns = ["data"]
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sidebars = {"index": [], "examples": []}  # they have no pages below them

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]  # cards have code inside

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc's sections say shapes, which types do not
numpydoc_show_class_members = False  # the template of a class lists them
nitpick_ignore_regex = [("py:.*", r"(?!rnnkit\b).*")]  # what is not ours has no page here

html_theme = "pydata_sphinx_theme"
html_title = f"rnnkit {version}"
html_theme_options = {"navigation_with_keys": False, "show_toc_level": 2, "footer_start": ["copyright"]}

linkcheck_anchors = False
