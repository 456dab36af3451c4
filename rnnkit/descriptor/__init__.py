"""Network descriptors, the layout of weights and states, and files."""

from rnnkit.common import archive
from rnnkit.descriptor.descriptor import RNNDescriptor

__all__ = ["RNNDescriptor", "archive"]
