"""export_c: writes a network as a C file that computes the same bits."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.common.archive import replacing
from rnnkit.common.arrays import library_of
from rnnkit.cpu.layer import layers_of, pack
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.states import learned_states
from rnnkit.equations.c_functions import functions, head
from rnnkit.equations.c_text import KEYWORDS
from rnnkit.errors import message
from rnnkit.native.arrays import Arrays
from rnnkit.native.check import check as run_test
from rnnkit.native.int8_products import Int8Products
from rnnkit.native.layer import LayerWriter
from rnnkit.native.network import Body, header
from rnnkit.native.products import Products
from rnnkit.native.readout import Readout
from rnnkit.native.selftest import test_program

_DTYPES = np.dtype(np.float32), np.dtype(np.float64)


class Options(NamedTuple):
    """The arguments of `Network.export_c`."""

    name: str
    readout: Any
    activation: Any
    precision: str | None
    weights: str


def export_c(net: Any, folder: str | PathLike[str], options: Options, check: bool) -> tuple[Path, ...]:
    """Write the files of `Network.export_c`."""
    desc, name = net.desc, options.name
    _check(desc, net.weights, options)
    readout, arrays = _readout(net, options.readout, options.activation), Arrays(options.weights == "binary")
    source, head_file = _texts(desc, net.weights, options, readout, arrays)
    infer = net.prepare(precision=options.precision).infer
    files = {f"{name}.c": source, f"{name}.h": head_file}
    files[f"{name}_test.c"] = test_program(desc, infer, name, readout, arrays.in_file)
    contents = {file: text.encode() for file, text in files.items()}
    if arrays.in_file:
        contents[f"{name}.bin"] = arrays.file()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in contents.items():
        with replacing("export_c", folder / file) as stream:
            stream.write(data)
    if check:
        run_test(folder, name)
    return tuple(folder / file for file in contents)


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


def _check(desc: RNNDescriptor, w: Any, options: Options) -> None:
    name, precision = options.name, options.precision
    if library_of(w) is not np:
        raise ValueError(message("export_c", "net.weights", "be in a numpy.ndarray", type(w).__module__))
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in KEYWORDS:
        raise ValueError(message("export_c", "name", "be a name in C: letters, digits and _", repr(name)))
    if desc.np_dtype not in _DTYPES:
        raise ValueError(message("export_c", "dtype", "be float32 or float64", repr(desc.dtype)))
    if precision not in (None, "int8") or (precision and desc.dtype != "float32"):
        expected = "be None, or 'int8' for a float32 network"
        raise ValueError(message("export_c", "precision", expected, f"{precision!r} for {desc.dtype}"))
    if options.weights not in ("source", "binary"):
        raise ValueError(message("export_c", "weights", "be 'source' or 'binary'", repr(options.weights)))


def _version() -> str:
    try:
        return version("rnnkit")
    except PackageNotFoundError:  # run from a folder of sources
        return "of a folder"


def _texts(
    desc: RNNDescriptor, w: np.ndarray, options: Options, readout: Readout | None, arrays: Arrays
) -> tuple[str, str]:
    """Return the texts of the source file and the header; the weights go to `arrays`."""
    real, products, packed = w.dtype.type, Products(w.dtype.type), pack(desc, w, Arena())
    int8 = None if options.precision is None else Int8Products()
    layers, names, texts, name = [], [], [], options.name
    for layer in layers_of(desc):
        names.append(f"layer_{layer.layer}" + ("_reverse" if layer.direction else ""))
        columns = len(layer.cell.declaration.slots) * layer.sizes.hidden + layer.products[-1].rows.size
        bias = packed[int(layer.offsets[-2]) :][:columns]
        layers.append(LayerWriter(layer, w, bias, products, int8, names[-1]).text(arrays))
    initial = "rk_initial" if desc.learned_initial_state else ""
    for state, values in zip("hs", learned_states(desc, w, 1) if initial else (None, None), strict=True):
        texts += [] if values is None else [arrays.text(f"{initial}_{state}", values.ravel())]
    texts += [*(one.arrays for one in layers), *(one.function for one in layers)]
    call = ""
    if readout is not None:
        texts.append(readout.text(products, arrays))
        call = f"rk_readout({arrays.argument}{{hidden}}, {{y}});"
    texts.append(Body(desc, name, names, initial, call, arrays).functions())
    body = ("" if int8 is None else int8.functions()) + products.functions() + "\n" + "\n".join(texts)
    about = {
        "real": "float" if real is np.float32 else "double", "version": _version(),
        "stack": max(one.stack for one in layers), "has_readout": readout is not None,
        "outputs": desc.num_directions * desc.output_size if readout is None else readout.size,
        "file_bytes": len(arrays.file()) if arrays.in_file else 0,
    }  # fmt: skip
    about_file = f"Written by rnnkit {about['version']}: do not edit. {name}.h says how to compile and use it."
    source = f"/* {desc!r}. {about_file} */\n" + head(name, real, desc.hidden_size) + functions(real, body) + body
    return source, header(desc, name, about)
