"""What a network writes: a file of its own, and C."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, Literal

from rnnkit.descriptor import saved
from rnnkit.descriptor.descriptor import RNNDescriptor


class NetworkFiles:
    """The methods of a network that write files."""

    arrays: dict[str, Any]
    _desc: RNNDescriptor
    _weights: Any

    def export_c(
        self,
        folder: str | PathLike[str],
        name: str = "model",
        *,
        readout: str | Any | None = None,
        activation: Any = None,
        precision: Literal["int8"] | None = None,
        weights: Literal["source", "binary"] = "source",
        check: bool = False,
    ) -> tuple[Path, ...]:
        """Write the network as C99 that computes the same bits as this engine, step by step.

        Parameters
        ----------
        folder : str or path-like
            Gets ``name.c``, ``name.h``, which documents the functions, and ``name_test.c``, a program that compares
            every bit with the engine's. It is made if it does not exist; present files are replaced.
        name : str
            Name of the files, and start of the names in C.
        readout : str or ndarray (K*(D*P + 1),), optional
            A dense layer after the network: its flat weights as of :func:`rnnkit.training.dense`, or their name in
            :attr:`arrays`. The outputs are its K numbers then.
        activation : activation of :mod:`rnnkit.cells`, optional
            Applied to the readout, for example ``Sigmoid()``.
        precision : {"int8"}, optional
            Quantize the weights of a float32 network, as ``prepare(precision="int8")`` does: with the bits of that
            plan, and a quarter of the bytes. The readout stays float32.
        weights : {"source", "binary"}
            Where they are: constant arrays of the source, about 15 bytes of text for each, or the file ``name.bin``,
            which the program reads or maps.
        check : bool
            Also compile ``name_test.c`` with the C compiler of this machine (``CC``, or ``cc``), and run it.

        Returns
        -------
        tuple of Path
            The files.

        Raises
        ------
        TypeError, ValueError
            An argument is invalid; the network is on a GPU, or of another dtype than float32 and float64; or its cell
            calls a function that has no equal in C.
        OSError
            A file cannot be written.
        RuntimeError
            With `check`: there is no compiler, the files do not compile, or a bit differs.
        """
        from rnnkit.native.export import Options, export_c

        return export_c(self, folder, Options(name, readout, activation, precision, weights), check)

    def save(self, path: str | PathLike[str], **arrays: Any) -> None:
        """Write the network and its extra arrays to a file that :func:`rnnkit.load` reads.

        The write is atomic: other processes see the old file or the complete new one, and a failed save keeps the old
        file.

        Parameters
        ----------
        path : str or path-like
            Name of the file; no suffix is added. An existing file is replaced, with the same permissions. If `path` is
            a symbolic link, the file that it points to is replaced.
        **arrays : array_like
            Extra arrays of numbers, booleans or text to save with the network, for example a readout layer. They
            override :attr:`arrays` of the same name. ``load`` returns them in ``arrays`` of the network.

        Raises
        ------
        OSError
            The file cannot be written.
        TypeError
            An array has an unsupported dtype (objects, dates, structures), or its name is not a str.
        ValueError
            `path` is a folder, a device, a FIFO or another thing that is not a regular file. Or the name of an array is
            reserved ("format", "descriptor", "weights"), has a NUL or a lone surrogate, or has more than 65,531 bytes
            in UTF-8. Or there are too many names for ``load``.

        Notes
        -----
        The format is NumPy's .npz, uncompressed. Its members are ``format`` (an integer), ``descriptor`` (JSON text),
        ``weights``, and one for each extra array. A killed process may leave a file ``.rnnkit-*.tmp`` in the folder;
        the next save into the folder removes it. Several processes may save to one path: the last file stays.
        """
        saved.write(path, self._desc, self._weights, self.arrays | arrays)
