"""Compressed files: what is compressed comes back, on any CPU and number of threads, or an error says what is lost."""

import base64

import numpy as np
import pytest
from compressed_files import assert_not_decompressed
from hypothesis import given, settings
from hypothesis import strategies as st
from language_models import small_model
from messages import says

from rnnkit import RNNDescriptor, infer
from rnnkit.cells import AUGRU, SLSTM
from rnnkit.language_model import coding, compressor, container
from rnnkit.language_model.compressor import compress, decompress
from rnnkit.language_model.container import Damage
from rnnkit.language_model.model import TextModel
from rnnkit_kernels.machine.thread_pool import thread_override

MODEL = small_model("gru", "float32", alphabet=range(32, 127))
TEXT = b"".join(b"%d green bottles hanging on the wall, %d\n" % (n, n * n) for n in range(40))
WAYS = {
    "random weights": dict(hidden=8),
    "random weights, many streams": dict(hidden=9, streams=70),
    "a model": dict(model=MODEL),
    "a model that learns": dict(model=MODEL, learns=True, streams=3),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)

# A file of 0.16.0, which every later version reads, or refuses by its digest.
GOLDEN = (
    "Qcg=60T}=S01yBO06+jxf$WQ2%MIaEsf|$%CXiCVz!g?PO8@`>0LTCU0LuUX0I=MfNa}u9N*Sni=Pv4cWFQI-{JbVM(0dIq-0J;B"
    "2u~sC`d|V3^~lH~1D0@{(@L(Vv-X71Q=vS!By}+1=xvt{F3W4d6@`yR{ka&QI^JI*!5m0Q`qF?Ych8Yh$>N$WQMO14lC+3)1l(E9"
    "Z?&D0<}CP&T)Srv?RN$+Ps9-})W$_O4w-RxFE@1ie7xso;uJoN33t`+!6k48qzljpV@nR9od*$4)oNpD8xyT=?Ng};r&~(C$}Y+t"
    ";+y#-&X4GO1SWm{1GULTN?1X;)2E;SMNR<#00000000000077U00000003e`<iY"
)


def again(data, way):
    return decompress(compress(data, **way), way.get("model"))


@every_way
def test_round_trip_returns_the_same_bytes(way):
    # A block is cut into rows of which the last may be shorter, and shorter than a chunk.
    sizes = 1, 255, 256, 257, 511, 512, 513, 767, 769, 1300
    for data in (b"", b"a", b"\n", b"\0" * 700, bytes(range(256)) * 3, TEXT, TEXT + b"\xff\x00" + TEXT):
        assert again(data, way) == data
    for size in sizes:
        assert again(TEXT[:size], way) == TEXT[:size]


@pytest.mark.parametrize("learns", [False, True])
def test_cell_of_several_states_round_trips(learns):
    model = TextModel.random(RNNDescriptor(SLSTM(sigmoid_forget=True), 3, 4, dtype="float64"), seed=0)
    for size in (300, 1300):  # of the latter, rows of unequal lengths
        assert again(TEXT[:size], dict(model=model, learns=learns)) == TEXT[:size]


@pytest.mark.parametrize("learns", [False, True])
def test_cell_with_side_inputs_is_refused(learns):
    """It needs arrays that a text does not have; without the engine's checks its kernels would read what is there."""
    model = TextModel.random(RNNDescriptor(AUGRU(), 3, 4), seed=0)
    how = compressor.description(model, learns=learns)
    data = container.start(how.pack()) + container.block(0, TEXT, b"any payload") + container.end(1, len(TEXT))
    with pytest.raises(TypeError, match=says("", "inputs", "attention")):
        compress(TEXT, model, learns=learns)
    with pytest.raises(TypeError, match=says("", "inputs", "attention")):
        decompress(data, model)


BYTES = st.one_of(
    st.binary(max_size=700),
    st.builds(bytes.__mul__, st.binary(max_size=4), st.integers(0, 300)),
    st.text(max_size=200).map(str.encode),
)


@settings(max_examples=10)  # each opens a model
@given(BYTES, st.sampled_from([*WAYS.values()]))
def test_random_bytes_round_trip(data, way):
    assert again(data, way) == data


def test_learning_model_compresses_better_and_is_not_changed():
    before = MODEL.parameters.flat.copy()
    assert len(compress(TEXT * 4, MODEL, learns=True, streams=1)) < 0.8 * len(compress(TEXT * 4, MODEL))
    np.testing.assert_array_equal(MODEL.parameters.flat, before)


@every_way
def test_file_is_the_same_on_any_number_of_threads(way):
    found = set()
    for size in (1, 2, 3):
        with thread_override(size):
            found.add(compress(TEXT, **way))
    assert len(found) == 1


