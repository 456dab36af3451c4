"""Tensors of nested results and their comparison, and a module read back from its file."""

import io

import torch


def flat(results):
    """The tensors of a tensor or of nested tuples, in one list."""
    if isinstance(results, torch.Tensor):
        return [results]
    return [tensor for part in results for tensor in flat(part)]


def assert_equal(actual, expected):
    """Raise unless both are, or consist of, equal tensors."""
    for one, other in zip(flat(actual), flat(expected), strict=True):
        assert torch.equal(one, other)


def reloaded(module):
    """The module after `torch.save` and `torch.load`."""
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)
