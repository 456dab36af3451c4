"""Compressed files: what is compressed comes back, on any CPU and number of threads, or an error says what is lost."""

import base64

import numpy as np
import pytest
from hypothesis import example, given, settings
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
def test_files_of_every_kind_come_back(way):
    for data in (b"", b"a", b"\n", b"\0" * 700, bytes(range(256)) * 3, TEXT, TEXT + b"\xff\x00" + TEXT):
        assert again(data, way) == data


def test_a_cell_of_several_states():
    model = TextModel.random(RNNDescriptor(SLSTM(sigmoid_forget=True), 3, 4, dtype="float64"), seed=0)
    for way in (dict(model=model), dict(model=model, learns=True)):
        for size in (300, 1300):  # of the latter, rows of unequal lengths
            assert again(TEXT[:size], way) == TEXT[:size]


@pytest.mark.parametrize("learns", [False, True])
def test_a_cell_with_side_inputs_reads_nothing_beyond_its_arrays(learns):
    """It needs arrays that a text does not have; without the engine's checks its kernels would read what is there."""
    model = TextModel.random(RNNDescriptor(AUGRU(), 3, 4), seed=0)
    with pytest.raises(TypeError, match=says("", "inputs", "attention")):
        compress(TEXT, model, learns=learns)
    how = compressor.description(model, learns=learns)
    data = container.start(how.pack()) + container.block(0, TEXT, b"any payload") + container.end(1, len(TEXT))
    with pytest.raises(TypeError, match=says("", "inputs", "attention")):
        decompress(data, model)


BYTES = st.one_of(
    st.binary(max_size=700),
    st.builds(bytes.__mul__, st.binary(max_size=4), st.integers(0, 300)),
    st.text(max_size=200).map(str.encode),
)


@given(BYTES, st.sampled_from([*WAYS.values()]))
@example(b"", WAYS["a model"])
def test_random_bytes_come_back(data, way):
    assert again(data, way) == data


@pytest.mark.nightly
@settings(max_examples=1000)
@given(BYTES, st.sampled_from([*WAYS.values()]))
def test_a_thousand_files_come_back(data, way):
    assert again(data, way) == data


@pytest.mark.nightly
@every_way
def test_a_megabyte_and_more_comes_back(way):
    data = np.random.default_rng(0).choice([*b"etaoin shrdlu\n"], compressor.BLOCK + 1000).astype(np.uint8).tobytes()
    way = way | {"streams": 500}
    assert again(data, way) == data


@every_way
@pytest.mark.parametrize("size", [1, 255, 256, 257, 511, 512, 513, 767, 769, 1300])
def test_rows_of_unequal_lengths(way, size):
    """A block is cut into rows of which the last may be shorter, and shorter than a chunk."""
    assert again(TEXT[:size], way) == TEXT[:size]


def test_a_text_takes_less_space():
    assert len(compress(TEXT, hidden=64)) < 0.75 * len(TEXT)
    assert len(compress(TEXT * 4, hidden=64)) < 0.4 * len(TEXT * 4)


def test_a_model_that_learns_takes_less_space_and_stays_as_it_was():
    before = MODEL.parameters.flat.copy()
    assert len(compress(TEXT * 4, MODEL, learns=True, streams=1)) < 0.8 * len(compress(TEXT * 4, MODEL))
    np.testing.assert_array_equal(MODEL.parameters.flat, before)


@every_way
def test_every_number_of_threads_writes_the_same_file(way):
    found = set()
    for size in (1, 2, 3):
        with thread_override(size):
            found.add(compress(TEXT, **way))
    assert len(found) == 1


def test_a_block_that_learns_nothing_depends_on_no_other():
    how = compressor.description(MODEL)
    blocks = TEXT[:500], TEXT[500:900]
    payloads = [coding.Coder(MODEL, how.streams, 0).encode(block) for block in blocks]
    coder = coding.Coder(MODEL, how.streams, 0)
    assert [coder.encode(block) for block in blocks] == payloads


@pytest.mark.parametrize("alphabet", [range(256), range(32, 127)])
def test_the_size_is_what_the_model_says(alphabet):
    """Beside the cost of integer frequencies and of the file; bytes outside the alphabet share a probability."""
    model = small_model("lstm", "float32", num_layers=1, alphabet=alphabet)
    payload = coding.Coder(model, 1, 0).encode(TEXT)
    data = np.frombuffer(b"\n" + TEXT, np.uint8)
    y, *_ = infer(model.desc, model.parameters.network, model.inputs(data[:-1, None]))
    bits = model.nats(y[:, 0], data[1:]) / np.log(2)
    assert bits < 8 * len(payload) < 1.003 * bits + 40


@pytest.mark.parametrize("way", [dict(hidden=8), dict(model=MODEL)], ids=["learns", "a model"])
def test_every_bit_that_flips_is_found(way):
    data = compress(TEXT[:300], **way)
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        with pytest.raises(ValueError, match=r"\Adecompress: (file|model)\b"):
            decompress(bytes(flipped), way.get("model"))


