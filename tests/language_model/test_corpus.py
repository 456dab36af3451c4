"""The text of the language model: its parts, its batches, and what general compressors make of it."""

import math
import sysconfig

import numpy as np
import pytest
from language_models import bytes_of
from messages import says

from rnnkit.language_model import corpus


def test_split_keeps_every_byte_in_one_part():
    expected = (0, 0, 0), (19, 0, 0), (20, 0, 1), (1000, 12, 50), (6_000_000, 1 << 16, 1 << 18)
    for size, validation, held_out in expected:
        text = bytes_of(5, size).tobytes()
        parts = corpus.split(text)
        assert b"".join(parts) == text
        assert len(parts.held_out) == held_out
        assert len(parts.validation) == validation


def test_alphabet_is_what_occurs_in_ascending_order():
    found = corpus.alphabet(b"banana\xff\0")
    assert found.dtype == np.uint8
    assert bytes(found) == b"\0abn\xff"


def test_files_are_read_in_order_and_must_hold_a_byte(tmp_path):
    for name, text in (("one", b"1\n"), ("none", b""), ("two", b"2")):
        (tmp_path / name).write_bytes(text)
    assert corpus.read_files([tmp_path / "two", str(tmp_path / "none"), tmp_path / "one"]) == b"21\n"
    with pytest.raises(ValueError, match=says("read_files: paths", "byte", f"'{tmp_path / 'none'}'")):
        corpus.read_files([tmp_path / "none"])
    with pytest.raises(ValueError, match=says("read_files: paths", "none")):
        corpus.read_files([])
    with pytest.raises(OSError, match="missing"):
        corpus.read_files([tmp_path / "one", tmp_path / "missing"])


def test_baselines_say_what_lzma_has_read():
    text, before = bytes_of(9, 3000).tobytes(), bytes_of(9, 3000).tobytes()[::-1]
    alone, after = corpus.baselines(text), corpus.baselines(text, before + text)
    assert list(alone) == ["order-0 entropy", "zlib -9", "lzma"]
    assert list(after)[2] == "lzma, given the training text first"
    assert list(alone.values()) == [corpus.order0_bits(text), corpus.zlib_bits(text), corpus.lzma_bits(text)]
    assert after["lzma, given the training text first"] < 1 < 8 < alone["lzma"]


def test_batches_go_on_row_by_row():
    text = bytes(range(2 * 8 + 1))
    rows = corpus.rows(text, batch_size=2, seq_len=3)
    found = [corpus.batch(rows, 3, number) for number in range(3)]
    assert corpus.num_batches(rows, 3) == 2
    assert [batch[0].T.tolist() for batch in found[:2]] == [[[0, 1, 2], [8, 9, 10]], [[3, 4, 5], [11, 12, 13]]]
    assert [batch[1].T.tolist() for batch in found[:2]] == [[[1, 2, 3], [9, 10, 11]], [[4, 5, 6], [12, 13, 14]]]
    assert [batch[2] for batch in found] == [True, False, True]
    assert np.array_equal(found[2][0], found[0][0])


def test_shortest_text_has_one_batch_and_a_shorter_one_none():
    rows = corpus.rows(bytes(8), batch_size=2, seq_len=3)
    _, targets, first = corpus.batch(rows, 3, 0)
    assert corpus.num_batches(rows, 3) == 1
    assert targets.shape == (3, 2)
    assert first
    with pytest.raises(ValueError, match=says("rows: text", "batch_size*(seq_len+1)=8", 7)):
        corpus.rows(bytes(7), batch_size=2, seq_len=3)


def test_order0_bits_by_hand():
    assert corpus.order0_bits(b"aaaa") == 0
    assert corpus.order0_bits(b"abab") == 1
    assert corpus.order0_bits(bytes(range(256)) * 3) == 8
    assert corpus.order0_bits(b"aaab") == pytest.approx(0.75 * math.log2(4 / 3) + 0.25 * 2)


def test_compressors_see_repetition_and_lzma_the_context():
    noise = bytes_of(7, 20_000).tobytes()
    # Noise costs its 8 bits and a block header or two of at most 64 bytes; a repetition next to nothing.
    assert 8 < corpus.zlib_bits(noise) < 8 + 8 * 64 / len(noise)
    assert 8 < corpus.lzma_bits(noise) < 8 + 8 * 64 / len(noise)
    assert corpus.zlib_bits(b"a" * 20_000) < 0.1
    assert corpus.lzma_bits(noise, context=noise) < 0.2  # a match of LZMA has 273 bytes at most
    assert corpus.lzma_bits(noise, context=noise[::-1]) >= 8
    assert corpus.lzma_bits(noise, context=noise + bytes(9 << 20)) < 0.2  # more than its preset dictionary has


def test_library_source_is_python_text_in_a_fixed_order():
    text = corpus.library_source(50_000)
    assert len(text) == 50_000
    assert corpus.library_source(60_000).startswith(text)
    future = f"{sysconfig.get_path('stdlib')}/__future__.py"
    assert text.startswith(corpus.read_files([future]))
