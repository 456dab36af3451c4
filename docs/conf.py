"""The site's configuration: `pip install -e '.[docs]'`, then `python -m sphinx -W -n docs build/site`."""

import os
import sys
import tomllib
from importlib.metadata import files
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from docs.tools.gallery import runnable  # noqa: E402

os.environ.setdefault("KERAS_BACKEND", "torch")  # in which the modules of the reference are imported

project = "rnnkit"
author = "the authors of rnnkit"
copyright = "the authors of rnnkit, Apache License 2.0"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.mathjax", "numpydoc",
    "sphinx_copybutton", "sphinx_design", "sphinx_gallery.gen_gallery", "docs.tools.equations", "docs.tools.gallery",
]  # fmt: skip
exclude_patterns = ["data", "tools", "gallery/index.rst"]  # examples.md has the cards
templates_path = ["_templates"]
[mathjax] = [one for one in files("sphinx-mathjax-offline") if one.match("mathjax/tex-svg.js")]
html_static_path = ["_static", str(mathjax.locate())]  # the site has its own copy: reading needs no network
mathjax_path = "tex-svg.js"  # MathJax 3.2.2, Apache License 2.0: one file, fonts included
# Equations keep their size where a page is narrow, and scroll. The menu would load what the copy lacks.
mathjax3_config = {"options": {"enableMenu": False}}
html_css_files = ["site.css"]
html_sidebars = {"index": [], "examples": []}  # they have no pages below them

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "dollarmath"]  # cards have code inside; mathematics as on GitHub

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc's sections say shapes, which types do not
numpydoc_show_class_members = False  # the template of a class lists them
nitpick_ignore_regex = [("py:.*", r"(?!rnnkit\b).*")]  # what is not ours has no page here

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery/programs", "gallery_dirs": "gallery",
    "filename_pattern": runnable(),  # programs whose packages are missing are shown without output
    "download_all_examples": False, "write_computation_times": False, "show_signature": False,
    "remove_config_comments": True, "reset_modules": ("matplotlib",),
}  # fmt: skip

html_theme = "pydata_sphinx_theme"
html_title = f"rnnkit {version}"
html_theme_options = {"navigation_with_keys": False, "show_toc_level": 2, "footer_start": ["copyright"]}

linkcheck_anchors = False
