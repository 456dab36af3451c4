"""The file under `save` and `load`: what is believed of it."""

import json
import os
import pickle
import struct
import sys
import zipfile
from dataclasses import asdict

import numpy as np
import pytest
from messages import raises
from traced import traced_bytes

from rnnkit import RNNDescriptor, load
from rnnkit.common import archive

DESC = RNNDescriptor("lstm", 3, 5)
WEIGHTS = np.arange(200, dtype=np.float32)


def npy(array=None, header=None, magic=b"\x93NUMPY\x01\x00", data=None):
    """The bytes of an .npy file, or of what claims to be one."""
    array = np.asarray(array)
    text = header_of(repr(array.dtype.str), array.shape) if header is None else header
    data = array.tobytes() if data is None else data
    return magic + struct.pack("<H", len(text) + 1) + text.encode("latin1") + b"\n" + data


def header_of(descr="'<f4'", shape="(200,)", fortran_order=False):
    return f"{{'descr': {descr}, 'fortran_order': {fortran_order}, 'shape': {shape}, }}"


def described(without=(), **changed):
    values = asdict(DESC) | changed
    return npy(json.dumps({name: value for name, value in values.items() if name not in without}))


def contents(**changed):
    """The members of a small network as bytes, with some of them changed, or left out where the change is None."""
    found = {"format": npy(1), "descriptor": described(), "weights": npy(WEIGHTS)} | changed
    return {name: data for name, data in found.items() if data is not None}


