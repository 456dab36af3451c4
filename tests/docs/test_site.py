"""The site is built without a warning, has a page for each public name, and its search finds the field's words. On a
screen and on a phone, in Chromium without a window, nothing is wider, and pictures stand on light."""

import json
import re
import subprocess
import sys

import chromium
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
PAGES = [
    "index", "examples", "tutorials/classifier", "tutorials/pytorch", "how-to/own-cells", "how-to/browser",
    "reference/api", "reference/cells-of-papers", "reference/command-line", "reference/generated/rnnkit.LSTM",
    "explanation/layouts", "explanation/performance", "gallery/gate_over_time", "programs/own-cell",
    "reference/generated/rnnkit.cells.LayerNormLSTM", "reference/glossary",
]  # fmt: skip
TOO_WIDE = """(() => {
    const width = document.documentElement.clientWidth;
    const scrolls = one => ["auto", "scroll"].includes(getComputedStyle(one).overflowX);
    // The article itself may not scroll, as the theme lets it: only a table or code in it.
    const inBox = one => one.tagName !== "ARTICLE" && (scrolls(one) || inBox(one.parentElement));
    const wide = [...document.querySelectorAll("article *")].filter(one =>
        one.getBoundingClientRect().right > width + 1 && !inBox(one.parentElement));
    return [document.documentElement.scrollWidth <= width, wide.map(one => one.outerHTML.slice(0, 80))];
})()"""
DARK_GROUNDS = """[...document.querySelectorAll("article img")].filter(one => {
    const [red, green, blue, alpha = 1] = getComputedStyle(one).backgroundColor.match(/[0-9.]+/g).map(Number);
    return alpha < 1 || Math.min(red, green, blue) < 200;
}).map(one => one.src)"""


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    needs_installed(*NEEDED)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-d", folder / "doctrees", "docs"]
    run = subprocess.run([*command, folder / "html"], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    return folder / "html"


@pytest.mark.weekly
def test_site_has_every_name_and_search_finds_the_pages(html):
    generated = html / "reference" / "generated"
    names = {f"{module}.{name}" for module, names in PUBLIC_OF.items() for name in names}
    assert {path.stem for path in generated.glob("*.html")} == names
    shown = re.sub("<[^>]*>", "", (generated / "rnnkit.RNNDescriptor.html").read_text())
    assert r"n_t &amp;= \tanh(W_n x_t + b_n^W" in shown and "Parameters:" in shown
    scripts = re.findall(r'<script[^>]* src="([^"]*)"', (generated / "rnnkit.cells.LEM.html").read_text())
    assert any("tex-svg.js" in one for one in scripts) and [one for one in scripts if "://" in one] == []
    assert (html / "_static" / "tex-svg.js").stat().st_size > 1_000_000
    drawn = {path.stem: path.read_text() for path in (html / "gallery").glob("*.html")}
    assert len(drawn) >= 12
    wanted = "Total running time", ".ipynb", "sphx-glr-single-img"
    assert {name: one for name, text in drawn.items() if (one := [part for part in wanted if part not in text])} == {}
    index = Index((html / "searchindex.js").read_text())
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


@pytest.fixture(scope="module")
def site(request):
    if chromium.PROGRAM is None:
        pytest.skip("needs Chromium")
    with chromium.served(request.getfixturevalue("html")) as address, chromium.page(f"{address}/index.html") as page:
        yield address, page


def shown(site, name, width, scheme="light"):
    """A page of the site in a window of this width."""
    address, page = site
    page._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    page._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.value("document.title = 'left'")
    page._call("Page.navigate", url=f"{address}/{name}.html")
    page.wait('document.title !== "left" && document.readyState === "complete"')
    page.value("window.MathJax?.startup ? MathJax.startup.promise.then(() => 1) : 1")  # equations are set
    return page


@pytest.mark.weekly
@pytest.mark.parametrize("width", [1400, 390])
def test_no_page_is_wider_than_the_window(site, width):
    found = {name: shown(site, name, width).value(TOO_WIDE) for name in PAGES}
    assert {name: wide for name, wide in found.items() if wide != [True, []]} == {}


@pytest.mark.weekly
def test_pictures_have_a_light_ground_in_dark_mode(site):
    seen = 0
    for name in PAGES:
        page = shown(site, name, 1400, "dark")
        assert page.value("document.documentElement.dataset.theme") == "dark"
        assert page.value(DARK_GROUNDS) == [], name
        seen += page.value('document.querySelectorAll("article img").length')
    assert seen > 5


@pytest.mark.weekly
def test_equations_are_set_without_the_network(site):
    for name in ("reference/generated/rnnkit.cells.LayerNormLSTM", "reference/glossary"):
        page = shown(site, name, 1400)
        assert page.value('document.querySelectorAll("mjx-container svg").length') > 2
        assert page.value('document.querySelectorAll("[data-mjx-error]").length') == 0
        loaded = "performance.getEntriesByType('resource').map(one => one.name)"
        assert page.value(f"{loaded}.filter(one => !one.startsWith(location.origin))") == []
