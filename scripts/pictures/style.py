"""The look of all pictures: one palette, one canvas in pixels from the top left, and how a picture becomes a file.

A white card lies behind each, so that it reads on a dark page. The palette is Okabe and Ito's, which colour-blind
readers can tell apart; no picture says by colour alone what it does not say in words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, PathPatch, Rectangle
from matplotlib.path import Path as Outline

INK, MUTED, LINE, PALE, PAPER = "#1f2a37", "#5f6b7a", "#c3cad3", "#eef1f5", "#ffffff"
BLUE, ORANGE, GREEN, PURPLE, SKY = "#0072b2", "#d55e00", "#009e73", "#a4508b", "#56b4e9"

_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "rnnkit", "font.family": "DejaVu Sans", "text.parse_math": False}
# Drawn as text: the file is small, and a reader can select it. Readers' own fonts are no wider than the one that the
# picture is laid out with, which stands last.
_SANS = "'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
_MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def tint(colour: str, share: float = 0.18) -> str:
    """The colour on white, so much of it."""
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * share):02x}" for part in parts)


class Canvas:
    """A white card of so many pixels; x goes right, y goes down."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.size, self.title = (width, height), title
        self._figure = Figure(figsize=(width / 72, height / 72), dpi=72, facecolor="none")
        self._axes = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set(xlim=(0, width), ylim=(height, 0))
        self._axes.axis("off")
        self.box(1, 1, width - 2, height - 2, fill=PAPER, edge=PALE, corner=10, layer=0)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "none",
        edge: str = "none",
        line: float = 1,
        corner: float = 0,
        dashed: bool = False,
        hatch: str | None = None,
        layer: float = 1,
    ) -> None:
        style = {
            "facecolor": fill, "edgecolor": edge, "linewidth": line, "zorder": layer, "hatch": hatch,
            "linestyle": (0, (4, 3)) if dashed else "-",
        }  # fmt: skip
        if corner:
            shape = f"round,pad=0,rounding_size={corner}"
            self._add(FancyBboxPatch((x, y), width, height, boxstyle=shape, **style))
        else:
            self._add(Rectangle((x, y), width, height, **style))

    def _add(self, patch: Any) -> None:
        self._axes.add_patch(patch).set_clip_on(False)  # or each would name its clip path in the file

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 12,
        colour: str = INK,
        bold: bool = False,
        align: str = "left",
        mono: bool = False,
        layer: float = 5,
    ) -> None:
        """One line of text, the middle of its capitals at y: no font is measured, which each FreeType does its way."""
        family = "DejaVu Sans Mono" if mono else "DejaVu Sans"
        self._axes.text(
            x, y + 0.36 * size, words, fontsize=size, color=colour, weight="bold" if bold else "normal", family=family,
            ha=align, va="baseline", zorder=layer,
        )  # fmt: skip

    def lines(self, x: float, y: float, rows: Sequence[str], *, leading: float = 17, **style: object) -> None:
        """Lines of text below each other, the first at y."""
        for number, row in enumerate(rows):
            self.text(x, y + number * leading, row, **style)

    def path(
        self,
        points: Sequence[tuple[float, float]],
        *,
        colour: str = INK,
        line: float = 1,
        dashed: bool = False,
        fill: str = "none",
        layer: float = 2,
    ) -> None:
        style = (0, (4, 3)) if dashed else "-"
        patch = PathPatch(
            Outline(points), edgecolor=colour, linewidth=line, linestyle=style, facecolor=fill, zorder=layer,
            capstyle="butt", joinstyle="round",
        )  # fmt: skip
        self._add(patch)

    def arrow(
        self,
        *points: tuple[float, float],
        colour: str = INK,
        line: float = 1.4,
        dashed: bool = False,
        curve: float = 0,
        head: float = 7,
        layer: float = 3,
    ) -> None:
        """Along straight lines between the points, or curved between two."""
        *way, end = points
        if len(way) > 1:
            self.path([*way], colour=colour, line=line, dashed=dashed, layer=layer)
        patch = FancyArrowPatch(
            way[-1], end, arrowstyle=f"-|>,head_length={head},head_width={head * 0.45}", color=colour, linewidth=line,
            linestyle=(0, (4, 3)) if dashed else "-", shrinkA=0, shrinkB=0, mutation_scale=1, zorder=layer,
            connectionstyle=f"arc3,rad={curve}", joinstyle="miter", capstyle="butt",
        )  # fmt: skip
        self._add(patch)

    def dots(self, points: Sequence[tuple[float, float]], colour: str, *, radius: float = 4, marker: str = "o") -> None:
        """Marks with a white rim, so that those that overlap are told apart."""
        xs, ys = zip(*points, strict=True) if points else ((), ())
        self._axes.plot(
            xs, ys, linestyle="none", marker=marker, markersize=2 * radius, color=colour, markeredgecolor=PAPER,
            markeredgewidth=0.8, zorder=4, clip_on=False,
        )  # fmt: skip

    def save(self, path: Path) -> None:
        """Write the same bytes each time: no date, and names from a fixed salt."""
        facts = {"Date": None, "Title": self.title, "Creator": f"Matplotlib {matplotlib.__version__}"}
        with matplotlib.rc_context(_SETTINGS):
            FigureCanvasSVG(self._figure).print_svg(path, metadata=facts)
        text = path.read_text(encoding="utf-8")
        path.write_text(_finished(text), encoding="utf-8", newline="\n")


def _finished(text: str) -> str:
    """The file with pixels, readers' fonts, and without what says nothing."""
    text = re.sub(r"<svg [^>]*>", lambda found: re.sub(r'(\d)pt"', r'\1"', found[0]), text, count=1)
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = text.replace(" font-family: 'DejaVu Sans';", "").replace("'DejaVu Sans Mono';", f"{_MONO};")
    return text.replace("</style>", f" text{{font-family: {_SANS}}}</style>", 1)
