"""The flat weight buffer: all blocks in their order, and the gates inside those of one pseudo-layer."""

from __future__ import annotations

from math import prod

from rnnkit import RNNDescriptor, num_weights, weight_layout
from rnnkit.descriptor.weights import WeightBlock, suffix_of

from .style import BLUE, GREEN, INK, LINE, MUTED, ORANGE, PAPER, PURPLE, Canvas, tint

DESC = RNNDescriptor("lstm", 3, 2, num_layers=2, bidirectional=True)
COLOURS = BLUE, ORANGE  # of the directions
UNIT, LEFT = 8.0, 28.0  # pixels of a number, and where the rows begin
CELL = 25.0, 19.0  # pixels of an element below
EXAMPLE = 1, 1, 2  # gate, unit, column of W


def draw() -> Canvas:
    size = num_weights(DESC)
    canvas = Canvas(836, 604, "The flat weight buffer")
    canvas.text(LEFT, 30, f"One array: w, {size} numbers", size=16, bold=True)
    sizes = f"LSTM, input_size I = {DESC.input_size}, hidden_size H = {DESC.hidden_size}, two layers, both directions"
    canvas.text(LEFT, 52, sizes, size=12, colour=MUTED)
    rows = _rows()
    for number, (words, blocks) in enumerate(rows):
        _row(canvas, 78 + 92 * number, words, blocks)
        if number + 1 < len(rows):
            end = blocks[-1].start + prod(blocks[-1].shape)
            x, y = LEFT + UNIT * (end - blocks[0].start), 78 + 92 * number + 40
            canvas.arrow((x + 3, y), (x + 20, y), colour=MUTED, line=1.2, head=6)
    _gates(canvas, 380)
    return canvas


def _rows() -> list[tuple[str, list[WeightBlock]]]:
    """The buffer in lines that fit: the matrices of each layer, then all biases."""
    blocks = weight_layout(DESC)
    matrices = [block for block in blocks if len(block.shape) == 2]
    assert blocks[: len(matrices)] == tuple(matrices)  # biases stand behind all of them
    result = []
    for layer in range(DESC.num_layers):
        own = [block for block in matrices if f"_l{layer}" in block.name]
        result.append((f"matrices of layer {layer}", own))
    return [*result, ("biases of all layers", list(blocks[len(matrices) :]))]


def _direction(block: WeightBlock) -> int:
    return int(block.name.endswith("_reverse"))


def _kind(block: WeightBlock) -> str:
    """weight_ih of weight_ih_l0_reverse."""
    return block.name[: block.name.index("_l")]


def _row(canvas: Canvas, y: float, words: str, blocks: list[WeightBlock]) -> None:
    """One line of the buffer, to scale, with the name of each pseudo-layer above its blocks."""
    first = blocks[0].start
    canvas.text(LEFT, y, words, size=12, bold=True)
    for index in range(0, len(blocks), 2):
        pair = blocks[index : index + 2]
        x = LEFT + UNIT * (pair[0].start - first)
        width = UNIT * sum(prod(block.shape) for block in pair)
        suffix = pair[0].name[pair[0].name.index("_l") :]
        assert suffix in {suffix_of(layer, direction) for layer in (0, 1) for direction in (0, 1)}
        colour = COLOURS[_direction(pair[0])]
        canvas.path([(x + 1, y + 18), (x + width - 1, y + 18)], colour=colour, line=2)
        shown = f"…{suffix}"
        canvas.box(x + width / 2 - 3.6 * len(shown) - 4, y + 9, 7.2 * len(shown) + 8, 18, fill=PAPER, layer=3)
        canvas.text(x + width / 2, y + 18, shown, size=11, colour=colour, align="center", mono=True)
        for block in pair:
            _block(canvas, LEFT + UNIT * (block.start - first), y + 27, block)
    end = blocks[-1].start + prod(blocks[-1].shape)
    canvas.text(LEFT + UNIT * (end - first), y + 69, str(end), size=10, colour=MUTED, align="center")