@pytest.mark.parametrize("way", [dict(hidden=8), dict(model=MODEL)], ids=["learns", "a model"])
def test_every_cut_is_found(way):
    data = compress(TEXT[:300], **way)
    for size in range(len(data)):
        with pytest.raises(ValueError, match=says("decompress: file")):
            decompress(data[:size], way.get("model"))
    with pytest.raises(ValueError, match=says("decompress: file", "damaged", "3 bytes")):
        decompress(data + b"abc", way.get("model"))


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(compressor, "BLOCK", 400)


def parts_of(data, model=MODEL):
    return [part if isinstance(part, Damage) else len(part) for part in compressor.decompressed(data, model)]


def test_blocks_beside_a_damaged_one_are_kept(small_blocks):
    data = compress(TEXT, MODEL)
    expected = [400, 400, 400, 400, len(TEXT) - 1600]
    assert parts_of(data) == expected
    blocks = [found.start() for found in container._MARKS.finditer(data)]
    for number, start in enumerate(blocks[:5]):
        for place in (start, start + 10, start + 26 + 5):  # the mark, the head, the payload
            flipped = bytearray(data)
            flipped[place] ^= 4
            found = parts_of(bytes(flipped))
            assert found == [*expected[:number], Damage(number, 1, "damaged"), *expected[number + 1 :]]
            lost = f"block {number}", f"byte {number * 400:,}", "damaged"
            with pytest.raises(ValueError, match=says("decompress: file", *lost)):
                decompress(bytes(flipped), MODEL)


def test_several_blocks_are_lost(small_blocks):
    data = bytearray(compress(TEXT, MODEL))
    starts = [found.start() for found in container._MARKS.finditer(bytes(data))]
    cut = bytes(data[: starts[1]] + data[starts[3] :])
    assert parts_of(cut) == [400, Damage(1, 2, "damaged"), 400, len(TEXT) - 1600]
    with pytest.raises(ValueError, match=says("decompress: file", "blocks 1 to 2", "byte 400", "damaged")):
        decompress(cut, MODEL)
    for place, whole in ((starts[2] + 40, 2), (starts[4], 4)):
        *kept, damage = parts_of(bytes(data[:place]))
        assert kept == [400] * whole and damage[:2] == (whole, None) and "file ends" in damage[2]


def test_behind_a_damaged_block_a_model_that_learns_cannot_go_on(small_blocks):
    data = bytearray(compress(TEXT, hidden=8))
    starts = [found.start() for found in container._MARKS.finditer(bytes(data))]
    data[starts[1] + 30] ^= 1
    assert parts_of(bytes(data), None) == [400, Damage(1, None, "damaged")]


def test_a_code_of_another_text_is_no_text(small_blocks):
    """Where a payload is whole and decodes to something else the checksum of the text says so."""
    how = compressor.description(MODEL)
    payload = coding.Coder(MODEL, how.streams, 0).encode(b"hello")
    data = container.start(how.pack()) + container.block(0, b"hallo", payload) + container.end(1, 5)
    (damage,) = parts_of(data)
    assert damage[:2] == (0, 1) and "decodes" in damage[2]


def test_files_that_are_no_compressed_ones():
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
        with pytest.raises(ValueError, match=says("decompress: file", *facts)):
            decompress(data, MODEL)


def test_the_model_must_be_the_one_that_encoded():
    data, other = compress(TEXT, MODEL), small_model("gru", "float32", seed=1, alphabet=range(32, 127))
    digest, of_other = (compressor.description(one).digest.hex() for one in (MODEL, other))
    with pytest.raises(ValueError, match=says("decompress: model", f"digest {digest}", "none", "--model")):
        decompress(data)
    with pytest.raises(ValueError, match=says("decompress: model", f"digest {digest}", of_other)):
        decompress(data, other)
    with pytest.raises(ValueError, match=says("decompress: model", "not", "without")):
        decompress(compress(b"a", hidden=8), MODEL)
    own = compressor.description(hidden=8)._replace(digest=bytes(16))
    with pytest.raises(ValueError, match=says("decompress: model", "another version of rnnkit")):
        decompress(container.start(own.pack()) + container.end(0, 0))


def test_a_golden_file_is_read():
    assert decompress(base64.b85decode(GOLDEN)) == TEXT[:200]
    assert compress(TEXT[:200], hidden=8) == base64.b85decode(GOLDEN)


def test_a_file_cannot_ask_for_a_huge_model():
    how = compressor.description(hidden=8)
    for field, value in (("hidden", compressor.MAX_HIDDEN + 1), ("embedding", 65535)):
        with pytest.raises(ValueError, match=says("decompress: file", "model")):
            decompress(container.start(how._replace(**{field: value}).pack()))
