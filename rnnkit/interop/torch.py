"""PyTorch: nn.RNN, nn.GRU, nn.LSTM and their cells, which have our names, shapes and gate order."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import check_names, weight_layout
from rnnkit.errors import message, wrong_type
from rnnkit.interop.networks import (
    Network,
    blocks_of,
    check_left_out,
    check_shape,
    common_dtype,
    dtype_name,
    gate_rows,
    mode_of_rows,
    network,
    real_array,
)
from rnnkit.network.classes import mode_of

_NAME = re.compile(r"(weight_ih|weight_hh|weight_hr|bias_ih|bias_hh|h0|c0)_l(\d{1,9})(_reverse)?")
_FIRST = "weight_hh_l0"  # all three modules have it
_OF_CELL = "weight_ih", "weight_hh", "bias_ih", "bias_hh"  # names of nn.LSTMCell, nn.GRUCell and nn.RNNCell
_PARAMETER = r"((?:weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)(?:_l\d{1,9}(?:_reverse)?)?)"
# What PyTorch's weight_norm, spectral_norm and parametrizations keep in place of a parameter.
_PART = re.compile(rf"parametrizations\.{_PARAMETER}\..+|{_PARAMETER}_(?:g|v|u|orig)")


def from_torch(
    source: Any, prefix: str = "", *, nonlinearity: str | None = None, dropout: float | None = None
) -> Network:
    """Return a network with the weights of a PyTorch module or state dict; torch is not imported.

    Parameters
    ----------
    source : Module or mapping of str to array_like
        An nn.RNN, nn.GRU, nn.LSTM or one of their cells, a model with one inside, also a scripted one, or the state
        dict of any of them: tensors on any device, or other arrays. Of a module with weight_norm or spectral_norm the
        present weights. Or an rnnkit.torch.Recurrent or a model with one, but not its state dict, which lacks the cell.
    prefix : str
        Module path of the network in a model, for example "encoder.rnn".
    nonlinearity : {"tanh", "relu"}, optional
        Nonlinearity of an nn.RNN; only for a state dict, which does not store it. None is PyTorch's default, "tanh".
    dropout : float, optional
        Dropout between layers; only for a state dict, which does not store it. None is PyTorch's default, 0.

    Returns
    -------
    RNN, GRU or LSTM; Network for a Recurrent
        Copies of the weights, in their dtype.  It is time-major, whatever the module's batch_first:
        ``net.infer(x.swapaxes(0, 1))``.

    Raises
    ------
    TypeError
        `source` is neither, or the arrays are not all float32 or all float64.
    ValueError
        Entries are missing or unknown, their shapes do not fit the first layer, or an option is given with a module,
        which already determines it.

    Examples
    --------
    >>> named = {"rnn.weight_ih_l0": np.ones((6, 3)), "rnn.weight_hh_l0": np.ones((6, 2)), "head.bias": np.ones(2)}
    >>> from_torch(named, "rnn")
    <GRU: RNNDescriptor('gru', 3, 2, bias='none', dtype='float64'), 30 weights>
    """
    prefix = with_dot("from_torch", prefix)
    if isinstance(source, Mapping):
        arrays = _arrays(prefix, source)
    else:
        why = "with a module, which determines it"
        _check_module("from_torch", "source", source, " or a state dict")
        recurrent = _recurrent_at("from_torch", source, prefix)
        if recurrent is not None:
            check_left_out("from_torch", why, nonlinearity=nonlinearity, dropout=dropout)
            return recurrent.network()
        module = dict(source.named_modules()).get(prefix[:-1])  # a ScriptModule has no get_submodule
        arrays = _arrays(prefix, _with_present_weights(prefix, source.state_dict(), module))
        check_left_out("from_torch", why, nonlinearity=nonlinearity, dropout=dropout)
        nonlinearity, dropout = getattr(module, "nonlinearity", None), getattr(module, "dropout", None)
    desc = _descriptor(prefix, arrays, nonlinearity, 0.0 if dropout is None else dropout)
    _check_entries("from_torch", "source", prefix, desc, arrays)
    return network(desc, arrays)


def to_torch(net: Network, prefix: str = "", *, module: Any = None) -> dict[str, np.ndarray]:
    """Return the weights of a network by PyTorch's names, and optionally write them into `module`.

    Parameters
    ----------
    net : RNN, GRU, LSTM or Network
        A network that PyTorch supports: no cell_clip, input_mode="linear", reset_after=True. A network of a custom cell
        converts only to an rnnkit.torch.Recurrent of the same cell.
    prefix : str
        Module path of the network in a model, for example "encoder.rnn".
    module : Module, optional
        An nn.RNN, nn.GRU, nn.LSTM, one of their cells or rnnkit.torch.Recurrent, or a model with one at `prefix`; its
        ``load_state_dict`` is called.

    Returns
    -------
    dict of str to ndarray
        Copies.  If the network has one bias, the other is zeros: PyTorch has both or none.  ``load_state_dict`` needs
        tensors: ``{name: torch.from_numpy(array) for name, array in to_torch(net).items()}``.

    Raises
    ------
    TypeError
        `net` is not a network, `module` is not a Module, or it has another dtype.
    ValueError
        PyTorch does not support this network, or `module` has another mode, other sizes or no bias.

    Examples
    --------
    >>> from rnnkit import GRU
    >>> {name: array.shape for name, array in to_torch(GRU(3, 2), "rnn").items()}
    {'rnn.weight_ih_l0': (6, 3), 'rnn.weight_hh_l0': (6, 2), 'rnn.bias_ih_l0': (6,), 'rnn.bias_hh_l0': (6,)}
    """
    prefix, why = with_dot("to_torch", prefix), "PyTorch supports nothing else"
    recurrent = None if module is None else _recurrent_at("to_torch", module, prefix)
    cells = () if recurrent is None else (type(getattr(net, "mode", None)),)  # another cell raises below
    options = {"input_mode": ("linear",), "cell_clip": (None,), "reset_after": (True,)}
    options["learned_initial_state"] = (False, True)  # of a module of rnnkit.torch
    blocks = blocks_of("to_torch", net, why, cells, **options)
    if recurrent is not None and net.desc.mode != recurrent.cell:
        raise ValueError(message("to_torch", "module", f"be of {net.desc.mode!r}", f"one of {recurrent.cell!r}"))
    desc = net.desc if net.desc.bias == "none" else replace(net.desc, bias="both")
    arrays = {
        name: blocks[name].copy() if name in blocks else np.zeros(shape, desc.np_dtype)
        for name, shape, _ in weight_layout(desc)
    }
    if module is not None:
        _write(prefix, desc, arrays, module)
    return {prefix + name: array for name, array in arrays.items()}


def with_dot(function: str, prefix: Any) -> str:
    """Return a prefix that ends with a dot, unless it is empty."""
    if not isinstance(prefix, str):
        raise wrong_type(function, "prefix", "a str", prefix)
    return f"{prefix}." if prefix and not prefix.endswith(".") else prefix


def _check_module(function: str, argument: str, value: Any, alternative: str = "") -> None:
    if isinstance(value, type) or not (hasattr(value, "state_dict") and hasattr(value, "get_submodule")):
        raise wrong_type(function, argument, f"a PyTorch Module{alternative}", value)


def _recurrent_at(function: str, model: Any, prefix: str) -> Any:
    """Return the rnnkit.torch.Recurrent at a module path; None if there is none."""
    torch = sys.modules.get("rnnkit.torch")  # not imported: there can be none
    if torch is None or isinstance(model, type) or not hasattr(model, "named_modules"):
        return None
    found = dict(model.named_modules()).get(prefix[:-1])
    return found if isinstance(found, torch.Recurrent) else None


def _with_present_weights(prefix: str, named: Mapping[str, Any], module: Any) -> dict[str, Any]:
    """Return the entries of a state dict with the module's parameters in place of their parts."""
    found: dict[str, Any] = {}
    for name, value in named.items():
        part = _PART.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if part is None or module is None:
            found[name] = value
        else:
            parameter = part[1] or part[2]
            found[prefix + parameter] = getattr(module, parameter).detach()
    return found


