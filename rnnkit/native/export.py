"""export_c: writes a network as a C file that computes the same bits."""

from __future__ import annotations

import re
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.common.archive import replacing
from rnnkit.common.arrays import library_of
from rnnkit.cpu.layer import layers_of, pack
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.states import learned_states
from rnnkit.errors import message
from rnnkit.native.check import check as run_test
from rnnkit.native.functions import functions, head
from rnnkit.native.int8_products import Int8Products
from rnnkit.native.layer import LayerWriter, array
from rnnkit.native.network import functions as network_functions
from rnnkit.native.network import header
from rnnkit.native.products import Products
from rnnkit.native.readout import Readout
from rnnkit.native.selftest import test_program
from rnnkit.native.text import KEYWORDS

_DTYPES = np.dtype(np.float32), np.dtype(np.float64)


def export_c(
    net: Any, folder: str | PathLike[str], name: str, readout: Any, activation: Any, precision: Any, check: bool
) -> tuple[Path, Path, Path]:
    """Write the files of `Network.export_c`, whose arguments these are."""
    desc, w = net.desc, net.weights
    _check(desc, w, name, precision)
    readout = _readout(net, readout, activation)
    source, head_file = _files(desc, w, name, readout, precision)
    texts = {
        f"{name}.c": source,
        f"{name}.h": head_file,
        f"{name}_test.c": test_program(desc, net.prepare(precision=precision).infer, name, readout),
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        with replacing("export_c", folder / file) as stream:
            stream.write(text.encode())
    if check:
        run_test(folder, name)
    return tuple(folder / file for file in texts)  # type: ignore[return-value]


def _readout(net: Any, readout: Any, activation: Any) -> Readout | None:
    if isinstance(readout, str):
        if readout not in net.arrays:
            names = ", ".join(net.arrays) or "(none)"
            raise ValueError(message("export_c", "readout", f"be one of the network's arrays {names}", repr(readout)))
        readout = net.arrays[readout]
    if readout is None:
        if activation is not None:
            raise ValueError(message("export_c", "activation", "be None without a readout", repr(activation)))
        return None
    desc = net.desc
    return Readout(readout, desc.num_directions * desc.output_size, activation, desc.np_dtype)


def _check(desc: RNNDescriptor, w: Any, name: str, precision: Any) -> None:
    if library_of(w) is not np:
        raise ValueError(message("export_c", "weights", "be in a numpy.ndarray", type(w).__module__))
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in KEYWORDS:
        raise ValueError(message("export_c", "name", "be a name in C: letters, digits and _", repr(name)))
    if desc.np_dtype not in _DTYPES:
        raise ValueError(message("export_c", "dtype", "be float32 or float64", repr(desc.dtype)))
    if precision not in (None, "int8") or (precision and desc.dtype != "float32"):
        expected = "be None, or 'int8' for a float32 network"
        raise ValueError(message("export_c", "precision", expected, f"{precision!r} for {desc.dtype}"))


def _files(
    desc: RNNDescriptor, w: np.ndarray, name: str, readout: Readout | None, precision: str | None
) -> tuple[str, str]:
    """Return the texts of the source file and the header."""
    packed, products, real = pack(desc, w, Arena()), Products(w.dtype.type), w.dtype.type
    layers, names, int8 = [], [], None if precision is None else Int8Products()
    for layer in layers_of(desc):
        names.append(f"layer_{layer.layer}" + ("_reverse" if layer.direction else ""))
        columns = len(layer.cell.declaration.slots) * layer.sizes.hidden + layer.products[-1].rows.size
        bias = packed[int(layer.offsets[-2]) :][:columns]
        layers.append(LayerWriter(layer, w, bias, products, int8, names[-1]).text())
    stack = max(one.stack for one in layers)
    texts, initial, call = [*(one.arrays for one in layers), *(one.function for one in layers)], "", ""
    if desc.learned_initial_state:
        initial = "rk_initial"
        for state, values in zip("hs", learned_states(desc, w, 1), strict=True):
            if values is not None:
                texts.insert(0, array(f"{initial}_{state}", values.ravel()))
    if readout is not None:
        texts.append(readout.text(products))
        call = "rk_readout({hidden}, {y});"
    outputs = desc.num_directions * desc.output_size if readout is None else readout.size
    about = {"real": "float" if real is np.float32 else "double", "version": version("rnnkit"), "stack": stack}
    start = (
        f"/* {desc!r}. Written by rnnkit {about['version']}: do not edit. {name}.h says how to compile and use it. */\n"
    )
    of_int8 = "" if int8 is None else int8.functions()
    body = (
        of_int8 + products.functions() + "\n" + "\n".join(texts) + network_functions(desc, name, names, initial, call)
    )
    source = start + head(name, real, desc.hidden_size) + functions(real, body) + body
    return source, header(desc, name, about | {"outputs": outputs, "has_readout": readout is not None})
