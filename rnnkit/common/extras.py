"""What to install where an optional package is missing, whether rnnkit came from an index or from a clone."""

from __future__ import annotations

# Package -> the extra that brings it.
EXTRAS = {"matplotlib": "plot", "onnx": "onnx", "safetensors": "safetensors", "torch": "torch", "tqdm": "train"}


def to_install(package: str) -> str:
    """Return how to install a package, as the cure of a message."""
    extra = EXTRAS.get(package)
    return f"{to_install_extra(extra)}, or {package} alone" if extra else f"install it with pip install {package}"


def to_install_extra(name: str) -> str:
    """Return how to install an extra."""
    return f"""install rnnkit's extra "{name}" (pip install 'rnnkit[{name}]', in a clone pip install -e '.[{name}]')"""
