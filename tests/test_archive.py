"""The file under `save` and `load`: what is believed of it, where it may stand, and what others see meanwhile."""

import io
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import numpy as np
import pytest
from messages import says

from rnnkit import GRU, LSTM, RNNDescriptor, load
from rnnkit.common import archive

DESC = RNNDescriptor("lstm", 3, 5)
WEIGHTS = np.arange(200, dtype=np.float32)



def npy(array=None, header=None, magic=b"\x93NUMPY\x01\x00", data=None):
    """The bytes of an .npy file, or of what claims to be one."""
    array = np.asarray(array)
    described = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    text = (repr(described)[:-1] + ", }" if header is None else header).encode("latin1")
    data = array.tobytes() if data is None else data
    return magic + struct.pack("<H", len(text) + 1) + text + b"\n" + data


def contents(**changed):
    """The members of a small network as bytes, with some of them changed."""
    usual = {"format": npy(1), "descriptor": npy(json.dumps(asdict(DESC))), "weights": npy(WEIGHTS)}
    return usual | changed


def packed(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def assert_refused(path, *facts):
    with pytest.raises(ValueError, match=says(f"load: path {os.fspath(path)!r}", *facts)):
        load(path)


def test_the_file_that_these_are_made_of_loads(tmp_path):
    net = load(packed(tmp_path / "net", contents()))
    assert net.desc == DESC
    np.testing.assert_array_equal(net.weights, WEIGHTS)


def test_an_order_of_columns_is_read_as_such(tmp_path):
    matrix = np.arange(6.0).reshape(2, 3)
    data = npy(header="{'descr': '<f8', 'fortran_order': True, 'shape': (2, 3), }", data=matrix.T.tobytes())
    packed(tmp_path / "file", {"matrix": data})
    with archive.opened("load", tmp_path / "file") as file:
        np.testing.assert_array_equal(file.array("matrix"), matrix)


def weights_header(descr="'<f4'", shape="(200,)"):
    return npy(header=f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}", data=WEIGHTS.tobytes())


TEXT, NPZ = ("descriptor", "text", 4194304), ".npz"
CLAIMS = [
    (dict(weights=weights_header(shape="(1099511627776,)")), [NPZ, 800, "weights", 4398046511104]),
    (dict(weights=weights_header(shape="(201,)")), [NPZ, 800, "weights", 804]),
    (dict(weights=weights_header(shape="(199,)")), [NPZ, 800, "weights", 796]),
    (dict(weights=weights_header(shape="(" + "9" * 5000 + ",)")), [NPZ, "weights", "header \"{'descr': "]),
    (dict(weights=weights_header(shape="(-200,)")), [NPZ, "weights", "header \"{'descr': "]),
    (dict(weights=weights_header(shape="(" * 5000 + "200,)")), [NPZ, "weights", "header \"{'descr': "]),
    (dict(weights=weights_header("'<V0'", "(1000000000000000000,)")), [NPZ, 800, "weights", 0]),
    (dict(weights=weights_header("'<f3'")), [NPZ, "'<f3'"]),
    (dict(weights=npy(header="", data=b"")), [NPZ, "weights", "header '\\n'"]),
    (dict(weights=npy(WEIGHTS, magic=b"\x93NUMPY\x02\x00")), [NPZ, "weights", "header"]),
    (dict(weights=b""), [NPZ, "weights", "header ''"]),
    (dict(format=npy(np.zeros((), "V8"))), ["format 1", "format", "|V8", ()]),
    (dict(format=npy(np.zeros((), "V0"), header="{'descr': '|V0', 'fortran_order': False, 'shape': (), }")),
     [NPZ, "format", "0 bytes"]),
    (dict(format=npy(header="{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (), }", data=bytes(8))),
     [NPZ, "format", "header \"{'descr': [('a', '<i8')]"]),
    (dict(format=npy(1.0)), ["format 1", "float64", ()]),
    (dict(format=npy(True)), ["format 1", "bool", ()]),
    (dict(descriptor=npy(b"{}")), [*TEXT, "|S2", ()]),
    (dict(descriptor=npy(["{}"])), [*TEXT, "<U2", (1,)]),
    (dict(descriptor=npy("{}", data=b"\xff" * 8)), ["descriptor", "Expecting value"]),
    (dict(descriptor=npy("[" * 100_000)), ["descriptor", "recursion"]),
    (dict(descriptor=npy("1" * 5000)), ["descriptor", "4300 digits"]),
    (dict(descriptor=npy(json.dumps(asdict(DESC) | {"dropout": 10**400}))),
     ["descriptor", "RNNDescriptor: dropout", "float64"]),
    (dict(descriptor=npy(json.dumps(asdict(DESC) | {"cell_clip": [0, 10**400]}))),
     ["descriptor", "RNNDescriptor: cell_clip[1]", "float64"]),
    (dict(descriptor=npy(json.dumps(asdict(DESC) | {"num_layers": 10**9}))),
     ["descriptor", "RNNDescriptor: num_layers", 10000, 1000000000]),
    (dict(descriptor=npy(json.dumps(asdict(DESC) | {"num_layers": 10_000, "hidden_size": 2**31 - 1}))),
     ["weights", "float32", f"(num_weights={4 * (2**31 - 1) * (3 + 19_999 * (2**31 - 1) + 20_000)},)"]),
]


@pytest.mark.parametrize(("changed", "facts"), CLAIMS)
def test_a_claim_is_refused_before_memory_is_taken_for_it(changed, facts, tmp_path):
    path = packed(tmp_path / "net", contents(**changed))
    tracemalloc.start()
    assert_refused(path, *facts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * path.stat().st_size + (1 << 18)  # 6: a list for every "[" of a text


def test_a_dtype_whose_package_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    half = npy(json.dumps(asdict(DESC) | {"dtype": "bfloat16"}))
    dtypes = "float32", "float64", "float16", "bfloat16"
    path = packed(tmp_path / "net", contents(descriptor=half))
    assert_refused(path, "RNNDescriptor: dtype", "ml_dtypes", *dtypes)


def directory_field(data, name, offset, value):
    """The bytes of a file with one field of a member's entry in the zip directory changed."""
    entry = data.rindex(name.encode()) - 46
    assert data[entry : entry + 4] == b"PK\x01\x02"
    return data[: entry + offset] + value + data[entry + offset + len(value) :]


SIZES = 20  # compressed and uncompressed, 4 bytes each
FIELDS = [
    (SIZES, struct.pack("<II", 2**31, 2**31), ["weights", 2**31]),
    (SIZES + 4, struct.pack("<I", 2**31), ["compressed", "weights"]),
    (SIZES, struct.pack("<II", 10, 10), ["CRC-32", "'weights.npy'"]),
    (10, struct.pack("<H", 8), ["compressed", "weights"]),
    (8, struct.pack("<H", 1), ["ZipInfo", "'weights.npy'"]),
    (6, struct.pack("<H", 99), ["zip", 9.9]),
    (42, struct.pack("<I", 7), []),  # a bad magic number, or overlapping entries where Python looks for them
]


@pytest.mark.parametrize(("offset", "value", "facts"), FIELDS)
def test_a_field_of_the_directory(offset, value, facts, tmp_path):
    path = packed(tmp_path / "net", contents())
    path.write_bytes(directory_field(path.read_bytes(), "weights.npy", offset, value))
    assert_refused(path, NPZ, *facts)


def test_an_offset_beyond_every_file(tmp_path):
    """A zip64 field of 2**64 - 1."""
    extra = struct.pack("<HHQ", 1, 8, 2**64 - 1)
    data = packed(tmp_path / "net", contents()).read_bytes()
    end = data.index(b"weights.npy", data.index(b"PK\x01\x02")) + len("weights.npy")
    data = directory_field(data, "weights.npy", 42, struct.pack("<I", 2**32 - 1))
    data = directory_field(data, "weights.npy", 30, struct.pack("<H", len(extra)))
    size, start = struct.unpack("<II", data[-10:-2])
    ends = data[-22:-10] + struct.pack("<II", size + len(extra), start) + data[-2:]
    (tmp_path / "net").write_bytes(data[:end] + extra + data[end:-22] + ends)
    assert_refused(tmp_path / "net", NPZ, "cannot fit")  # as Python says


def test_a_compressed_file_is_refused_before_it_is_unpacked(tmp_path):
    zeros = npy(np.zeros(1 << 24, np.float32))
    path = packed(tmp_path / "net", contents(weights=zeros), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 17
    tracemalloc.start()
    assert_refused(path, NPZ, "compressed", "format")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_long_directory_is_refused_unread(tmp_path):
    """30,000 empty members would be 30,000 objects of half a kilobyte."""
    data = packed(tmp_path / "net", contents()).read_bytes()
    start, end = data.index(b"PK\x01\x02"), len(data) - 22
    entry = data[start : data.index(b"PK\x01\x02", start + 4)]
    size = struct.pack("<I", end - start + 30_000 * len(entry))
    (tmp_path / "net").write_bytes(data[:end] + entry * 30_000 + data[end : end + 12] + size + data[end + 16 :])
    tracemalloc.start()
    assert_refused(tmp_path / "net", NPZ, "directory")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_damaged_text_is_named_once(tmp_path):
    long = npy(json.dumps(asdict(DESC)) + " " * 5000)  # more than zipfile reads to see the header
    data = packed(tmp_path / "net", contents(descriptor=long)).read_bytes()
    (tmp_path / "net").write_bytes(data.replace("lstm".encode("utf-32-le"), "lstn".encode("utf-32-le")))
    assert_refused(tmp_path / "net", NPZ, "CRC-32", "'descriptor.npy'")


def test_a_member_that_is_there_twice(tmp_path):
    path = packed(tmp_path / "net", contents(other=npy(WEIGHTS)))
    path.write_bytes(path.read_bytes().replace(b"other.npy", b"twice.npy"))
    load(path)
    path = packed(tmp_path / "net", contents(twelves=npy(WEIGHTS)))
    path.write_bytes(path.read_bytes().replace(b"twelves.npy", b"weights.npy"))
    assert_refused(path, "format, descriptor, weights", "once", "more than one weights")


def test_a_long_text_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "TEXT_BYTES", 40)
    assert_refused(packed(tmp_path / "net", contents()), "descriptor", "text", 10)


def test_an_error_of_the_device_stays_one():
    class Failing(io.BytesIO):
        def read(self, size=-1):
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        archive.Reader("load", "net", Failing())


def test_what_is_no_regular_file_is_refused_and_left(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(tmp_path / "socket"))
    for name, kind in {"fifo": "FIFO", "folder": "folder", "socket": "socket"}.items():
        path = tmp_path / name
        before = path.stat()
        for function, call in (("save", GRU(3, 2).save), ("load", load)):
            with pytest.raises(ValueError, match=says(f"{function}: path '{path}'", "regular file", kind)):
                call(path)
        assert (path.stat().st_ino, path.stat().st_mode) == (before.st_ino, before.st_mode)
    assert sorted(os.listdir(tmp_path)) == ["fifo", "folder", "socket"]


@pytest.mark.parametrize("name", ["", "missing/"])
def test_a_name_that_is_no_files(name, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ValueError, match=says(f"save: path '{name}'", "file", "folder")):
        GRU(3, 2).save(name)
    assert os.listdir(tmp_path) == ["here"] and os.listdir(tmp_path / "here") == []


def test_a_symbolic_link_stays_and_its_file_is_written(tmp_path):
    (tmp_path / "folder").mkdir()
    os.symlink("folder/net", tmp_path / "link")
    for seed in (0, 1):  # at first it points to nothing
        net = GRU(3, 2, seed=seed)
        net.save(tmp_path / "link")
        assert os.readlink(tmp_path / "link") == "folder/net"
        assert load(tmp_path / "folder" / "net").weights.tobytes() == net.weights.tobytes()
    assert os.listdir(tmp_path / "folder") == ["net"] and sorted(os.listdir(tmp_path)) == ["folder", "link"]


def test_a_link_to_itself(tmp_path):
    os.symlink("link", tmp_path / "link")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        GRU(3, 2).save(tmp_path / "link")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o666])
