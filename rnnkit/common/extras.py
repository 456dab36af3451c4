"""How to install a missing optional package, with rnnkit from an index or from a clone."""

from __future__ import annotations

# Package -> the extra of rnnkit that installs it.
EXTRAS = {"matplotlib": "plot", "onnx": "onnx", "safetensors": "safetensors", "torch": "torch", "tqdm": "train"}


def to_install(package: str) -> str:
    """Return how to install a package, for an error message."""
    extra = EXTRAS.get(package)
    return f"{to_install_extra(extra)}, or {package} alone" if extra else f"install it with pip install {package}"


def to_install_extra(name: str) -> str:
    """Return how to install an extra of rnnkit."""
    return f"""install rnnkit's extra "{name}" (pip install 'rnnkit[{name}]', in a clone pip install -e '.[{name}]')"""
