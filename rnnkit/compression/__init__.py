"""Entropy coding by a network's scores, which have the same bits on every CPU: what one encodes any other decodes."""

from rnnkit.compression.coder import RangeDecoder, RangeEncoder, frequencies

__all__ = ["RangeDecoder", "RangeEncoder", "frequencies"]
