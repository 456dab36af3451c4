"""The site is built without a warning, has a page for each public name, and its search finds the field's words."""

import json
import re
import subprocess
import sys

import pytest
from installed import needs_installed
from public_names import PUBLIC_OF
from repository import ROOT

LANDS = {  # a page, and what a reader searches for who must find it among the first
    "how-to/long-sequences": ("gradient checkpointing", "truncated backpropagation"),
    "how-to/regularization": ("variational dropout",),
    "how-to/reduced-precision": ("quantization",),
    "how-to/other-libraries": ("adapter",),
    "explanation/language-model": ("dynamic evaluation",),
    "explanation/determinism": ("deterministic",),
    "explanation/engine": ("work stealing", "worker thread", "thread pool", "wavefront"),
}
FIRST = 3  # so many of the results count
NEEDED = (
    "sphinx", "numpydoc", "myst_parser", "pydata_sphinx_theme", "sphinx_copybutton", "sphinx_design",
    "sphinx_gallery", "sphinx-mathjax-offline",
)  # fmt: skip


@pytest.mark.nightly
def test_site_has_every_name_and_search_finds_the_pages(tmp_path):
    needs_installed(*NEEDED)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-d", tmp_path / "doctrees", "docs"]
    run = subprocess.run([*command, tmp_path / "html"], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    generated = tmp_path / "html" / "reference" / "generated"
    names = {f"{module}.{name}" for module, names in PUBLIC_OF.items() for name in names}
    assert {path.stem for path in generated.glob("*.html")} == names
    shown = re.sub("<[^>]*>", "", (generated / "rnnkit.RNNDescriptor.html").read_text())
    assert r"n_t &amp;= \tanh(W_n x_t + b_n^W" in shown and "Parameters:" in shown
    scripts = re.findall(r'<script[^>]* src="([^"]*)"', (generated / "rnnkit.cells.LEM.html").read_text())
    assert any("tex-svg.js" in one for one in scripts) and [one for one in scripts if "://" in one] == []
    assert (tmp_path / "html" / "_static" / "tex-svg.js").stat().st_size > 1_000_000
    drawn = {path.stem: path.read_text() for path in (tmp_path / "html" / "gallery").glob("*.html")}
    assert len(drawn) >= 12
    wanted = "Total running time", ".ipynb", "sphx-glr-single-img"
    assert {name: one for name, text in drawn.items() if (one := [part for part in wanted if part not in text])} == {}
    index = Index((tmp_path / "html" / "searchindex.js").read_text())
    found = {(page, words): index.search(words)[:FIRST] for page, several in LANDS.items() for words in several}
    assert {asked: pages for asked, pages in found.items() if asked[0] not in pages} == {}


class Index:
    """The site's search index, asked as the search page asks it: titles count most, then headings, then text."""

    def __init__(self, text):
        content = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
        self.names, self.headings = content["docnames"], content["alltitles"]
        self.terms, self.title_terms = content["terms"], content["titleterms"]

    def search(self, words):
        from snowballstemmer import stemmer

        stems = [stemmer("english").stemWord(word) for word in words.split()]
        every = [self._of(self.terms, stem) | self._of(self.title_terms, stem) for stem in stems]
        in_title = [self._of(self.title_terms, stem) for stem in stems]
        scores = {number: 5 + 10 * all(number in pages for pages in in_title) for number in set.intersection(*every)}
        for heading, places in self.headings.items():
            if words in heading.lower():
                for number, anchor in places:
                    scores[number] = max(scores.get(number, 0), 100 * len(words) // len(heading) + 15 * (not anchor))
        return [self.names[number] for number in sorted(scores, key=lambda number: (-scores[number], number))]

    def _of(self, terms, stem):
        found = terms.get(stem, [])
        return set(found if isinstance(found, list) else [found])
