"""Networks as C files: compiled, run, and compared with the engine."""

import subprocess

import numpy as np

import rnnkit

WARNINGS = "-Wall", "-Wextra", "-Wpedantic", "-Werror"


def network(mode, hidden_size=20, input_size=7, **options):
    """One with large weights: a wrong bit shows."""
    net = rnnkit.Network(mode, input_size, hidden_size, **options)
    net.weights[...] = np.random.default_rng(3).uniform(-0.5, 0.5, net.weights.shape)
    return net


def compiled(folder, *options, compiler="cc", sources=("model.c", "model_test.c")):
    """Compile files without a warning."""
    files = [folder / name for name in sources]
    done = subprocess.run(
        [compiler, "-std=c99", *WARNINGS, *options, *files, "-o", folder / "program", "-lm"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr[:2000]
    return folder / "program"


def assert_same_bits(net, folder, *options, compiler="cc", **arguments):
    """The test that comes with the files passes."""
    net.export_c(folder, **arguments)
    command = [compiled(folder, *options, compiler=compiler), folder / "model.bin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
