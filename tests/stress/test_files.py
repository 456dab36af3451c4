"""Model files: cut off, flipped, made to harm, killed while they are written; the old one or the new one, or an error.

Files are read by a process of their own, whose address space is bounded: what a file claims must not take memory.
"""

import os
import signal
import subprocess
import sys
from hashlib import sha256

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

nets = [rnnkit.LSTM(16, 64, seed=seed) for seed in (0, 1)]
nets[0].save(sys.argv[1])
print("ready", flush=True)
while True:
    for net in nets:
        net.save(sys.argv[1])
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
            for answer, right in zip(read(flipped), whole, strict=True):
                assert answer in ("ValueError", right), answer
            trial.count(files=1, bytes=len(data))


NETS = [rnnkit.LSTM(16, 64, seed=seed) for seed in (0, 1)]
WHOLE = {net.weights.tobytes() for net in NETS}


@pytest.mark.share(3)
def test_killed_save_leaves_a_whole_file(trial, tmp_path):
    path = tmp_path / "net"
    for _ in trial.rounds():
        command = [sys.executable, "-c", SAVER, path]
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
