"""What a network is: its descriptor and what follows from it, the layout of weights and states, and files."""

from rnnkit.descriptor.descriptor import RNNDescriptor

__all__ = ["RNNDescriptor"]
