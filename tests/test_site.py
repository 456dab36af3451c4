"""The site is built without a warning, has a page for each public name, and its search finds the field's words."""

import json
import os
import re
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


@pytest.mark.nightly
def test_the_site(tmp_path):
    if os.environ.get("CI") != "true":
        for module in ("sphinx", "numpydoc", "myst_parser", "pydata_sphinx_theme", "sphinx_copybutton"):
            pytest.importorskip(module)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-d", tmp_path / "doctrees", "docs"]
    run = subprocess.run([*command, tmp_path / "html"], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    generated = tmp_path / "html" / "reference" / "generated"
    names = {f"{module}.{name}" for module, names in PUBLIC_OF.items() for name in names}
    assert {path.stem for path in generated.glob("*.html")} == names
    shown = re.sub("<[^>]*>", "", (generated / "rnnkit.RNNDescriptor.html").read_text())
    assert "n = tanh(Wn x + bWn" in shown and "Parameters:" in shown
    index = Index((tmp_path / "html" / "searchindex.js").read_text())
    found = {words: index.search(words)[:FIRST] for words in LANDS}
    assert {words: found[words] for words, page in LANDS.items() if page not in found[words]} == {}


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
        scores = {
            number: 5 + 10 * all(number in pages for pages in in_title) for number in set.intersection(*every)
        }
        for heading, places in self.headings.items():
            if words in heading.lower():
                for number, anchor in places:
                    scores[number] = max(scores.get(number, 0), 100 * len(words) // len(heading) + 15 * (not anchor))
        return [self.names[number] for number in sorted(scores, key=lambda number: (-scores[number], number))]

    def _of(self, terms, stem):
        found = terms.get(stem, [])
        return set(found if isinstance(found, list) else [found])
