"""A cell of rnnkit as a cell of Keras: its weights, and one step."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.texts import descriptor_of_text, descriptor_text
from rnnkit.descriptor.weights import init_weights, num_weights
from rnnkit.errors import message
from rnnkit.keras.backends import run_of_backend
from rnnkit.keras.call import Call


@keras.saving.register_keras_serializable("rnnkit")
class Cell(keras.layers.Layer):
    """The cell of a `RNN`: its flat weights are one variable.

    Parameters
    ----------
    cell : str or cell
        As for :class:`rnnkit.RNNDescriptor`.
    units : int
        H.
    seed : int, optional
        Of the initial weights; None draws one from Keras's generator.
    """

    def __init__(self, cell: Any, units: Any, seed: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        desc = RNNDescriptor(cell, 1, units)
        declaration = desc.cell.declaration
        for kind, found in ("side inputs", declaration.inputs), ("noises", declaration.noises):
            if found:
                raise ValueError(message("RNN", "cell", f"have no {kind}", f"{desc.mode} with {found[0].name}"))
        # Of one input until `build`. The cell itself may be a tuple, which Keras 3.0 would take apart.
        self.desc, self.units, self.seed = desc, units, seed
        self.state_size = [units] * (1 + len(desc.states))
        self.output_size = units

    def build(self, input_shape: Any) -> None:
        """Make the weights, for inputs (..., I)."""
        dtype: Any = str(self.variable_dtype)
        self.desc = RNNDescriptor(self.desc.mode, int(input_shape[-1]), self.units, dtype=dtype)
        drawn = init_weights(self.desc, int(keras.random.randint((), 0, 2**31 - 1)) if self.seed is None else self.seed)

        def initial(shape: Any, dtype: Any = None) -> Any:
            return ops.convert_to_tensor(drawn, dtype)

        self.flat = self.add_weight(shape=(num_weights(self.desc),), initializer=initial, name="flat")

    def network(self) -> tuple[RNNDescriptor, Any]:
        """Return the descriptor and the flat weights."""
        return self.desc, ops.convert_to_tensor(self.flat)

    def call(self, inputs: Any, states: Any, training: bool = False) -> tuple[Any, list[Any]]:
        """Run one step on inputs (N, I)."""
        call = Call(*self.network(), inputs[None], [one[None] for one in states], None, None, training, True)
        y, after = run_of_backend()(call)  # type: ignore[misc]
        return y[0], [one[0] for one in after]

    def get_config(self) -> dict[str, Any]:
        """Return what makes such a cell; one of your own must be defined where it is read."""
        text = descriptor_text(RNNDescriptor(self.desc.mode, 1, self.units))
        return super().get_config() | {"cell": text, "units": self.units, "seed": self.seed}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Cell:
        """Return a cell made of `get_config`'s result."""
        desc = descriptor_of_text(config["cell"], "import the module of {cell} first")
        return cls(**config | {"cell": desc.mode})
