"""A compressed file of a stranger: what it may ask of `decompress`, and that this stays below what SECURITY.md says."""

import math
import subprocess
import sys

import numpy as np
import pytest
from combinations import weekly
from compressed_files import assert_not_decompressed
from language_models import small_model
from messages import says

from rnnkit import workspace_nbytes
from rnnkit.compression import RangeEncoder
from rnnkit.language_model import compressor, container
from rnnkit.language_model.compressor import Description, compress, decompress
from rnnkit.language_model.container import Damage
from rnnkit_kernels.range_coder import TOTAL

MODEL = small_model("gru", "float32")
OWN = compressor.description(hidden=8)
GIVEN = compressor.description(MODEL)
LEARNS = compressor.description(MODEL, learns=True)


def file_of(how, *blocks):
    return container.start(how.pack()) + b"".join(blocks) + container.end(len(blocks), 0)


NUMBERS = [  # of a header: those that are right, and those that are not
    (OWN, "streams", [1, 65535], [0]),
    (OWN, "chunk", [16], [0, 15, 17, 65535]),
    (OWN, "hidden", [1, 4096], [0, 4097, 65535]),
    (OWN, "embedding", [64], [0, 63, 65, 65535]),
    (GIVEN, "streams", [1, 65535], [0]),
    (GIVEN, "chunk", [0, 16], [1, 15, 17, 65535]),
    (GIVEN, "hidden", [0], [1, 65535]),
    (GIVEN, "embedding", [0], [1, 65535]),
]


@pytest.mark.parametrize(("how", "field", "right", "wrong"), NUMBERS)
def test_numbers_of_a_header_are_those_that_compress_writes(how, field, right, wrong):
    for value in right:
        found = how._replace(**{field: value})
        assert Description.unpack(found.pack()) == found
    numbers = f"{right[0]}..{right[-1]}" if right[-1] > 64 else " or ".join(map(str, right))
    for value in wrong:
        assert_not_decompressed(file_of(how._replace(**{field: value})), MODEL, f"{field} {numbers}", value)


def test_header_says_whether_the_model_is_given():
    with pytest.raises(ValueError, match=says("decompress: file", "given 0 or 1", 2)):
        Description.unpack(b"\2" + OWN.pack()[1:])


def assert_bounded(how, most, model=None, **options):
    """Raise unless neither side takes one stream more than `most`."""
    assert_not_decompressed(file_of(how._replace(streams=most + 1)), model, f"at most {most} streams", most + 1)
    with pytest.raises(ValueError, match=says("compress: streams", f"at most {most}", most + 1)):
        compress(b"text", model, streams=most + 1, **options)


@pytest.mark.parametrize(("hidden", "most"), [(256, 4096), (512, 2289), (4096, 286)])
def test_memory_of_streams_times_units_is_bounded(hidden, most):
    how = OWN._replace(hidden=hidden)
    desc = compressor._desc(hidden, 64)
    assert workspace_nbytes(desc, 16, most) <= compressor.MAX_BATCH_BYTES
    compressor._check_rows(desc, how._replace(streams=most), str)
    if most == 4096:  # the rows of a whole block: more streams change nothing
        compressor._check_rows(desc, how._replace(streams=65535), str)
        return
    assert workspace_nbytes(desc, 16, most + 1) > compressor.MAX_BATCH_BYTES
    assert_bounded(how, most, hidden=hidden)


def test_memory_of_the_streams_of_a_given_model_is_bounded(monkeypatch):
    monkeypatch.setattr(compressor, "MAX_BATCH_BYTES", workspace_nbytes(MODEL.desc, 16, 70))
    for how in (LEARNS, GIVEN):
        decompress(file_of(how._replace(streams=70)), MODEL)
    assert_bounded(LEARNS, 70, MODEL, learns=True)


