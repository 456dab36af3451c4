"""Training runs that are killed."""

import signal
import subprocess
import time

from training_runs import SMALL, command


def assert_survives_kills(text, folder, kills, rng, steps=150):
    """Raise unless a run that is killed again and again ends with the bits of one that was not."""
    options = ["--quiet", "--save-every", 1, "--keep", 2]
    begin = ["train", text, *SMALL, "--steps", steps, "--dropout", "0.2", "--layers", 2]
    for name in ("whole", "cut"):
        (folder / name).mkdir()
    subprocess.run(command(*begin, *options, "--out", folder / "whole/m.npz"), check=True, capture_output=True)
    out, killed = folder / "cut/m.npz", 0
    while True:
        started = ["train", "--resume", out] if out.exists() else [*begin, "--out", out]
        process = subprocess.Popen(command(*started, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process:
            if killed < kills:
                lines = iter(process.stdout.readline, b"")
                assert any(line.startswith(b"training") for line in lines), process.stderr.read()
                time.sleep(rng.random() * 0.25)  # at any moment of the steps and saves that follow
                process.kill()
                killed += process.wait() == -signal.SIGKILL
            else:
                _, err = process.communicate(timeout=300)
        if process.returncode != -signal.SIGKILL:
            break
    assert process.returncode == 0, err
    assert out.read_bytes() == (folder / "whole/m.npz").read_bytes()
    return killed