def packed(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def assert_refused(path, text):
    with raises(ValueError, f"load: path {os.fspath(path)!r} | {text}"):
        load(path)


def assert_refused_within(path, text, most_bytes):
    _, peak = traced_bytes(lambda: assert_refused(path, text))
    assert peak < most_bytes


def test_file_made_of_these_members_loads(tmp_path):
    net = load(packed(tmp_path / "net", contents()))
    assert net.desc == DESC
    np.testing.assert_array_equal(net.weights, WEIGHTS)


class Exploit:
    """Says so when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("unpickled",)


PICKLED = pickle.dumps(Exploit())


def test_incomplete_or_other_file_is_refused(tmp_path):
    whole = packed(tmp_path / "net", contents()).read_bytes()
    cut = [whole[:size] for size in (0, 1, 4, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1)]
    others = [b"some text\n" * 100, b"\x93NUMPY\x01\x00", pickle.dumps([1, 2, 3]), PICKLED]
    # The last NumPy would take for a pickle and recommend to load it as one.
    for content in (*cut, *others, b"X" + whole[1:]):
        (tmp_path / "net").write_bytes(content)
        assert_refused(tmp_path / "net", "complete .npz")


def test_flipped_bit_in_any_member_is_refused(tmp_path):
    whole = packed(tmp_path / "net", contents()).read_bytes()
    with zipfile.ZipFile(tmp_path / "net") as file:
        ends = [entry.header_offset for entry in file.infolist()[1:]] + [file.start_dir]
    assert len(ends) == 3
    for end in ends:
        (tmp_path / "net").write_bytes(whole[: end - 1] + bytes([whole[end - 1] ^ 1]) + whole[end:])
        assert_refused(tmp_path / "net", "undamaged .npz | Bad CRC-32 for file")


def test_fortran_order_is_read(tmp_path):
    matrix = np.arange(6.0).reshape(2, 3)
    packed(tmp_path / "file", {"matrix": npy(header=header_of("'<f8'", (2, 3), True), data=matrix.T.tobytes())})
    with archive.opened("load", tmp_path / "file") as file:
        np.testing.assert_array_equal(file.array("matrix"), matrix)


def claimed(descr="'<f4'", shape="(200,)"):
    return npy(header=header_of(descr, shape), data=WEIGHTS.tobytes())


LARGEST = 2**31 - 1
HUGE = 4 * LARGEST * (3 + 19_999 * LARGEST + 20_000)
SIZE = "weights | float32 | (num_weights=200,)"
PAIR = "[('a', '<i8')]"
FEWER = "missing fields ['bias', 'dtype'] | unknown fields []"
BAD_HEADER = ".npz | weights | header \"{'descr': "
CLAIMS = [
    (dict(weights=None), "no weights"),
    (dict(format=None, descriptor=None), "no format, descriptor"),
    (dict(format=npy(2)), "format 1 | format 2"),
    (dict(format=npy([1, 1])), "format 1 | int64 | (2,)"),
    (dict(weights=npy(WEIGHTS[1:])), f"{SIZE} | (199,)"),
    (dict(weights=npy(WEIGHTS[:, None])), f"{SIZE} | (200, 1)"),
    (dict(weights=npy(np.zeros(200))), f"{SIZE} | float64 | (200,)"),
    (dict(weights=npy(header=header_of("'|O'", (1,)), data=PICKLED)), "undamaged .npz | object array weights"),
    (dict(descriptor=described(hidden_size=6)), "weights | float32 | (num_weights=264,) | (200,)"),
    (dict(descriptor=npy("lstm")), "descriptor | Expecting value"),
    (dict(descriptor=npy("3")), "descriptor | 'int' object is not iterable"),
    (dict(descriptor=npy("[]")), "descriptor | missing fields ['allow_tf32', 'bias', 'bidirectional', "),
    (dict(descriptor=described(["dtype", "bias"])), f"descriptor | {FEWER}"),
    (dict(descriptor=described(peephole=True)), "descriptor | missing fields [] | unknown fields ['peephole']"),
    (dict(descriptor=described(hidden_size=0)), "descriptor | RNNDescriptor: hidden_size | 1 | 0"),
    (dict(descriptor=described(hidden_size="5")), "descriptor | RNNDescriptor: hidden_size | int | str"),
    (dict(weights=claimed(shape="(1099511627776,)")), ".npz | 800 | weights | 4398046511104"),
    (dict(weights=claimed(shape="(201,)")), ".npz | 800 | weights | 804"),
    (dict(weights=claimed(shape="(199,)")), ".npz | 800 | weights | 796"),
    (dict(weights=claimed(shape="(" + "9" * 5000 + ",)")), BAD_HEADER),
    (dict(weights=claimed(shape="(-200,)")), BAD_HEADER),
    (dict(weights=claimed(shape="(" * 5000 + "200,)")), BAD_HEADER),
    (dict(weights=claimed("'<V0'", "(1000000000000000000,)")), ".npz | 800 | weights | 0"),
    (dict(weights=claimed("'<f3'")), ".npz | '<f3'"),
    (dict(weights=npy(header="", data=b"")), r".npz | weights | header '\n'"),
    (dict(weights=npy(WEIGHTS, magic=b"\x93NUMPY\x02\x00")), ".npz | weights | header"),
    (dict(weights=b""), ".npz | weights | header ''"),
    (dict(format=npy(np.zeros((), "V8"))), "format 1 | format | |V8 | ()"),
    (dict(format=npy(np.zeros((), "V0"), header=header_of("'|V0'", "()"))), ".npz | format | 0 bytes"),
    (dict(format=npy(header=header_of(PAIR, "()"), data=bytes(8))), f".npz | format | header \"{{'descr': {PAIR}"),
    (dict(format=npy(1.0)), "format 1 | float64 | ()"),
    (dict(format=npy(True)), "format 1 | bool | ()"),
    (dict(descriptor=npy(b"{}")), "descriptor | text | 4194304 | |S2 | ()"),
    (dict(descriptor=npy(["{}"])), "descriptor | text | 4194304 | <U2 | (1,)"),
    (dict(descriptor=npy("{}", data=b"\xff" * 8)), "descriptor | Expecting value"),
    (dict(descriptor=npy("[" * 100_000)), "descriptor | recursion"),
    (dict(descriptor=npy("1" * 5000)), "descriptor | 4300 digits"),
    (dict(descriptor=described(dropout=10**400)), "descriptor | RNNDescriptor: dropout | float64"),
    (dict(descriptor=described(cell_clip=[0, 10**400])), "descriptor | RNNDescriptor: cell_clip[1] | float64"),
    (dict(descriptor=described(num_layers=10**9)), "descriptor | RNNDescriptor: num_layers | 10000 | 1000000000"),
    (dict(descriptor=described(num_layers=10_000, hidden_size=LARGEST)), f"weights | (num_weights={HUGE},)"),
]


@pytest.mark.parametrize(("changed", "text"), CLAIMS)
def test_claim_is_refused_before_memory_is_allocated_for_it(changed, text, tmp_path):
    path = packed(tmp_path / "net", contents(**changed))
    assert_refused_within(path, text, 6 * path.stat().st_size + (1 << 18))  # 6: a list for every "[" of a text


def test_dtype_without_its_package_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    path = packed(tmp_path / "net", contents(descriptor=described(dtype="bfloat16")))
    assert_refused(path, "RNNDescriptor: dtype | ml_dtypes | float32 | float64 | float16 | bfloat16")


def directory_field(data, name, offset, value):
    """The bytes of a file with one field of a member's entry in the zip directory changed."""
    entry = data.rindex(name.encode()) - 46
    assert data[entry : entry + 4] == b"PK\x01\x02"
    return data[: entry + offset] + value + data[entry + offset + len(value) :]


SIZES = 20  # compressed and uncompressed, 4 bytes each
FIELDS = [
    (SIZES, struct.pack("<II", 2**31, 2**31), ".npz | weights | 2147483648"),
    (SIZES + 4, struct.pack("<I", 2**31), ".npz | compressed | weights"),
    (SIZES, struct.pack("<II", 10, 10), ".npz | CRC-32 | 'weights.npy'"),
    (10, struct.pack("<H", 8), ".npz | compressed | weights"),
    (8, struct.pack("<H", 1), ".npz | ZipInfo | 'weights.npy'"),
    (6, struct.pack("<H", 99), ".npz | zip | 9.9"),
    (42, struct.pack("<I", 7), ".npz"),  # a bad magic number, or overlapping entries where Python looks for them
]


@pytest.mark.parametrize(("offset", "value", "text"), FIELDS)
def test_wrong_field_of_the_directory_is_refused(offset, value, text, tmp_path):
    path = packed(tmp_path / "net", contents())
    path.write_bytes(directory_field(path.read_bytes(), "weights.npy", offset, value))
    assert_refused(path, text)


def test_zip64_offset_beyond_every_file_is_refused(tmp_path):
    extra = struct.pack("<HHQ", 1, 8, 2**64 - 1)
    data = packed(tmp_path / "net", contents()).read_bytes()
    end = data.index(b"weights.npy", data.index(b"PK\x01\x02")) + len("weights.npy")
    data = directory_field(data, "weights.npy", 42, struct.pack("<I", 2**32 - 1))
    data = directory_field(data, "weights.npy", 30, struct.pack("<H", len(extra)))
    size, start = struct.unpack("<II", data[-10:-2])
    ends = data[-22:-10] + struct.pack("<II", size + len(extra), start) + data[-2:]
    (tmp_path / "net").write_bytes(data[:end] + extra + data[end:-22] + ends)
    assert_refused(tmp_path / "net", ".npz | cannot fit")  # as Python says


def test_compressed_file_is_refused_before_it_is_unpacked(tmp_path):
    zeros = npy(np.zeros(1 << 24, np.float32))
    path = packed(tmp_path / "net", contents(weights=zeros), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 17
    assert_refused_within(path, ".npz | compressed | format", 1 << 20)


def test_long_directory_is_refused_unread(tmp_path):
    """30,000 empty members would be 30,000 objects of half a kilobyte."""
    data = packed(tmp_path / "net", contents()).read_bytes()
    start, end = data.index(b"PK\x01\x02"), len(data) - 22
    entry = data[start : data.index(b"PK\x01\x02", start + 4)]
    size = struct.pack("<I", end - start + 30_000 * len(entry))
    (tmp_path / "net").write_bytes(data[:end] + entry * 30_000 + data[end : end + 12] + size + data[end + 16 :])
    assert_refused_within(tmp_path / "net", ".npz | directory", 1 << 20)


def test_error_names_the_damaged_text(tmp_path):
    long = npy(json.dumps(asdict(DESC)) + " " * 5000)  # more than zipfile reads to see the header
    data = packed(tmp_path / "net", contents(descriptor=long)).read_bytes()
    (tmp_path / "net").write_bytes(data.replace("lstm".encode("utf-32-le"), "lstn".encode("utf-32-le")))
    assert_refused(tmp_path / "net", ".npz | CRC-32 | 'descriptor.npy'")


def test_only_members_that_are_read_must_be_unique(tmp_path):
    path = packed(tmp_path / "net", contents(other=npy(WEIGHTS)))
    path.write_bytes(path.read_bytes().replace(b"other.npy", b"twice.npy"))
    load(path)
    path = packed(tmp_path / "net", contents(twelves=npy(WEIGHTS)))
    path.write_bytes(path.read_bytes().replace(b"twelves.npy", b"weights.npy"))
    assert_refused(path, "format, descriptor, weights | once | more than one weights")


def test_long_text_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "TEXT_BYTES", 40)
    assert_refused(packed(tmp_path / "net", contents()), "descriptor | text | 10")