@pytest.mark.parametrize("alphabet", [range(256), range(32, 127)])
def test_compressed_size_is_the_cross_entropy_of_the_model(alphabet):
    """Beside the cost of integer frequencies and of the file; bytes outside the alphabet share a probability."""
    model = small_model("lstm", "float32", num_layers=1, alphabet=alphabet)
    payload = coding.Coder(model, 1, 0).encode(TEXT)
    data = np.frombuffer(b"\n" + TEXT, np.uint8)
    y, *_ = infer(model.desc, model.parameters.network, model.inputs(data[:-1, None]))
    bits = model.nats(y[:, 0], data[1:]) / np.log(2)
    assert bits < 8 * len(payload) < 1.003 * bits + 40


def flipped(data, place, bit):
    return data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]


def test_file_with_a_flipped_bit_or_cut_off_is_refused():
    data = compress(TEXT[:300], MODEL)
    for place in range(len(data)):
        with pytest.raises(ValueError, match=r"\Adecompress: (file|model)\b"):
            decompress(flipped(data, place, 1 << place % 8), MODEL)
        assert_not_decompressed(data[:place], MODEL)
    assert_not_decompressed(data + b"abc", MODEL, "damaged", "3 bytes")


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(compressor, "BLOCK", 400)


def parts_of(data, model=MODEL):
    return [part if isinstance(part, Damage) else len(part) for part in compressor.decompressed(data, model)]


def starts_of(data):
    return [mark.start() for mark in container._MARKS.finditer(data)]


def test_blocks_beside_a_damaged_one_are_kept(small_blocks):
    data = compress(TEXT, MODEL)
    expected = [400, 400, 400, 400, len(TEXT) - 1600]
    assert parts_of(data) == expected and decompress(data, MODEL) == TEXT
    for number, start in enumerate(starts_of(data)[:5]):
        for place in (start, start + 10, start + 26 + 5):  # the mark, the head, the payload
            damaged = flipped(data, place, 4)
            assert parts_of(damaged) == [*expected[:number], Damage(number, 1, "damaged"), *expected[number + 1 :]]
            assert_not_decompressed(damaged, MODEL, f"block {number}", f"byte {number * 400:,}", "damaged")


def test_range_of_lost_blocks_is_named(small_blocks):
    data = compress(TEXT, MODEL)
    starts = starts_of(data)
    cut = data[: starts[1]] + data[starts[3] :]
    assert parts_of(cut) == [400, Damage(1, 2, "damaged"), 400, len(TEXT) - 1600]
    assert_not_decompressed(cut, MODEL, "blocks 1 to 2", "byte 400", "damaged")
    for place, whole in ((starts[2] + 40, 2), (starts[4], 4)):
        *kept, damage = parts_of(data[:place])
        assert kept == [400] * whole and damage[:2] == (whole, None) and "file ends" in damage[2]


def test_learning_model_stops_at_a_damaged_block(small_blocks):
    data = compress(TEXT, hidden=8)
    assert decompress(data) == TEXT
    assert parts_of(flipped(data, starts_of(data)[1] + 30, 1), None) == [400, Damage(1, None, "damaged")]


def test_payload_that_decodes_to_another_text_is_damage(small_blocks):
    how = compressor.description(MODEL)
    payload = coding.Coder(MODEL, how.streams, 0).encode(b"hello")
    (damage,) = parts_of(container.start(how.pack()) + container.block(0, b"hallo", payload) + container.end(1, 5))
    assert damage[:2] == (0, 1) and "decodes" in damage[2]


def test_file_that_compress_did_not_write_is_refused():
    how = compressor.description(MODEL)
    newer = bytearray(container.start(how.pack()))
    newer[4] = 9
    for data, facts in (
        (b"", ["rnnkit compress", "empty"]),
        (b"PK\3\4 and so on", ["rnnkit compress", r"b'PK\x03\x04'"]),
        (bytes(newer), ["version 1", 9]),
        (container.start(b"abc"), ["model"]),
        (container.start(how._replace(streams=0).pack()), ["model"]),
    ):
        assert_not_decompressed(data, MODEL, *facts)


def test_model_with_another_digest_is_refused():
    data, other = compress(TEXT, MODEL), small_model("gru", "float32", seed=1, alphabet=range(32, 127))
    digest, of_other = (compressor.description(one).digest.hex() for one in (MODEL, other))
    own = compressor.description(hidden=8)._replace(digest=bytes(16))
    for found, model, facts in (
        (data, None, [f"digest {digest}", "none", "--model"]),
        (data, other, [f"digest {digest}", of_other]),
        (compress(b"a", hidden=8), MODEL, ["not", "without"]),
        (container.start(own.pack()) + container.end(0, 0), None, ["another version of rnnkit"]),
    ):
        assert_not_decompressed(found, model, *facts, argument="model")


def test_golden_file_is_read_and_written():
    assert decompress(base64.b85decode(GOLDEN)) == TEXT[:200]
    assert compress(TEXT[:200], hidden=8) == base64.b85decode(GOLDEN)
