"""Model files: cut off, flipped, made to harm, killed while they are written; the old one or the new one, or an error.

Files are read by a process of their own, whose address space is bounded: what a file claims must not take memory.
"""

import contextlib
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import zipfile
from dataclasses import asdict
from hashlib import sha256

import numpy as np
import pytest
from optional import needs

import rnnkit
from rnnkit.language_model.model import TextModel

READER = """
import resource, sys
from hashlib import sha256
import rnnkit
from rnnkit.language_model import model as textmodel

with open("/proc/self/statm") as file:
    taken = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (64 << 20),) * 2)
print("ready", flush=True)
for line in sys.stdin:
    path, answers = line.rstrip("\\n"), []
    for load in (rnnkit.load, textmodel.load):
        try:
            found = load(path)
        except (ValueError, OSError) as error:
            answers.append(type(error).__name__)
        except BaseException as error:
            answers.append(f"undocumented {error!r:.300}")
        else:
            weights = found.weights if load is rnnkit.load else found.parameters.flat
            answers.append(sha256(repr(found.desc).encode() + weights.tobytes()).hexdigest())
    print("|".join(answers), flush=True)
"""

SAVER = """
import sys
import rnnkit

path, count = sys.argv[1], int(sys.argv[2])
nets = [rnnkit.LSTM(16, 64, seed=seed) for seed in (0, 1)]
nets[0].save(path)
print("ready", flush=True)
for number in range(count):
    nets[number % 2].save(path)
"""


@pytest.fixture
def read(tmp_path):
    """Return a function from a file's bytes to what `rnnkit.load` and the language model's make of them."""
    command = [sys.executable, "-c", READER]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == "ready\n"

        def read(data):
            (tmp_path / "hostile").write_bytes(data)
            process.stdin.write(f"{tmp_path / 'hostile'}\n")
            process.stdin.flush()
            answer = process.stdout.readline().rstrip("\n")
            assert answer, "the process that reads has died"
            return answer.split("|")

        yield read
        process.stdin.close()


def small_model(rng):
    """A random small model for the language model's file, which holds that of a network."""
    mode = str(rng.choice(["lstm", "gru", "rnn_tanh"]))
    sizes = (int(size) for size in rng.integers(1, 4, 3))
    desc = rnnkit.RNNDescriptor(mode, *sizes, dtype=str(rng.choice(["float32", "float64"])))
    return TextModel.random(desc, int(rng.integers(1 << 30)))


def saved(model, path):
    """The bytes of its file, and what both readers answer to them."""
    model.save(path)
    desc, parameters = repr(model.desc).encode(), model.parameters
    both = parameters.network, parameters.flat
    return path.read_bytes(), [sha256(desc + weights.tobytes()).hexdigest() for weights in both]


def assert_refused_or_read(trial, read, data, whole=(None, None)):
    """Every reader refuses the file, or finds the whole (None: anything)."""
    for answer, allowed in zip(read(data), whole, strict=True):
        assert not answer.startswith("undocumented"), answer
        assert answer == "ValueError" or allowed in (None, answer), answer
    trial.count(files=1, bytes=len(data))


def test_every_truncation_is_refused(trial, read, tmp_path):
    for number in trial.rounds():
        data, whole = saved(small_model(trial.rng), tmp_path / "model")
        assert read(data) == whole
        step = 1 + len(data) // 600
        for size in range(number % step, len(data), step):
            assert read(data[:size]) == ["ValueError"] * 2
            trial.count(files=1, bytes=size)


def test_flipped_bits_are_refused_or_change_nothing(trial, read, tmp_path):
    for _ in trial.rounds():
        data, whole = saved(small_model(trial.rng), tmp_path / "model")
        # Most of the file is weights, guarded by their checksum: half of the flips hit what stands around them.
        around = [*range(len(data) - 400, len(data)), *range(400)]
        for _ in range(300):
            flipped = bytearray(data)
            for _ in range(trial.rng.integers(1, 5)):
                at = trial.rng.choice(around) if trial.rng.random() < 0.5 else trial.rng.integers(len(data))
                flipped[at] ^= 1 << trial.rng.integers(8)
            assert_refused_or_read(trial, read, flipped, whole)


