"""A byte-level language model: the text, the model, its training, and the command line for them."""
