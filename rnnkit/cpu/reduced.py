"""Weights of int8: packed weights, rounded once, in the panels of `kernels.machine.formats`."""

from __future__ import annotations

import sys
import warnings
from functools import cache
from typing import Any

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.cpu.layer import layers_of, pack
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.errors import message
from rnnkit_kernels.machine.amx import has_tiles
from rnnkit_kernels.machine.formats import BFLOAT16_DOT, MAX_INT8, MIN_MAGNITUDE, form_of
from rnnkit_kernels.machine.packing import padded
from rnnkit_kernels.machine.registers import VECTOR_BYTES
from rnnkit_kernels.machine.shapes import group_size
from rnnkit_kernels.products import PackedProduct

_ONE = 4  # bytes of a word


def pack_int8(desc: RNNDescriptor, w: np.ndarray, arena: Arena, precision: str = "int8") -> np.ndarray:
    """Pack and round the weights, and sum the biases, at the offsets of `layers_of(desc, "int8")`."""
    packed, layers = pack(desc, w, Arena()), layers_of(desc, precision)
    words = arena.take("words", (int(layers[-1].offsets[-1]),), np.dtype(np.float32))  # aligned to cache lines
    words[:] = 0
    for full, layer in zip(layers_of(desc), layers, strict=True):
        for number, product in enumerate(layer.products):
            if product.gates and product.depth:
                panels = packed[full.offsets[number] : full.offsets[number + 1]]
                blocks = zip(*(np.split(array, product.blocks) for array in (panels, product.rows)), strict=True)
                gates, form = product.gates if product.blocks == 1 else 1, form_of(precision)
                parts = [_int8_panels(block, product._replace(rows=rows, gates=gates), form) for block, rows in blocks]
                words[layer.offsets[number] : layer.offsets[number + 1]] = np.concatenate(parts)
        words[slice(*layer.offsets[-2:])] = packed[slice(*full.offsets[-2:])]  # the biases
    return words


def check_instruction(function: str, precision: str | None) -> None:
    """Raise if this CPU lacks the instruction that a precision is named after."""
    if precision == "bfloat16-native" and BFLOAT16_DOT is None:
        expected = "be bfloat16 or int8 on a CPU without a dot product of bfloat16 (AVX-512 BF16, ARM's bfdot)"
        raise ValueError(message(function, "precision", expected, repr(precision)))


@cache
def warn_of_training(function: str) -> None:
    """Warn once if products of bfloat16 are not faster than those of float32 on this CPU."""
    if not has_tiles():
        text = f"{function}: products of bfloat16 are no faster than those of float32 on this CPU, and may take half as"
        warnings.warn(f"{text} long again: it has no tile registers (AMX)", RuntimeWarning, stacklevel=_callers_level())


def _callers_level() -> int:
    """Return the stack level of the first caller that is neither in rnnkit nor in PyTorch, as `warnings` counts it."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("rnnkit", "torch"):
        frame, level = frame.f_back, level + 1
    return level


def _groups(panels: np.ndarray, product: PackedProduct):
    """Yield the first gate of each group of gates, and the panels of the group, (vectors, depth, columns)."""
    lanes, gates, depth = VECTOR_BYTES // _ONE, product.gates, product.depth
    panels = panels.reshape(-1, gates * depth * lanes)
    for start in range(0, gates, group_size(gates)):
        stop = min(start + group_size(gates), gates)
        group = panels[:, start * depth * lanes : stop * depth * lanes]
        yield start, group.reshape(len(panels), depth, (stop - start) * lanes)


def _concatenated(groups: list[np.ndarray]) -> np.ndarray:
    """Concatenate the groups within each panel, as one array of words."""
    return np.concatenate([group.reshape(len(group), -1) for group in groups], 1).reshape(-1).view(np.float32)


def _in_words(values: np.ndarray, form: Any) -> np.ndarray:
    """Pack (vectors, depth, columns) into words of several values along the depth, the first in the lowest bits."""
    (vectors, depth, columns), count = values.shape, form.per_word
    full = np.zeros((vectors, form.words(depth) * count, columns), values.dtype)
    full[:, :depth] = values
    parts = full.reshape(vectors, -1, count, columns).astype(np.uint32)
    shifts = (np.arange(count, dtype=np.uint32) * (32 // count))[:, None]
    return np.bitwise_or.reduce(parts << shifts, axis=2)


def _int8_panels(panels: np.ndarray, product: PackedProduct, form: Any) -> np.ndarray:
    """Return the panels, the scale of each column, the correction of its sum for the zero point, and the factors of the
    features: the weights of feature k are divided by its factor, and it is multiplied with that before it is rounded.
    """
    lanes, units = VECTOR_BYTES // _ONE, product.rows.size // product.gates
    scales, corrections = np.zeros((2, product.gates, padded(units, _ONE)), np.float32)
    corrections, packed = corrections.view(np.int32), []
    factors = factors_of(np.max([np.abs(group).max(axis=(0, 2)) for _, group in _groups(panels, product)], axis=0))
    for first, group in _groups(panels, product):
        rounded, scale = rounded_columns(group / factors[:, None])
        packed.append(_in_words(rounded.view(np.uint8), form))
        gates = slice(first, first + scale.shape[1] // lanes)
        sums = -form.zero_point * rounded.sum(axis=1, dtype=np.int32)
        for target, values in (scales, scale), (corrections, sums):
            target[gates] = values.reshape(len(scale), -1, lanes).swapaxes(0, 1).reshape(-1, target.shape[1])
    columns = np.zeros((2, padded(product.rows.size, _ONE)), np.float32)
    for target, values in zip(columns, (scales, corrections.view(np.float32)), strict=True):
        target[: product.rows.size] = values[:, :units].reshape(-1)
    features = np.ones(padded(product.depth, _ONE), np.float32)
    features[: product.depth] = factors
    return np.concatenate([_concatenated(packed), columns.reshape(-1), features])


def rounded_columns(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round columns (..., depth, columns) to int8; returns these and the scale of each column."""
    largest, one = np.abs(values).max(axis=-2), np.float32(MAX_INT8)
    scale = np.where(largest < MIN_MAGNITUDE, 0, np.where(np.isfinite(largest), largest / one, np.float32(np.nan)))
    usual = scale > 0
    inverse = np.divide(one, largest, out=np.zeros_like(largest), where=usual)
    kept = np.where(np.expand_dims(usual, -2), values, 0)
    return np.rint(kept * np.expand_dims(inverse, -2)).astype(np.int8), scale


def factors_of(magnitudes: np.ndarray) -> np.ndarray:
    """Return the powers of two nearest to the magnitudes of columns, relative to the largest.

    A feature of 10,000 with weights of 1e-4 then counts as much as one of 1. They are at most 1, so that nothing
    overflows, and 1 where the magnitude is 0 or no number.
    """
    usual = np.isfinite(magnitudes) & (magnitudes > 0)
    largest = magnitudes.max(where=usual, initial=0)
    ratios = np.divide(magnitudes, largest, out=np.ones_like(magnitudes), where=usual)
    return np.exp2(np.maximum(np.rint(np.log2(ratios)), -60))