NUMBERS = [0, 1, 2, 7, 8, 12, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**40, 2**63, 2**64 - 1]


def test_damaged_zip_directory_is_refused_or_read(trial, read, tmp_path):
    for _ in trial.rounds():
        data, _ = saved(small_model(trial.rng), tmp_path / "model")
        marks = [found.start() for found in re.finditer(rb"PK(\x01\x02|\x03\x04|\x05\x06)", data)]
        for _ in range(200):
            hostile = bytearray(data)
            for _ in range(trial.rng.integers(1, 4)):
                at, size = int(trial.rng.choice(marks) + trial.rng.integers(4, 46)), int(trial.rng.choice([2, 4, 8]))
                value = NUMBERS[trial.rng.integers(len(NUMBERS))] % 2 ** (8 * size)
                hostile[at : at + size] = value.to_bytes(size, "little")
            assert_refused_or_read(trial, read, hostile)


def hostile_header(rng):
    """A header of an .npy file that claims something else."""
    descrs = ["'<f4'", "'>f4'", "'|O'", "'<V0'", "'|V2'", "'<U1073741824'", "'<U9'", "[('a', '<f4')]", "'<i8'", "'"]
    sizes = [str(NUMBERS[rng.integers(len(NUMBERS))]) for _ in range(rng.integers(0, 4))]
    shapes = ["()", f"({', '.join(sizes)},)", f"({', '.join(sizes)})", "(" * 4000, "(-1,)", "9" * 6000, "None"]
    order = rng.choice(["True", "False", "0"])
    return f"{{'descr': {rng.choice(descrs)}, 'fortran_order': {order}, 'shape': {rng.choice(shapes)}, }}\n"


