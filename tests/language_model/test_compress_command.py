"""`rnnkit compress` and `rnnkit decompress` as a user runs them: files, exit status, one line for each error."""

import os
import re

import pytest
from command_line import main
from language_models import small_model
from messages import says

from rnnkit.language_model import compressor

TEXT = b"the quick brown fox jumps over the lazy dog, again and again\n" * 30


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(compressor, "HIDDEN", 8)
    (tmp_path / "text").write_bytes(TEXT)
    small_model("gru", "float32").save(tmp_path / "model.npz")
    return tmp_path


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_refused(capsys, arguments, *facts):
    """The command ends with one line, which has these facts."""
    status, _, err = main(capsys, *arguments)
    assert status == 2 and err.count("\n") == 1 and re.search(says("rnnkit:", *facts), err), err


def test_file_is_compressed_and_restored(folder, capsys):
    status, out, err = main(capsys, "compress", folder / "text")
    size = (folder / "text.rnk").stat().st_size
    assert (status, err) == (0, "")
    saved, speed = rf"saved     {re.escape(str(folder))}", r"[\d.]+ kB/s\n"
    assert re.fullmatch(rf"{saved}/text.rnk: {size:,} bytes for 1,830, \d\.\d+ bits per byte, {speed}", out)
    (folder / "text").unlink()
    status, out, err = main(capsys, "decompress", folder / "text.rnk")
    assert (status, err) == (0, "")
    assert re.fullmatch(rf"{saved}/text: 1,830 bytes, {speed}", out)
    assert (folder / "text").read_bytes() == TEXT and files(folder) == ["model.npz", "text", "text.rnk"]


@pytest.mark.parametrize("options", [[], ["--learn"], ["--streams", 3]])
def test_model_is_needed_to_decompress_too(folder, capsys, options):
    assert main(capsys, "compress", folder / "text", "--model", folder / "model.npz", *options)[0] == 0
    back = ["decompress", folder / "text.rnk", "--out", folder / "again"]
    assert_refused(capsys, back, "model", "digest", "--model")
    assert not (folder / "again").exists()
    assert main(capsys, *back, "--model", folder / "model.npz")[0] == 0
    assert (folder / "again").read_bytes() == TEXT


def test_empty_file_is_compressed(folder, capsys):
    (folder / "text").write_bytes(b"")
    status, out, _ = main(capsys, "compress", folder / "text")
    assert status == 0 and re.search(r"61 bytes for 0, 0\.0 kB/s\n\Z", out)
    assert main(capsys, "decompress", folder / "text.rnk", "-o", folder / "again")[0] == 0
    assert (folder / "again").read_bytes() == b""


def test_existing_file_is_replaced_only_with_force(folder, capsys):
    (folder / "text.rnk").write_text("old")
    assert_refused(capsys, ["compress", folder / "text"], "--out", folder / "text.rnk", "--force")
    assert (folder / "text.rnk").read_text() == "old"
    assert main(capsys, "compress", folder / "text", "--force")[0] == 0
    assert_refused(capsys, ["decompress", folder / "text.rnk"], "--out", folder / "text", "--force")
    assert (folder / "text").read_bytes() == TEXT


def test_bad_arguments_are_refused_in_one_line(folder, capsys):
    text, model = folder / "text", folder / "model.npz"
    for arguments, facts in (
        (["compress", folder / "none"], [f"{folder / 'none'}: No such file or directory"]),
        (["compress", folder], [folder, "regular file", "folder"]),
        (["compress", text, "--out", text, "--force"], ["--out", "own", text]),
        (["compress", text, "--model", model, "--out", model, "--force"], ["--out", "own", model]),
        (["compress", text, "--out", folder / "no" / "such"], [folder / "no" / "such", "No such file or directory"]),
        (["compress", text, "--learn"], ["--learn", "with --model"]),
        (["compress", text, "--model", model, "--hidden", 9], ["--hidden", "without --model", "both"]),
        (["compress", text, "--model", text], [text]),
        (["decompress", text], ["FILE", ".rnk", "--out"]),
        (["decompress", text, "--out", folder / "x"], ["file", "rnnkit compress"]),
        (["decompress", folder / "none.rnk"], [f"{folder / 'none.rnk'}: No such file or directory"]),
    ):
        assert_refused(capsys, arguments, *facts)
    assert files(folder) == ["model.npz", "text"] and text.read_bytes() == TEXT


def test_damaged_block_is_named_and_the_rest_salvaged(folder, capsys, monkeypatch):
    monkeypatch.setattr(compressor, "BLOCK", 610)
    model = ["--model", folder / "model.npz"]
    main(capsys, "compress", folder / "text", *model)
    data = bytearray((folder / "text.rnk").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "text.rnk").write_bytes(data)
    back = ["decompress", folder / "text.rnk", "--out", folder / "again", *model]
    assert_refused(capsys, back, "block 1", "byte 610", "damaged", "--salvage")
    assert not (folder / "again").exists()
    status, out, err = main(capsys, *back, "--salvage")
    assert status == 2 and f"{folder}/again: 1,220 bytes" in out
    assert re.search(says("", "block 1", "byte 610", "damaged", folder / "again"), err)
    assert (folder / "again").read_bytes() == TEXT[:610] + TEXT[1220:]


def test_full_disk_is_one_line(folder, capsys, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert_refused(capsys, ["compress", folder / "text"], f"{folder / 'text.rnk'}: No space left on device")
    assert files(folder) == ["model.npz", "text"]