def test_the_mode_stays_and_holds_from_the_first_byte(mode, tmp_path, monkeypatch):
    path, seen, write_array = tmp_path / "net", [], np.lib.format.write_array
    GRU(3, 2).save(path)
    path.chmod(mode)

    def watched(*arguments, **options):
        seen.extend(stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob(".rnnkit-*"))
        write_array(*arguments, **options)

    monkeypatch.setattr(np.lib.format, "write_array", watched)
    LSTM(3, 2).save(path)
    assert seen == [mode] * 3 and stat.S_IMODE(path.stat().st_mode) == mode
    assert type(load(path)) is LSTM


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_stays(tmp_path):
    GRU(3, 2).save(tmp_path / "net")
    os.chown(tmp_path / "net", 1234, 2345)
    GRU(3, 2).save(tmp_path / "net")
    assert ((tmp_path / "net").stat().st_uid, (tmp_path / "net").stat().st_gid) == (1234, 2345)


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_is_made_as_the_umask_says(mask, mode, tmp_path, umask):
    umask(mask)
    GRU(3, 2).save(tmp_path / "net")
    assert stat.S_IMODE((tmp_path / "net").stat().st_mode) == mode


@pytest.mark.parametrize("name", [b"net", b"n\xff", "x" * 255, "ü" * 127], ids=["bytes", "undecodable", "long", "wide"])
def test_every_name_that_a_file_may_have(name, tmp_path):
    path = os.path.join(os.fsencode(tmp_path), os.fsencode(name))
    path = path if isinstance(name, bytes) else os.fsdecode(path)
    net = GRU(3, 2, seed=0)
    net.save(path)
    assert load(path).weights.tobytes() == net.weights.tobytes()
    assert os.listdir(os.fsencode(tmp_path)) == [os.fsencode(name)]


