"""Entropy coding with a network's scores. Scores are bit-identical on every CPU, so any machine can decode."""

from rnnkit.compression.coder import RangeDecoder, RangeEncoder, frequencies

__all__ = ["RangeDecoder", "RangeEncoder", "frequencies"]
