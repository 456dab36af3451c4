"""The site on a screen and on a phone, in Chromium without a window: nothing is wider, and pictures stand on light."""

import subprocess
import sys

import chromium
import pytest
from installed import needs_installed
from repository import ROOT

NAMES = [
    "index", "examples", "tutorials/classifier", "tutorials/pytorch", "how-to/own-cells", "how-to/browser",
    "reference/api", "reference/cells-of-papers", "reference/command-line", "reference/generated/rnnkit.LSTM",
    "explanation/layouts", "explanation/performance", "gallery/gate_over_time", "programs/own-cell",
    "reference/generated/rnnkit.cells.LayerNormLSTM", "reference/glossary",
]  # fmt: skip
pytestmark = [pytest.mark.weekly, pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Chromium")]
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
def site(tmp_path_factory):
    needs_installed("sphinx", "numpydoc", "myst_parser", "pydata_sphinx_theme", "sphinx_copybutton", "sphinx_design")
    needs_installed("sphinx_gallery", "sphinx-mathjax-offline")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-d", folder / "doctrees", "docs", folder / "html"]
    subprocess.run(command, cwd=ROOT, check=True)
    with chromium.served(folder / "html") as address, chromium.page(f"{address}/index.html") as page:
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


@pytest.mark.parametrize("width", [1400, 390])
def test_no_page_is_wider_than_the_window(site, width):
    found = {name: shown(site, name, width).value(TOO_WIDE) for name in NAMES}
    assert {name: wide for name, wide in found.items() if wide != [True, []]} == {}


def test_pictures_have_a_light_ground_in_dark_mode(site):
    seen = 0
    for name in NAMES:
        page = shown(site, name, 1400, "dark")
        assert page.value("document.documentElement.dataset.theme") == "dark"
        assert page.value(DARK_GROUNDS) == [], name
        seen += page.value('document.querySelectorAll("article img").length')
    assert seen > 5


def test_equations_are_set_without_the_network(site):
    for name in ("reference/generated/rnnkit.cells.LayerNormLSTM", "reference/glossary"):
        page = shown(site, name, 1400)
        assert page.value('document.querySelectorAll("mjx-container svg").length') > 2
        assert page.value('document.querySelectorAll("[data-mjx-error]").length') == 0
        loaded = "performance.getEntriesByType('resource').map(one => one.name)"
        assert page.value(f"{loaded}.filter(one => !one.startsWith(location.origin))") == []
