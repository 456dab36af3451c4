"""Modes and descriptors as texts that this process can resolve, for graphs that hold texts and numbers only."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.modes import deserialized, text_in_process
from rnnkit.errors import message

_cells: dict[str, Any] = {}  # text of a mode -> cell, with its parameters
_classes: dict[str, type] = {}  # name -> class of a cell


def mode_text(mode: Any) -> str:
    """Return the text of a mode: its name, or of a cell a text that `mode_of` resolves.

    Another process can resolve it for a shipped cell, and for a custom cell after it has made a text of its class.
    """
    if isinstance(mode, str):
        return mode
    text = text_in_process(mode)
    _cells[text], _classes[type(mode).__name__] = mode, type(mode)
    return text


def mode_of(text: str, cure: str) -> Any:
    """Return the mode of a text.

    Raises
    ------
    ValueError
        The cell is not known in this process; `cure`, with its name in place of {cell}, ends the message.
    """
    if not text.startswith("{"):
        return text
    if text in _cells:
        return _cells[text]
    found = json.loads(text)
    kind = _classes.get(found["cell"]) if found["source"] is not None else None
    try:
        return deserialized(found, kind)
    except ValueError as error:
        cure = cure.format(cell=found["cell"])
        raise ValueError(message("forward", "cell", "be known in this process", error, cure)) from None


def descriptor_text(desc: RNNDescriptor) -> str:
    """Return a descriptor as JSON, its mode as the text of `mode_text`."""
    found = {field.name: getattr(desc, field.name) for field in fields(desc)}
    return json.dumps(found | {"mode": mode_text(desc.mode)})


def descriptor_of_text(text: str, cure: str) -> RNNDescriptor:
    """Return the descriptor of such a text; `cure` as for `mode_of`."""
    found = json.loads(text)
    clip = found["cell_clip"]
    given = {"mode": mode_of(found["mode"], cure), "cell_clip": None if clip is None else tuple(clip)}
    return RNNDescriptor(**found | given)
