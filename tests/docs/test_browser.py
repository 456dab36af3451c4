"""The page of a language model as WebAssembly, in Chromium without a window."""

import shutil
from itertools import islice

import chromium
import numpy as np
import pytest
from repository import ROOT

import rnnkit
from examples.browser.export import export
from rnnkit.language_model.model import TextModel
from rnnkit.language_model.sampling import generate

PAGE = ROOT / "docs" / "_static" / "browser"
TEXT = 'document.getElementById("text").textContent'
SPEED = 'document.getElementById("speed").value'
pytestmark = [pytest.mark.weekly, pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Chromium")]
has_clang = shutil.which("clang") and shutil.which("wasm-ld")


def test_page_of_the_site_writes_text():
    """And says how fast; both forms; a screenshot has more than one colour."""
    with chromium.served(PAGE) as address, chromium.page(f"{address}/index.html?seed=1") as page:
        page.wait('!document.getElementById("start").disabled')
        for form in ("exact", "plain"):
            chosen = f'document.querySelector("input[value={form}]").click()'
            page.value(f'{chosen}; document.querySelector("button").click()')
            page.wait(f'document.body.dataset.done === "{form}"')
            text = page.value(TEXT)
            assert text.startswith("## How to ") and len(set(text)) > 20 and len(text) > 1900
            assert int(page.value(SPEED).split()[0].replace(",", "")) > 500
        assert "write the same" in page.value('document.getElementById("agreement").value')
        assert len(page.screenshot()) > 5000


@pytest.mark.skipif(not has_clang, reason="needs clang and lld")
@pytest.mark.parametrize(("kind", "seed"), [("lstm", 4), ("gru", 3)])
def test_page_writes_what_rnnkit_writes(tmp_path, kind, seed):
    """Of an untrained model whose scores are far apart, at temperature 0, in the form with the bits of rnnkit."""
    alphabet = np.frombuffer(b" abcdefghijklmnop", np.uint8)
    model = TextModel.random(rnnkit.RNNDescriptor(kind, 8, 24), seed, alphabet)
    model.parameters.flat[:] *= 3
    model.save(tmp_path / "model.npz")
    export(tmp_path / "model.npz", tmp_path / "page")
    prompt = "deaf cabbage "
    expected = bytes(islice(generate(model, prompt.encode(), 0), 2000)).decode()
    assert len(set(expected)) > 10
    query = f"index.html?temperature=0&prompt={prompt.replace(' ', '%20')}"
    with chromium.served(tmp_path / "page") as address, chromium.page(f"{address}/{query}") as page:
        page.wait('document.body.dataset.done === "exact"')
        assert page.value(TEXT) == prompt + expected


def test_missing_model_is_said(tmp_path):
    for name in ("index.html", "app.js"):
        shutil.copy(PAGE / name, tmp_path)
    with chromium.served(tmp_path) as address, chromium.page(f"{address}/index.html") as page:
        page.wait(f'{TEXT}.includes("cannot be loaded")')
        assert "404" in page.value(TEXT)