def _arrays(prefix: str, named: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays under a prefix, by name without it; the error lists valid prefixes."""
    for name in named:
        if not isinstance(name, str):
            raise TypeError(message("from_torch", "source", "have names for keys", repr(name)))
    found = {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
    if _OF_CELL[1] in found and found.keys() <= {*_OF_CELL}:
        found = {f"{name}_l0": value for name, value in found.items()}
    if _FIRST not in found:
        ends = f".{_FIRST}", f".{_OF_CELL[1]}"
        places = [name.removesuffix(end) for end in ends for name in named if name.endswith(end)]
        cure = f"pass prefix={' or '.join(map(repr, places))}" if places else "it has no nn.RNN, nn.GRU or nn.LSTM"
        if any(_PART.fullmatch(name) for name in found):
            cure = "it has parts of weight_norm, spectral_norm or a parametrization: pass the module itself"
        raise ValueError(message("from_torch", "source", f"hold {prefix}{_FIRST}", f"{len(named)} other names", cure))
    unknown = [prefix + name for name in found if not _NAME.fullmatch(name)]
    if unknown:
        expected = "hold the parameters of one nn.RNN, nn.GRU or nn.LSTM"
        raise ValueError(message("from_torch", "source", expected, f"also {', '.join(unknown)}"))
    return {name: real_array("from_torch", prefix + name, value) for name, value in found.items()}


def _descriptor(
    prefix: str, arrays: Mapping[str, np.ndarray], nonlinearity: str | None, dropout: float
) -> RNNDescriptor:
    """Infer the descriptor from the names, and from the shapes of the first layer."""
    matrices = [name for name in ("weight_ih_l0", _FIRST, "weight_hr_l0") if name in arrays]
    check_names("from_torch", "source", "the matrices of layer 0", matrices + ["weight_ih_l0"], matrices)
    for name in matrices:
        check_shape("from_torch", prefix + name, arrays[name], (None, None), ("rows", "columns"))
    projection = arrays.get("weight_hr_l0")
    rows, size = arrays[_FIRST].shape
    hidden_size = size if projection is None else projection.shape[1]
    parts = [_NAME.fullmatch(name).groups() for name in arrays]
    return RNNDescriptor(
        mode_of_rows("from_torch", prefix + _FIRST, rows, hidden_size, nonlinearity=nonlinearity),
        arrays["weight_ih_l0"].shape[1],
        hidden_size,
        1 + max(int(layer) for _, layer, _ in parts),
        any(reverse for *_, reverse in parts),
        bias="both" if any(block.startswith("bias") for block, *_ in parts) else "none",
        proj_size=None if projection is None else projection.shape[0],
        dropout=dropout,
        learned_initial_state=any(block in ("h0", "c0") for block, *_ in parts),
        dtype=common_dtype("from_torch", {prefix + name: array for name, array in arrays.items()}),
    )


def _check_entries(function: str, argument: str, prefix: str, desc: RNNDescriptor, arrays: Mapping[str, Any]) -> None:
    """Check the names and shapes of arrays or tensors."""
    layout = weight_layout(desc)
    names = [prefix + block.name for block in layout]
    expected = f"the {len(names)} entries of {desc!r}"
    check_names(function, argument, expected, names, [prefix + name for name in arrays])
    output, rows = "proj_size" if desc.projected else "hidden_size", gate_rows(desc.num_input_gates)
    recurrent_rows = gate_rows(desc.num_recurrent_gates)
    for name, shape, _ in layout:
        block, _, place = name.rpartition("_l")
        below = "input_size" if place in ("0", "0_reverse") else f"{desc.num_directions}*{output}"
        dims = {
            "weight_ih": (rows, below), "weight_hh": (recurrent_rows, output), "weight_hr": (output, "hidden_size"),
            "bias_ih": (rows,), "bias_hh": (recurrent_rows,),
        }  # fmt: skip
        check_shape(function, prefix + name, arrays[name], shape, dims.get(block, ("hidden_size",)))


def _write(prefix: str, desc: RNNDescriptor, arrays: Mapping[str, np.ndarray], model: Any) -> None:
    """Check first, then write into a module: load_state_dict writes the valid part before it raises."""
    _check_module("to_torch", "module", model)
    try:
        module = model.get_submodule(prefix[:-1])
    except AttributeError as error:
        raise ValueError(message("to_torch", "module", f"have one at prefix={prefix[:-1]!r}", error)) from error
    state = module.state_dict()
    suffix = "_l0" if _OF_CELL[1] in state else ""  # a cell has no layers
    _check_entries("to_torch", "module", prefix, desc, {name + suffix: tensor for name, tensor in state.items()})
    for name, tensor in state.items():
        found = dtype_name(tensor.dtype)
        if found != desc.dtype:
            cure = "convert the module with .float() or .double()"
            raise TypeError(message("to_torch", prefix + name, f"be {desc.dtype} as the network is", found, cure))
    chosen = getattr(module, "nonlinearity", None)
    if chosen is not None and mode_of("RNN", nonlinearity=chosen) != desc.mode:
        expected = f'compute what mode="{desc.mode}" does'
        raise ValueError(message("to_torch", "module", expected, f"nonlinearity={chosen!r}"))
    module.load_state_dict({name: tensor.new_tensor(arrays[name + suffix]) for name, tensor in state.items()})