KILLED = """
import os, signal, sys
import numpy as np
import rnnkit

def half_written(member, *others, **options):
    member.write(b"PK")
    os.kill(os.getpid(), signal.SIGKILL)

np.lib.format.write_array = half_written
rnnkit.GRU(3, 2).save(sys.argv[1])
"""


def test_what_a_killed_save_leaves_the_next_removes(tmp_path):
    net = GRU(3, 2, seed=0)
    net.save(tmp_path / "net")
    for _ in range(2):  # the second removes what the first has left
        done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "net"], check=False)
        assert done.returncode == -signal.SIGKILL
        left, name = sorted(os.listdir(tmp_path))
        assert name == "net" and left.startswith(".rnnkit-") and left.endswith(".tmp")
    assert load(tmp_path / "net").weights.tobytes() == net.weights.tobytes()
    net.save(tmp_path / "other")
    assert sorted(os.listdir(tmp_path)) == ["net", "other"]


def test_what_another_save_is_writing_stays(tmp_path):
    with archive._temporary(os.fspath(tmp_path / "net")) as (file, _):
        GRU(3, 2).save(tmp_path / "net")
        assert sorted(os.listdir(tmp_path)) == [os.path.basename(file.name), "net"]
        file.close()  # as it is before the rename
        GRU(3, 2).save(tmp_path / "net")
        assert sorted(os.listdir(tmp_path)) == [os.path.basename(file.name), "net"]
    assert os.listdir(tmp_path) == ["net"]


