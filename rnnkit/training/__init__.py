"""What stands around the layer in a training loop: small functions on arrays and flat buffers, and two optimizers.

Nothing here calls anything else of it, and nothing keeps a graph: every gradient is returned by the call that its name
says, and goes where you take it.

Letters in shapes: T seq_len, N batch_size, I input_size, P proj_size (hidden_size without projection), L num_layers,
D num_directions, C num_classes.
"""

from rnnkit.training.clipping import clip_gradient_norm
from rnnkit.training.losses import Loss, softmax_cross_entropy
from rnnkit.training.optimizers import SGD, Adam

__all__ = ["SGD", "Adam", "Loss", "clip_gradient_norm", "softmax_cross_entropy"]
