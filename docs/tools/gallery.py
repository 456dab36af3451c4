"""A Sphinx extension for the gallery: which of its programs run, and cards
with a picture, the title and two lines of each.

`gallery-cards` is a directive around a list of links. On GitHub a reader
sees the list. A program of the gallery shows its own picture, a page of
`docs/programs` what its program prints.
"""

import ast
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.util import logging

DOCS = Path(__file__).resolve().parents[1]
PROGRAMS = DOCS.parent / "examples" / "gallery" / "programs"
OPTIONAL = "jax", "keras", "onnx", "onnxruntime", "sklearn", "torch"
MORE_NEEDS = {"amplifier_waveform": ["cc"], "onnx_file": ["onnx"]}
MORE_NEEDS["keras_model"] = ["torch"]
LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")


def needs_of(path):
    """The optional packages that a program needs; "cc" is a C compiler."""
    imported = re.findall(r"^(?:import|from) (\S+)", path.read_text(), re.M)
    parts = {part for name in imported for part in name.split(".")}
    found = [name for name in OPTIONAL if name in parts]
    return [*found, *MORE_NEEDS.get(path.stem, [])]


def missing_of(path):
    """What a program needs and this machine lacks."""
    is_there = {"cc": shutil.which("cc")}
    return [
        n for n in needs_of(path) if not (is_there.get(n) or find_spec(n))
    ]


def programs():
    """The programs of the gallery."""
    return sorted(PROGRAMS.glob("[!_]*.py"))


def runnable():
    """A pattern of the programs that this machine can run."""
    names = [path.stem for path in programs() if not missing_of(path)]
    return rf"/({'|'.join(names)})\.py"


def described(path):
    """The title and the first paragraph of a program or a page."""
    text = path.read_text()
    if path.suffix == ".py":
        title, _, text = ast.get_docstring(ast.parse(text)).partition("\n")
        text = text.partition("\n\n")[2]
    else:
        title, _, text = text.removeprefix("# ").partition("\n\n")
    text = " ".join(text.partition("\n\n")[0].split())
    return title, LINK.sub(r"\1", text)


def printed(path):
    """What a page says that its program prints."""
    return re.search(
        r"^```text\n(.*?)^```$", path.read_text(), re.M | re.S
    )[1]


class Cards(Directive):
    """Cards of the programs and pages of a list of links."""

    has_content = True

    def run(self):
        lines = [":::::{grid} 1 2 2 3", ":gutter: 3", ""]
        folder = DOCS
        for title, target in LINK.findall("\n".join(self.content)):
            path = (folder / target).resolve()
            own, text = described(path)
            assert own == title, f"{target}: the title is {own!r}"
            if path.suffix == ".py":
                page = f"gallery/{path.stem}"
                name = f"sphx_glr_{path.stem}_thumb.png"
                picture = f"gallery/images/thumb/{name}"
            else:
                page = str(path.relative_to(DOCS).with_suffix(""))
                picture = f"gallery/printed/{path.stem}.png"
            lines += ["::::{grid-item-card} " + title, f":link: /{page}"]
            lines += [":link-type: doc", f":img-top: /{picture}"]
            lines += [f":img-alt: The picture of {title}", "", text]
            lines += ["::::", ""]
        found = nodes.Element()
        content = StringList([*lines, ":::::"], source="")
        self.state.nested_parse(content, self.content_offset, found)
        return found.children


def draw_printed(app):
    """Draw what the programs of `docs/programs` print, for their cards."""
    from matplotlib.figure import Figure

    folder = DOCS / "gallery" / "printed"
    folder.mkdir(parents=True, exist_ok=True)
    for page in (DOCS / "programs").glob("*.md"):
        picture = folder / f"{page.stem}.png"
        if (
            picture.exists()
            and picture.stat().st_mtime > page.stat().st_mtime
        ):
            continue
        figure = Figure((4, 2.8), facecolor="#f6f6f8")
        lines = [line[:60] for line in printed(page).splitlines()[:14]]
        size = 9.5 if max(map(len, lines)) < 48 else 7.5
        text = {"family": "monospace", "size": size, "linespacing": 1.5}
        figure.text(0.04, 0.5, "\n".join(lines), va="center", **text)
        figure.savefig(picture, dpi=100)


def say_missing(app):
    """Say which programs of the gallery are shown without their output."""
    for path in programs():
        if missing := missing_of(path):
            text = "gallery: %s is shown without output: it needs %s"
            logger = logging.getLogger(__name__)
            logger.info(text, path.name, ", ".join(missing))


def setup(app):
    app.add_directive("gallery-cards", Cards)
    app.connect("builder-inited", draw_printed, priority=400)
    app.connect("builder-inited", say_missing)
    return {"parallel_read_safe": True}
