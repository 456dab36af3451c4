"""Weights of other frameworks as networks of ours, and back: arrays in, arrays out.

Nothing here imports a framework to convert arrays.  Each file states one framework's names, its order of the gates and
what it has that we lack; `networks` and `stacks` have what they share.
"""

from rnnkit.interop.flux import from_flux, to_flux
from rnnkit.interop.jax import from_jax, to_jax
from rnnkit.interop.keras import from_keras, to_keras
from rnnkit.interop.mxnet import from_mxnet, to_mxnet
from rnnkit.interop.onnx import OnnxNode, from_onnx, stack_onnx, to_onnx
from rnnkit.interop.onnx_files import load_onnx, save_onnx
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
