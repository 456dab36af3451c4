"""The site is built without a warning, has a page for each public name, and its search finds the field's words."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from public_names import PUBLIC_OF

ROOT = Path(__file__).resolve().parents[1]
LANDS = {  # what a reader searches for, and the page that must be among the first
    "gradient checkpointing": "how-to/long-sequences",
    "truncated backpropagation": "how-to/long-sequences",
    "variational dropout": "how-to/regularization",
    "quantization": "how-to/reduced-precision",
    "dynamic evaluation": "explanation/language-model",
    "deterministic": "explanation/determinism",
    "work stealing": "explanation/engine",
    "worker thread": "explanation/engine",
    "thread pool": "explanation/engine",
    "wavefront": "explanation/engine",
    "adapter": "how-to/other-libraries",
}
FIRST = 3  # so many of the results count


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if os.environ.get("CI") != "true":
        for module in ("sphinx", "numpydoc", "myst_parser", "pydata_sphinx_theme", "sphinx_copybutton"):
            pytest.importorskip(module)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-d", folder / "doctrees", "docs"]
    run = subprocess.run([*command, folder / "html"], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    return folder / "html"


@pytest.mark.nightly
def test_every_public_name_has_a_page(site):
    pages = {path.stem for path in (site / "reference" / "generated").glob("*.html")}
    assert pages == {f"{module}.{name}" for module, names in PUBLIC_OF.items() for name in names}


@pytest.mark.nightly
def test_equations_and_sections_of_docstrings_are_shown(site):
    shown = (site / "reference" / "generated" / "rnnkit.RNNDescriptor.html").read_text()
    assert "tanh(Wn x + bWn" in shown and "Parameters" in shown


@pytest.mark.nightly
def test_what_readers_search_for_leads_to_its_page(site):
    index = Index((site / "searchindex.js").read_text())
    found = {words: index.search(words)[:FIRST] for words in LANDS}
    assert {words: page for words, page in LANDS.items() if page not in found[words]} == {}, found


class Index:
    """The site's search index, asked as the search page asks it: titles count most, then headings, then text."""

    def __init__(self, text):
        content = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
        self.names, self.titles = content["docnames"], content["titles"]
        self.headings, self.terms, self.title_terms = content["alltitles"], content["terms"], content["titleterms"]

    def search(self, words):
        from snowballstemmer import stemmer

        stems = [stemmer("english").stemWord(word) for word in words.split()]
        every = [self._of(self.terms, stem) | self._of(self.title_terms, stem) for stem in stems]
        scores = {number: 5 + 10 * all(number in self._of(self.title_terms, stem) for stem in stems)
                  for number in set.intersection(*every)}
        for heading, places in self.headings.items():
            if words in heading.lower():
                for number, anchor in places:
                    scores[number] = max(scores.get(number, 0), 100 * len(words) // len(heading) + 15 * (anchor is None))
        return [self.names[number] for number in sorted(scores, key=lambda number: (-scores[number], number))]

    def _of(self, terms, stem):
        found = terms.get(stem, [])
        return set(found if isinstance(found, list) else [found])
