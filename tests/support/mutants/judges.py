"""Which tests judge a fault: those of the rooms of its folder, files that have its file's name first."""

from repository import ROOT

# A folder of sources and its rooms, or single files of a room, the nearest first; the longest folder counts.
_ROOMS = {
    "kernels/rnnkit_kernels": "kernels cpu network/test_resets.py network/test_steps.py network/test_workspace.py",
    "kernels/rnnkit_kernels/cells": "cells kernels/test_vectorization.py kernels/test_own_cache.py cpu/test_digests.py",
    "kernels/rnnkit_kernels/machine": "kernels cpu",
    "perf": "perf",
    "rnnkit": "network cells cpu/test_exclusive.py cpu/test_forward.py docs/test_docstrings.py docs/test_readme.py",
    "rnnkit/call": "network cpu cuda/test_standin.py torch/test_modules.py docs/test_readme.py",
    "rnnkit/commands": "commands",
    "rnnkit/common": "network commands training/test_optimizers.py docs/test_extras.py",
    "rnnkit/compression": "kernels/test_range_coder.py language_model",
    "rnnkit/cpu": "cpu network torch/test_small.py torch/test_small_memory.py perf/test_many_cores.py",
    "rnnkit/cuda": "cuda training/test_device.py",
    "rnnkit/descriptor": "network cells interop/test_networks.py docs/test_types.py",
    "rnnkit/distributed": "distributed language_model/test_training_ranks.py docs/test_imports.py",
    "rnnkit/equations": "cells/test_equations_of_arrays.py docs/test_docstrings.py",
    "rnnkit/jax": "jax",
    "rnnkit/keras": "keras",
    "rnnkit/interop": "interop docs/test_docstrings.py",
    "rnnkit/language_model": "language_model commands training/test_readout.py",
    "rnnkit/native": "native",
    "rnnkit/network": "network cpu interop/test_networks.py docs/test_docstrings.py docs/test_types.py",
    "rnnkit/plot": "plot language_model/test_score_and_plot.py docs/test_docstrings.py",
    "rnnkit/sklearn": "sklearn",
    "rnnkit/torch": "torch",
    "rnnkit/training": "training kernels/test_training.py",
    "scripts": "docs/test_pictures.py docs/test_readme.py distributed/test_many_machines.py",
}


def judges(path):
    """Return the test files for a fault in the file."""
    folder = max((folder for folder in _ROOMS if path.startswith(f"{folder}/")), key=len)
    tests = ROOT / "tests"
    places = [tests / room for room in _ROOMS[folder].split()]
    files = [file for place in places for file in (sorted(place.glob("test_*.py")) if place.is_dir() else [place])]
    name = path.split("/")[-1].removesuffix(".py")
    files.sort(key=lambda file: name not in file.stem)
    return tuple(file.relative_to(ROOT).as_posix() for file in files)