def test_streams_and_hidden_out_of_range_are_refused():
    for wrong, error, facts in (
        (dict(streams=0), ValueError, ["streams", 1, 0]),
        (dict(streams=65536), ValueError, ["streams", 65535, 65536]),
        (dict(streams=1.5), TypeError, ["streams", "int", "float"]),
        (dict(hidden=0), ValueError, ["hidden", 1, 0]),
        (dict(hidden=4097), ValueError, ["hidden", 4096, 4097]),
        (dict(model=MODEL, streams=0), ValueError, ["streams", 1, 0]),
    ):
        with pytest.raises(error, match=says("compress:", *facts)):
            compress(b"text", **wrong)


def test_blocks_have_at_most_one_mebibyte():
    assert compressor.BLOCK == container.MAX_BLOCK_BYTES == 1 << 20
    for size, sizes in ((1 << 20, [1 << 20]), ((1 << 20) + 1, [])):
        head = container._head(b"BK", 0, size, 0, 0, 0)
        found = [part for part in container.blocks(head + container.end(1, size), 0) if not isinstance(part, Damage)]
        assert [block.size for block in found] == sizes


def test_likeliest_bytes_stay_below_the_largest_expansion():
    """Of a row of 256 frequencies, 255 are at least 1."""
    row, size = np.ones((1, 256), np.int32), 1 << 20
    row[0, 0] = TOTAL - 255
    encoder = RangeEncoder()
    for _ in range(64):
        encoder.encode(np.zeros(size // 64, int), np.broadcast_to(row, (size // 64, 256)).copy())
    payload = encoder.finish()
    bits = math.log2(TOTAL / (TOTAL - 255))
    assert 0.5 * compressor.MAX_EXPANSION < size / len(payload) < 8 / bits < compressor.MAX_EXPANSION


@pytest.mark.parametrize(("how", "model", "lost"), [(OWN, None, None), (GIVEN, MODEL, 1)], ids=["learns", "a model"])
def test_payload_too_short_for_its_size_is_not_decoded(how, model, lost, monkeypatch):
    size = 3 * compressor.MAX_EXPANSION
    for payload, decodes in ((b"123", True), (b"12", False), (b"", False)):
        decoded = []
        monkeypatch.setattr(compressor.Coder, "decode", lambda *block, decoded=decoded: decoded.append(block) or b"")
        data = file_of(how, container.block(0, b"x" * size, payload))
        (damage,) = [part for part in compressor.decompressed(data, model) if part.first == 0]
        assert damage[:2] == (0, lost) and bool(decoded) is decodes
        facts = ["decodes"] if decodes else [len(payload), size]
        assert all(str(fact) in damage.why for fact in facts)


def test_empty_payload_of_an_empty_texts_checksum_is_damage():
    data = container.start(GIVEN.pack()) + container._head(b"BK", 0, 7, 0, 0, 0) + container.end(1, 7)
    assert_not_decompressed(data, MODEL, "block 0", "0 bytes", 7)


DECODE_A_CHUNK = """
import resource, sys
from rnnkit.language_model import compressor, container
from rnnkit.language_model.coding import digest

hidden, streams, limit = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
first = digest(compressor._untrained(hidden, compressor.EMBEDDING))
how = compressor.Description(False, streams, compressor.CHUNK, hidden, compressor.EMBEDDING, first)
size = 256 * min(streams, 4096)
data = container.start(how.pack()) + container.block(0, bytes(size), bytes(400)) + container.end(1, size)

class Done(Exception):
    pass

def stop(count):
    assert count == compressor.CHUNK * min(streams, 4096)
    raise Done

try:
    next(compressor.decompressed(data, None, stop))
except Done:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of a process's memory")
@pytest.mark.parametrize(("hidden", "streams"), [(8, 65535), weekly(256, 65535), weekly(4096, 286)])
def test_largest_network_takes_less_than_4_gb(hidden, streams):
    """The first chunk takes all: the gradient, the optimizer and the packed weights."""
    command = [sys.executable, "-c", DECODE_A_CHUNK, str(hidden), str(streams), str(5 * 10**9)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 4e9