def hostile_npy(rng, name):
    """A member as bytes: wrong header, wrong data, wrong text, or all of them."""
    deep = int(rng.integers(1, 200_000))
    fields = asdict(rnnkit.RNNDescriptor("gru", 2, 3))
    field = str(rng.choice(list(fields)))
    values = [10**400, -1, 2**31, 10**9, 1.5, "x" * 1000, [], {}, None, True, float("nan"), float("inf")]
    fields[field] = values[rng.integers(len(values))]
    texts = ["[" * deep, '{"a":' * deep, "9" * 5000, "", "null", json.dumps(fields), json.dumps(list(fields))]
    value = np.array(texts[rng.integers(len(texts))] if name in ("descriptor", "trained_with") else rng.integers(0, 3))
    data = value.tobytes() if rng.random() < 0.7 else rng.bytes(int(rng.integers(0, 5000)))
    usual = {"descr": value.dtype.str, "fortran_order": False, "shape": value.shape}
    header = (hostile_header(rng) if rng.random() < 0.7 else repr(usual)[:-1] + ", }\n").encode()
    size = len(header) if rng.random() < 0.9 else int(rng.integers(1 << 16))
    version = bytes([rng.choice([1, 1, 1, 2, 3]), 0])
    return b"\x93NUMPY" + version + struct.pack("<H", size % (1 << 16)) + header + data


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_members_are_refused_or_read(trial, read, tmp_path):
    for _ in trial.rounds():
        saved(small_model(trial.rng), tmp_path / "model")
        with zipfile.ZipFile(tmp_path / "model") as file:
            members = {name: file.read(name) for name in file.namelist()}
        for _ in range(100):
            changed = str(trial.rng.choice(list(members)))
            compression = trial.rng.choice([zipfile.ZIP_STORED] * 4 + [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
            with zipfile.ZipFile(tmp_path / "changed", "w", int(compression)) as file:
                for name, data in members.items():
                    file.writestr(name, data if name != changed else hostile_npy(trial.rng, name.removesuffix(".npy")))
                if trial.rng.random() < 0.2:
                    file.writestr(changed, members[changed])
            assert_refused_or_read(trial, read, (tmp_path / "changed").read_bytes())


NETS = [rnnkit.LSTM(16, 64, seed=seed) for seed in (0, 1)]
WHOLE = {net.weights.tobytes() for net in NETS}


@pytest.mark.share(3)
def test_killed_save_leaves_a_whole_file(trial, tmp_path):
    path = tmp_path / "net"
    for _ in trial.rounds():
        command = [sys.executable, "-c", SAVER, path, str(10**9)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"ready\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(trial.rng.uniform(0, 0.02))
            process.kill()
        assert process.returncode == -signal.SIGKILL
        assert rnnkit.load(path).weights.tobytes() in WHOLE
        assert len(os.listdir(tmp_path)) <= 2
        trial.count(kills=1)
    NETS[0].save(path)
    assert os.listdir(tmp_path) == ["net"]


@contextlib.contextmanager
def file_size_limit(size):
    """As on a disk that is full: to write beyond is EFBIG (Python ignores the signal)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_keeps_the_old_file(trial, tmp_path):
    path = tmp_path / "net"
    NETS[0].save(path)
    size = path.stat().st_size
    for _ in trial.rounds():
        for limit in trial.rng.integers(0, size, 20):
            with file_size_limit(int(limit)), pytest.raises(OSError, match="File too large") as caught:
                NETS[1].save(path)
            assert caught.value.filename == os.fspath(path)
            assert rnnkit.load(path).weights.tobytes() == NETS[0].weights.tobytes()
            assert os.listdir(tmp_path) == ["net"]
            trial.count(full_disks=1)


def test_savers_at_once_leave_a_whole_file(trial, tmp_path):
    path = tmp_path / "net"
    for _ in trial.rounds():
        command = [sys.executable, "-c", SAVER, path, "100"]
        with contextlib.ExitStack() as stack:
            start = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            savers = [stack.enter_context(subprocess.Popen(command, **start)) for _ in range(3)]
            assert savers[0].stdout.readline() == b"ready\n"
            while any(saver.poll() is None for saver in savers):
                assert rnnkit.load(path).weights.tobytes() in WHOLE
                trial.count(files=1)
            assert [(saver.returncode, saver.stderr.read()) for saver in savers] == [(0, b"")] * 3
        assert os.listdir(tmp_path) == ["net"]
        trial.count(saves=300)


FUZZER = """
import os, sys, tempfile, zipfile
import atheris
with atheris.instrument_imports(include=["zipfile", "json", "rnnkit"]):
    import rnnkit
    from rnnkit.language_model import model as textmodel

zipfile.ZipExtFile._update_crc = lambda self, data: None  # else nothing behind a checksum is ever reached
path = os.path.join(tempfile.mkdtemp(), "fuzzed")

def read(data):
    with open(path, "wb") as file:
        file.write(data)
    try:
        rnnkit.load(path)
        textmodel.load(path)
    except ValueError:
        pass

atheris.Setup(sys.argv, read)
atheris.Fuzz()
"""


@pytest.mark.share(2)
def test_fuzzed_file_is_refused_or_read(trial, tmp_path):
    needs("atheris")
    (tmp_path / "corpus").mkdir()
    for number in range(8):
        saved(small_model(trial.rng), tmp_path / "corpus" / str(number))
    for _ in trial.rounds():
        seconds = max(5, min(60, int(trial.seconds_left)))
        options = [f"-max_total_time={seconds}", f"-seed={trial.rng.integers(1, 1 << 30)}", "-rss_limit_mb=1024"]
        options += ["-timeout=10", "-max_len=8192", f"-artifact_prefix={tmp_path}/"]
        command = [sys.executable, "-c", FUZZER, *options, tmp_path / "corpus"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-1000:]
        trial.count(fuzzed_inputs=int(done.stderr.rpartition("Done ")[2].split()[0]))
