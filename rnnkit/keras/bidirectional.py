"""Keras's Bidirectional with its two layers as one bidirectional network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from rnnkit.keras.backends import run_of_backend, untraced
from rnnkit.keras.call import Call
from rnnkit.keras.layers import OnEngine, marks_of, shown, time_first, why_not
from rnnkit.keras.networks import both_of, descriptor_of, drops, seed_of


class OnEngineBothWays:
    """Replaces the two calls of a Bidirectional by one; a base before Keras's class."""

    @untraced
    def call(self, sequences: Any, initial_state: Any = None, mask: Any = None, training: Any = None) -> Any:
        """Run both layers over the sequences (N, T, I), and merge what they return."""
        layer: Any = self
        pair, training = (layer.forward_layer, layer.backward_layer), bool(training)
        if not _is_one_network(pair, training, mask is not None):
            return super().call(sequences, initial_state, mask, training)  # type: ignore[misc]
        if initial_state is None:
            initial_state = [state for one in pair for state in one.get_initial_state(ops.shape(sequences)[0])]
        given = [ops.convert_to_tensor(one, dtype=layer.compute_dtype) for one in initial_state]
        states, mask = [ops.stack(both) for both in zip(*_halves(given), strict=True)], marks_of(mask)
        network, seed = both_of(pair, training), seed_of(pair[0], training)
        call = Call(*network, time_first(sequences), states, time_first(mask), seed, training, layer.return_sequences)
        y, after = run_of_backend()(call)  # type: ignore[misc]
        halves = ops.split(y, 2, -1) if layer.return_sequences else (None, None)
        outputs = [
            shown(one, half, after[0][at], mask)[layer.return_sequences]
            for at, (one, half) in enumerate(zip(pair, halves, strict=True))
        ]
        merged = _merged(layer.merge_mode, *outputs)
        if not layer.return_state:
            return merged
        states = [one[direction] for direction in (0, 1) for one in after]
        return (*(merged if layer.merge_mode is None else (merged,)), *states)


def _halves(states: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    return states[: len(states) // 2], states[len(states) // 2 :]


def _is_one_network(pair: Sequence[Any], training: bool, masked: bool) -> bool:
    """Return whether one bidirectional network computes what the two layers do.

    Not so if they differ, each drops other inputs, keeps its states, or repeats outputs where steps are masked.
    """
    return (
        all(isinstance(one, OnEngine) and not why_not(one, masked) for one in pair)
        and (pair[0].go_backwards, pair[1].go_backwards) == (False, True)
        and not any(one.stateful or drops(one, "dropout", training) or one.activity_regularizer for one in pair)
        and not (masked and pair[0].return_sequences and not all(one.zero_output_for_mask for one in pair))
        and descriptor_of(pair[0], training) == descriptor_of(pair[1], training)
    )


def _merged(mode: Any, y: Any, reverse: Any) -> Any:
    """Return the outputs of both directions as Keras's `merge_mode` says."""
    if mode is None:
        return y, reverse
    if mode == "concat":
        return ops.concatenate([y, reverse], -1)
    return y * reverse if mode == "mul" else (y + reverse) / (2 if mode == "ave" else 1)


@keras.saving.register_keras_serializable("rnnkit")
class Bidirectional(OnEngineBothWays, keras.layers.Bidirectional):
    """`keras.layers.Bidirectional`, which runs two layers of this engine as one network: its arguments, variables and
    results."""
