"""ONNX Runtime's LSTM with weights of 8 bits: DynamicQuantizeLSTM, which its quantize_dynamic writes.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md has its inputs and their shapes.
"""

from __future__ import annotations

import numpy as np

from rnnkit.errors import message

IN_8_BITS = "com.microsoft", "DynamicQuantizeLSTM"
QUANTIZATION = "W_scale", "W_zero_point", "R_scale", "R_zero_point"  # its inputs after those of an LSTM


def dequantized(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the inputs of an LSTM for those of a DynamicQuantizeLSTM.

    W is (D, I, 4*H) and R (D, H, 4*H), in int8 or uint8; each scale and zero point is (D,) or (D, 4*H).

    Raises
    ------
    TypeError, ValueError
        An array is missing, or has another dtype or shape.
    """
    found = {name: array for name, array in inputs.items() if name not in QUANTIZATION}
    for name in "W", "R":
        found[name] = _floats(name, inputs[name], inputs.get(f"{name}_scale"), inputs.get(f"{name}_zero_point"))
    return found


def _floats(name: str, weights: np.ndarray, scale: np.ndarray | None, zero_point: np.ndarray | None) -> np.ndarray:
    """Return the weights as float32 (D, 4*H, I)."""
    if weights.dtype not in (np.int8, np.uint8):
        raise TypeError(message("from_onnx", name, "be int8 or uint8", weights.dtype))
    if weights.ndim != 3:
        raise ValueError(message("from_onnx", name, "have shape (num_directions, size, 4*hidden_size)", weights.shape))
    if scale is None:
        raise ValueError(message("from_onnx", f"{name}_scale", "be a constant", "none"))
    if scale.dtype != np.float32:
        raise TypeError(message("from_onnx", f"{name}_scale", "be float32", scale.dtype))
    zero_point = np.zeros(scale.shape, weights.dtype) if zero_point is None else zero_point
    if zero_point.dtype != weights.dtype:
        raise TypeError(message("from_onnx", f"{name}_zero_point", f"be {weights.dtype} as {name}", zero_point.dtype))
    shapes = weights.shape[:1], weights.shape[::2]
    for kind, array in ("scale", scale), ("zero_point", zero_point):
        if array.shape not in shapes:
            expected = f"have shape {shapes[0]} or {shapes[1]}"
            raise ValueError(message("from_onnx", f"{name}_{kind}", expected, array.shape))
    scale, zero_point = (array.reshape(len(array), 1, -1) for array in (scale, zero_point))
    return ((weights.astype(np.float32) - zero_point) * scale).swapaxes(1, 2)
