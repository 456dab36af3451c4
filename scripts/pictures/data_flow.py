"""The way of x to y and back, through one layer and direction; and how layers and directions follow each other."""

from __future__ import annotations

from rnnkit import RNNDescriptor
from rnnkit.call.workspace import workspace_layout

from .style import BLUE, GREEN, INK, LINE, MUTED, ORANGE, PALE, PAPER, Canvas, tint

# Sizes that tell which letter each number of a shape is.
T, N, H = 7, 5, 11
LETTERS = {T: "T", T + 1: "T+1", N: "N", H: "H", 4 * H: "4H"}
FORWARD, KEPT, BACK = 216, 342, 482  # middles of the three lines of the main part
COLUMNS = {"ends": 70.0, "products": 252.0, "buffer": 436.0, "loop": 630.0, "out": 810.0}


def draw() -> Canvas:
    canvas = Canvas(880, 604, "From x to y and back")
    _stack(canvas, 44)
    canvas.path([(28, 116), (852, 116)], colour=LINE)
    canvas.text(28, 140, "One layer of an LSTM with one direction (D = 1)", size=14, bold=True)
    _forward(canvas)
    _kept(canvas)
    _backward(canvas)
    _legend(canvas, 576)
    return canvas


def _stack(canvas: Canvas, y: float) -> None:
    """Layers and directions: the lowest layer first, both directions of a layer at once."""
    canvas.text(28, y - 14, "The network", size=14, bold=True)
    canvas.text(28, y + 5, "directions side by side", size=11, colour=MUTED)
    x, shapes = 236.0, ("x  (T, N, I)", "(T, N, 2H)", "y  (T, N, 2H)")
    for number, shape in enumerate(shapes):
        canvas.text(x + 8 * (number == 2), y + 12, shape, size=11.5, align="center", bold=number != 1)
        if number == 2:
            break
        for direction in (0, 1):
            top = y - 20 + 36 * direction
            canvas.box(x + 58, top, 160, 28, fill=tint(BLUE), corner=5)
            words = "t = 0 … T−1 →" if direction == 0 else "← t = T−1 … 0"
            canvas.text(x + 69, top + 14, f"layer {number}", size=10.5)
            canvas.text(x + 207, top + 14, words, size=10.5, align="right", colour=MUTED)
            canvas.arrow((x + 38, y + 12), (x + 57, top + 14), colour=MUTED, line=1.2, head=6)
            canvas.arrow((x + 219, top + 14), (x + 238, y + 12), colour=MUTED, line=1.2, head=6)
        x += 276


def _operation(canvas: Canvas, x: float, y: float, width: float, colour: str, rows: tuple[str, ...]) -> None:
    """What is computed: a filled box, its first line bold."""
    height = 22 + 17 * len(rows)
    canvas.box(x - width / 2, y - height / 2, width, height, fill=tint(colour), edge=colour, corner=6)
    top = y - 8.5 * (len(rows) - 1)
    for number, row in enumerate(rows):
        canvas.text(x, top + 17 * number, row, size=12 if number == 0 else 11, bold=number == 0, align="center")


def _array(canvas: Canvas, x: float, y: float, rows: tuple[str, ...], *, width: float = 104) -> None:
    """What is in memory: square corners, grey."""
    height = 16 + 16 * len(rows)
    canvas.box(x - width / 2, y - height / 2, width, height, fill=PALE, edge=LINE)
    top = y - 8 * (len(rows) - 1)
    for number, row in enumerate(rows):
        is_name = number == 0
        style = {"size": 11.5 if is_name else 10.5, "colour": INK if is_name else MUTED, "bold": is_name}
        canvas.text(x, top + 16 * number, row, align="center", **style)


def _forward(canvas: Canvas) -> None:
    y, at = FORWARD, COLUMNS
    _array(canvas, at["ends"], y, ("x", "(T, N, I)"), width=84)
    _operation(canvas, at["products"], y, 158, BLUE, ("W x + bias", "one product for", "a chunk of steps"))
    _array(canvas, at["buffer"], y, ("gates", "of the chunk"))
    _operation(canvas, at["loop"], y, 170, BLUE, ("time loop", "gates += R h(t−1)", "gates, c(t−1) → c, h"))
    _array(canvas, at["out"], y, ("y", "(T, N, H)"), width=84)
    for start, stop in ((113, 172), (332, 383), (489, 544), (716, 767)):
        canvas.arrow((start, y), (stop, y), colour=BLUE)
    _again(canvas, at["loop"], y - 37, BLUE, ("each step, first to last:", "from hx, cx to hy, cy"), 1)


