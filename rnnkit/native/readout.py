"""A dense layer after a network in C, with an activation of its outputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from rnnkit import training
from rnnkit.equations.c_text import CText
from rnnkit.errors import message, wrong_type
from rnnkit.native.arrays import Arrays
from rnnkit.native.products import Part, Products
from rnnkit_kernels.cells.activations import Activation
from rnnkit_kernels.cells.expressions import expression
from rnnkit_kernels.cells.functions import value
from rnnkit_kernels.cells.loops import Value
from rnnkit_kernels.dense import activate


class Readout:
    """y = activation(W h + b): `weights` are flat, W (K, width) and then b (K), as of `rnnkit.training.dense`."""

    def __init__(self, weights: Any, width: int, activation: Any, dtype: np.dtype) -> None:
        given = np.asarray(weights)
        if given.ndim != 1 or given.size == 0 or given.size % (width + 1):
            expected = f"be flat, with K rows of {width} weights, then K biases (training.dense)"
            raise ValueError(message("export_c", "readout", expected, f"shape {given.shape}"))
        if given.dtype != dtype:
            raise TypeError(message("export_c", "readout", f"be of {dtype}", given.dtype))
        if activation is not None and not isinstance(activation, Activation):
            raise wrong_type("export_c", "activation", "None or an activation of rnnkit.cells", activation)
        self.size, self.activation, self._width = given.size // (width + 1), activation, width
        self.weights = np.ascontiguousarray(given)

    def text(self, products: Products, arrays: Arrays) -> str:
        """Return the declarations of its weights, which go to `arrays`, and the function."""
        matrix, bias = np.split(self.weights, [self.size * self._width])
        part = Part(matrix.reshape(self.size, -1), "hidden")
        lines = products.lines("y", "rk_readout_bias", self.size, [part], "rk_readout_weights")
        if self.activation is not None:
            lines += self._activate()
        texts = arrays.text("rk_readout_bias", bias) + arrays.text("rk_readout_weights", products.taken())
        body = "".join(f"  {line}\n" for line in lines)
        return f"{texts}\nstatic void rk_readout({arrays.parameter}const real *hidden, real *y) {{\n{body}}}\n"

    def outputs(self, hidden: np.ndarray) -> np.ndarray:
        """Return the outputs of rows (..., width), as the engine computes them."""
        rows = np.ascontiguousarray(hidden).reshape(-1, self._width)
        y = training.dense(self.weights, rows, num_outputs=self.size)
        if self.activation is not None:
            real = y.dtype.type
            activate(
                y.reshape(-1), self.activation._replace(**{k: real(v) for k, v in self.activation._asdict().items()})
            )
        return y.reshape(*hidden.shape[:-1], self.size)

    def _activate(self) -> list[str]:
        text = CText(SimpleNamespace(activation=self.activation), self.weights.dtype.type)
        z = expression("read", Value("z", "slot"))
        _, lines, result = text.values([expression(value, expression("field", "activation"), z)])
        inner = ["const real z = y[u];", *lines, f"y[u] = {result[0]};"]
        return [f"for (int u = 0; u < {self.size}; u++) {{", *(f"  {line}" for line in inner), "}"]
