"""Entropy coding with a network's scores: equal bits on every CPU, so that what one machine encodes any other decodes."""

from rnnkit.compression.coder import RangeDecoder, RangeEncoder, frequencies

__all__ = ["RangeDecoder", "RangeEncoder", "frequencies"]