def _again(canvas: Canvas, x: float, y: float, colour: str, words: tuple[str, str], way: int) -> None:
    """The arrow of a loop above (way 1) or below (-1) an operation, and words beside it."""
    canvas.arrow((x + 34, y), (x + 34, y - 16 * way), (x - 34, y - 16 * way), (x - 34, y), colour=colour, line=1.3)
    canvas.lines(x + 48, y - 16 * way - 7, words, leading=15, size=10.5, colour=colour)


def _shapes() -> dict[str, str]:
    """The shapes of what forward keeps for training of a layer, in letters."""
    layout = workspace_layout(RNNDescriptor("lstm", 3, H), T, N)
    assert [block.name for block in layout] == ["hidden_l0", "gates_0", "cell_0"]
    return {block.name: f"({', '.join(LETTERS[size] for size in block.shape)})" for block in layout}


def _kept(canvas: Canvas) -> None:
    """The workspace, and what writes into it."""
    y, at, shapes = KEPT, COLUMNS, _shapes()
    canvas.box(18, y - 38, 844, 76, fill=tint(GREEN, 0.1), edge=GREEN, corner=8, dashed=True)
    canvas.text(730, y - 20, "workspace", size=12, bold=True, colour=GREEN)
    canvas.lines(730, y - 2, ("kept by a training", "forward for backward"), leading=15, size=10.5, colour=MUTED)
    _array(canvas, at["ends"], y, ("x", "no copy"), width=84)
    _array(canvas, at["products"], y, ("h", shapes["hidden_l0"]), width=104)
    _array(canvas, at["buffer"], y, ("gates, activated", shapes["gates_0"]), width=128)
    _array(canvas, at["loop"], y, ("c", shapes["cell_0"]), width=104)
    bus, loop = FORWARD + 61, at["loop"]
    canvas.arrow((at["ends"], FORWARD + 25), (at["ends"], y - 25), colour=GREEN)
    canvas.arrow((loop, FORWARD + 37), (loop, y - 25), colour=GREEN)
    canvas.arrow((loop, bus), (at["products"], bus), (at["products"], y - 25), colour=GREEN)
    canvas.arrow((at["buffer"], bus), (at["buffer"], y - 25), colour=GREEN)


def _backward(canvas: Canvas) -> None:
    y, at = BACK, COLUMNS
    _array(canvas, at["out"], y, ("dy", "(T, N, H)"), width=84)
    _operation(canvas, at["loop"], y, 170, ORANGE, ("time loop", "dh + dy, dc → dgates, dc", "dh(t−1) = dgates · R"))
    _array(canvas, at["buffer"], y, ("dgates", "of the chunk"))
    products = "products of a chunk", "dx = dgates · W", "dW += dgates · x", "dR += dgates · h(t−1)"
    _operation(canvas, at["products"], y, 158, ORANGE, products)
    _array(canvas, at["ends"], y - 27, ("dx", "(T, N, I)"), width=84)
    _array(canvas, at["ends"], y + 31, ("dw", "flat, like w"), width=84)
    for start, stop in ((767, 717), (545, 490), (384, 333)):
        canvas.arrow((start, y), (stop, y), colour=ORANGE)
    for shift in (-27, 31):
        canvas.arrow((172, y + shift), (114, y + shift), colour=ORANGE)
    _again(canvas, at["loop"], y + 37, ORANGE, ("each step, last to first:", "from dhy, dcy to dhx, dcx"), -1)
    bus, loop = KEPT + 58, at["loop"]
    canvas.arrow((at["ends"], KEPT + 25), (at["ends"], bus), (212, bus), (212, y - 46), colour=GREEN)
    canvas.arrow((at["products"], KEPT + 25), (at["products"], y - 46), colour=GREEN)
    canvas.arrow((at["buffer"], KEPT + 25), (at["buffer"], bus), (loop - 50, bus), (loop - 50, y - 38), colour=GREEN)
    canvas.arrow((loop, KEPT + 25), (loop, y - 38), colour=GREEN)


def _legend(canvas: Canvas, y: float) -> None:
    x, kept = 28.0, "kept by forward, read by backward"
    for colour, words in ((BLUE, "forward"), (ORANGE, "backward, in reverse"), (GREEN, kept)):
        canvas.arrow((x, y), (x + 26, y), colour=colour)
        canvas.text(x + 34, y, words, size=11, colour=MUTED)
        x += 60 + 6.4 * len(words)
    canvas.box(x, y - 7, 20, 14, fill=PALE, edge=LINE)
    canvas.text(x + 28, y, "array", size=11, colour=MUTED)
    canvas.box(x + 90, y - 7, 20, 14, fill=PAPER, edge=MUTED, corner=4)
    canvas.text(x + 118, y, "computation", size=11, colour=MUTED)