def _block(canvas: Canvas, x: float, y: float, block: WeightBlock) -> None:
    width, colour = UNIT * prod(block.shape), COLOURS[_direction(block)]
    share = 0.3 if _kind(block).endswith("_ih") else 0.14
    canvas.box(x, y, width, 34, fill=tint(colour, share), edge=PAPER, line=1.5)
    canvas.text(x + width / 2, y + 11, _kind(block), size=10.5, align="center", mono=True)
    shape = " × ".join(map(str, block.shape))
    canvas.text(x + width / 2, y + 25, shape, size=10, colour=MUTED, align="center")
    canvas.text(x, y + 42, str(block.start), size=10, colour=MUTED, align="center")


def _gates(canvas: Canvas, top: float) -> None:
    """The blocks of the first pseudo-layer side by side, so that the rows of a gate are in one line."""
    canvas.path([(LEFT, top - 22), (canvas.size[0] - LEFT, top - 22)], colour=LINE)
    canvas.text(LEFT, top, "Inside the blocks of …_l0: gate below gate, H rows each", size=14, bold=True)
    names = [gate.name for gate in DESC.cell.declaration.input_gates]
    assert names == [gate.name for gate in DESC.cell.declaration.recurrent_gates]
    y = top + 52
    for number, name in enumerate(names):
        colour = (GREEN, BLUE, ORANGE, PURPLE)[number]
        height = CELL[1] * DESC.hidden_size
        canvas.box(LEFT, y + number * height + 1, 66, height - 2, fill=tint(colour, 0.35), corner=4)
        canvas.text(LEFT + 33, y + (number + 0.5) * height, f"gate {name}", size=12, align="center")
    x, ends = LEFT + 82, ("W", "R", "bW", "bR")
    blocks = [block for block in weight_layout(DESC) if block.name.endswith("_l0")]
    for block, letter in zip(blocks, ends, strict=True):
        if letter == "W":
            gate, unit, column = EXAMPLE
            corner = x + column * CELL[0], y + (gate * DESC.hidden_size + unit) * CELL[1]
            canvas.box(*corner, *CELL, edge=INK, line=2, layer=4)
        x = _numbers(canvas, x, y, block, letter) + 40
    _formula(canvas, x - 4, y, blocks[0])


def _numbers(canvas: Canvas, x: float, y: float, block: WeightBlock, letter: str) -> float:
    """A block as a matrix whose elements are their places in the buffer; returns where it ends."""
    rows, columns = block.shape if len(block.shape) == 2 else (*block.shape, 1)
    width, hidden = columns * CELL[0], DESC.hidden_size
    canvas.text(x + width / 2, y - 27, letter, size=13, bold=True, align="center")
    canvas.text(x + width / 2, y - 11, _kind(block), size=10, colour=MUTED, align="center", mono=True)
    for row in range(rows):
        colour = (GREEN, BLUE, ORANGE, PURPLE)[row // hidden]
        for column in range(columns):
            place = x + column * CELL[0], y + row * CELL[1]
            canvas.box(*place, *CELL, fill=tint(colour, 0.2), edge=PAPER, line=1)
            number = block.start + row * columns + column
            canvas.text(place[0] + CELL[0] / 2, place[1] + CELL[1] / 2, str(number), size=10, align="center")
    for gate in range(1, rows // hidden):
        line = y + gate * hidden * CELL[1]
        canvas.path([(x, line), (x + width, line)], colour=INK, line=0.8)
    return x + width


def _formula(canvas: Canvas, x: float, y: float, block: WeightBlock) -> None:
    gate, unit, column = EXAMPLE
    hidden, columns = DESC.hidden_size, block.shape[1]
    place = block.start + (gate * hidden + unit) * columns + column
    name = DESC.cell.declaration.input_gates[gate].name
    canvas.text(x, y + 8, "gates = W x + bW + R h + bR", size=12, bold=True)
    rows = (
        "A number is the element's place in w.", "Row gate·H + j belongs to unit j of that gate.", "",
        f"W of gate {name}, unit {unit}, for x[{column}]:",
        f"{block.start} + ({gate}·{hidden} + {unit})·{columns} + {column} = {place}",
    )  # fmt: skip
    canvas.lines(x, y + 34, rows, size=11.5, colour=MUTED)
