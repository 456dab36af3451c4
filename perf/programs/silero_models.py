"""silero-vad: a detector of speech that hears 32 ms at a time, with a state in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from perf.programs.converted import Converted

_SAMPLES, _CONTEXT, _CHUNKS = 512, 64, 250  # of a chunk at 16 kHz; before it; 8 s


def _audio() -> np.ndarray:
    """Something like a voice: harmonics that come and go, with noise, (chunks, samples)."""
    rng, t = np.random.default_rng(0), np.arange(_SAMPLES * _CHUNKS) / 16000
    voice = sum(np.sin(2 * np.pi * k * (120 + 20 * np.sin(3 * t)) * t) / k for k in range(1, 20))
    x = 0.1 * voice * (np.sin(2 * np.pi * 0.5 * t) > 0) + 0.005 * rng.standard_normal(len(t))
    return x.astype(np.float32).reshape(_CHUNKS, _SAMPLES)


class Detector:
    """The network in NumPy, with the weights of one of the package's files; the LSTM's step is rnnkit's."""

    def __init__(self, path: Path) -> None:
        from onnx import load, numpy_helper

        from rnnkit.interop import from_torch

        weights = {one.name: numpy_helper.to_array(one) for one in load(path).graph.initializer}
        self.spectrum = weights["model.stft.forward_basis_buffer"][:, 0].T  # (256, 2 * 129)
        self.frames = np.arange(0, 512, 128)[:, np.newaxis] + np.arange(256)
        self.layers = []
        for k, starts in enumerate(([0, 1, 2, 3], [0, 2], [0], [0])):
            matrix, bias = (weights[f"model.encoder.{k}.reparam_conv.{part}"] for part in ("weight", "bias"))
            rows = np.array(starts)[:, np.newaxis] + np.arange(-1, 2)
            self.layers.append((rows, matrix.transpose(2, 1, 0).reshape(-1, len(bias)), bias))
        self.plan = from_torch(weights, "model.decoder.rnn").prepare()
        self.head, self.bias = (weights[f"model.decoder.decoder.2.{part}"].ravel() for part in ("weight", "bias"))
        self.reset()

    def reset(self) -> None:
        """Start a new recording."""
        self.context, self.hx, self.cx = np.zeros(_CONTEXT, np.float32), None, None

    def __call__(self, chunk: np.ndarray) -> float:
        """The probability that a chunk has speech."""
        x = np.concatenate([self.context, chunk, chunk[-2 : -2 - _CONTEXT : -1]])  # the end is reflected
        self.context = chunk[-_CONTEXT:]
        parts = x[self.frames] @ self.spectrum
        y = np.hypot(parts[:, :129], parts[:, 129:])
        for rows, matrix, bias in self.layers:
            padded = np.concatenate([y, np.zeros_like(y[:1])])  # its last row is before the first and after the last
            y = np.maximum(padded[rows].reshape(len(rows), -1) @ matrix + bias, 0)
        y, self.hx, self.cx = self.plan.step(y, self.hx, self.cx)
        return float(1 / (1 + np.exp(-(np.maximum(y[0], 0) @ self.head + self.bias[0]))))


def _calls() -> Any:
    import silero_vad
    import torch

    model, chunks = silero_vad.load_silero_vad(onnx=True), _audio()
    detector = Detector(Path(silero_vad.__file__).parent / "data" / "silero_vad_16k_op15.onnx")

    def package() -> np.ndarray:
        model.reset_states()
        return np.array([model(torch.from_numpy(chunk), 16000).item() for chunk in chunks])

    def own() -> np.ndarray:
        detector.reset()
        return np.array([detector(chunk) for chunk in chunks])

    return package, own


PROGRAMS = (Converted("silero-vad/stream", ("silero_vad", "onnx", "onnxruntime"), _calls),)
