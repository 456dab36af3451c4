"""Convert weights between rnnkit and other frameworks: arrays in, arrays out.

No converter of arrays imports a framework.  Each module defines one framework's names, its gate order and its
unsupported features; `networks` and `stacks` hold what they share.
"""

from rnnkit.interop.flux import from_flux, to_flux
from rnnkit.interop.jax import from_jax, to_jax
from rnnkit.interop.keras import from_keras, to_keras
from rnnkit.interop.mxnet import from_mxnet, to_mxnet
from rnnkit.interop.onnx import from_onnx, stack_onnx, to_onnx
from rnnkit.interop.onnx_files import load_onnx, save_onnx
from rnnkit.interop.onnx_node import OnnxNode
from rnnkit.interop.safetensors import load_safetensors, save_safetensors
from rnnkit.interop.torch import from_torch, to_torch

__all__ = [
    "OnnxNode",
    "from_flux",
    "from_jax",
    "from_keras",
    "from_mxnet",
    "from_onnx",
    "from_torch",
    "load_onnx",
    "load_safetensors",
    "save_onnx",
    "save_safetensors",
    "stack_onnx",
    "to_flux",
    "to_jax",
    "to_keras",
    "to_mxnet",
    "to_onnx",
    "to_torch",
]
