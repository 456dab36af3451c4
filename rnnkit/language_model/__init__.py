"""A byte-level language model: text, model, training, and command line."""