def test_a_file_that_was_taken_for_a_left_one_is_made_again(tmp_path, monkeypatch):
    lock, taken = archive.try_lock, []

    def removed_first(file, wait):
        if wait and not taken:
            taken.extend(tmp_path.glob(".rnnkit-*.tmp"))
            os.remove(taken[0])
        return lock(file, wait)

    monkeypatch.setattr(archive, "try_lock", removed_first)
    GRU(3, 2).save(tmp_path / "net")
    assert len(taken) == 1 and os.listdir(tmp_path) == ["net"]
    load(tmp_path / "net")


def test_nothing_else_is_removed(tmp_path):
    os.mkfifo(tmp_path / ".rnnkit-fifo.tmp")  # nobody writes: to open it would wait for ever
    (tmp_path / "precious").write_text("text")
    os.symlink("precious", tmp_path / ".rnnkit-link.tmp")
    (tmp_path / ".rnnkit-folder.tmp").mkdir()
    names = ["net.1234.tmp", "rnnkit-1.tmp", ".rnnkit-1"]
    for name in names:
        (tmp_path / name).write_text("text")
    GRU(3, 2).save(tmp_path / "net")
    names += ["precious", "net", ".rnnkit-link.tmp", ".rnnkit-folder.tmp"]
    assert set(names) <= set(os.listdir(tmp_path))


def test_savers_at_once_leave_one_whole_file(tmp_path):
    nets = [GRU(3, 2, seed=seed) for seed in range(4)]

    def save(net):
        for _ in range(25):
            net.save(tmp_path / "net")
            load(tmp_path / "net")

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(save, net) for net in nets]:
            done.result()
    assert os.listdir(tmp_path) == ["net"]
    assert load(tmp_path / "net").weights.tobytes() in {net.weights.tobytes() for net in nets}


def test_a_place_is_checked_without_a_trace(tmp_path):
    archive.check_target(tmp_path / "net")
    assert os.listdir(tmp_path) == []
    GRU(3, 2).save(tmp_path / "net")
    before = (tmp_path / "net").stat()
    archive.check_target(tmp_path / "net")
    assert (tmp_path / "net").stat() == before and os.listdir(tmp_path) == ["net"]
    with pytest.raises(FileNotFoundError) as caught:
        archive.check_target(tmp_path / "missing" / "net")
    assert caught.value.filename == os.fspath(tmp_path / "missing" / "net")
