"""The command line, as a user runs it: a process, its files, what it prints and its exit status."""

import contextlib
import os
import re
import stat
import subprocess
import sys

import numpy as np
import pytest
from command_line import main
from messages import one_line_says

import rnnkit
from rnnkit.cells import AUGRU
from rnnkit.commands import command_line
from rnnkit.commands.table import GROUPS
from rnnkit.language_model import model as textmodel

NETWORK = ["--mode", "gru", "--hidden", "24", "--embedding", "8"]
TRAINING = ["--steps", "60", "--batch", "4", "--seq-len", "16", "--lr", "0.03"]
TRAIN = NETWORK + TRAINING
TRAIN_HELP, HUGE = "rnnkit train --help", "1" + "0" * 400
WORDS = ("forward", "backward", "gate", "cell", "state", "layer", "batch", "weight", "bias", "tanh")


def command(*arguments):
    return [sys.executable, "-m", "rnnkit", *map(str, arguments)]


def run(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a text of random words and a model that a process has trained on it."""
    folder = tmp_path_factory.mktemp("main")
    words = np.random.default_rng(0).choice(WORDS, 4000)
    (folder / "text.txt").write_text(" ".join(words))
    done = run("train", folder / "text.txt", "--out", folder / "model.npz", *TRAIN)
    assert done.returncode == 0, done.stderr
    (folder / "stdout").write_bytes(done.stdout)
    (folder / "stderr").write_bytes(done.stderr)
    return folder


@pytest.fixture
def start():
    """Start a command with pipes on its outputs; whatever the test leaves running is killed."""
    with contextlib.ExitStack() as stack:

        def start(*arguments):
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            process = stack.enter_context(subprocess.Popen(command(*arguments), **pipes))
            stack.callback(process.kill)
            return process

        yield start


def assert_refused(capsys, *arguments, because):
    """Raise unless the command ends with status 2 and one line on stderr, that begins so and has the facts."""
    status, out, err = main(capsys, *arguments)
    where, *facts = because
    assert (status, out) == (2, "") and one_line_says(err, f"rnnkit: {where}", *facts)


def held_out_figures(stdout):
    return {name: float(bits) for bits, name in re.findall(r"^ +(\d+\.\d+)  (.+)$", stdout, re.MULTILINE)}


def test_train_prints_figures_and_learns(folder):
    stdout, size = (folder / "stdout").read_text(), (folder / "text.txt").stat().st_size
    held_out, validation = size // 20, size // 20 // 4
    training = size - held_out - validation
    assert f"{training:,} bytes to train on, {validation:,} for validation, {held_out:,} held out" in stdout
    assert re.search(r"^speed     [\d,]+ bytes/s over 59 steps; first step \d+\.\d s", stdout, re.MULTILINE)
    bits = held_out_figures(stdout)
    others = ["order-0 entropy", "zlib -9", "lzma, given the training text first"]
    assert list(bits) == ["rnnkit", "rnnkit, dynamic evaluation", *others]
    assert bits["rnnkit"] < bits["order-0 entropy"] - 0.5
    assert "bits/byte" in (folder / "stderr").read_text()


def test_init_from_goes_on_from_the_model(folder, capsys, tmp_path):
    out = tmp_path / "further.npz"
    options = ["--quiet", "--init-from", folder / "model.npz", "--out", out, *TRAINING, "--steps", 30]
    status, stdout, stderr = main(capsys, "train", folder / "text.txt", *options)
    assert (status, stderr) == (0, "")
    assert "'steps': 60" in stdout
    before = held_out_figures((folder / "stdout").read_text())["rnnkit"]
    assert held_out_figures(stdout)["rnnkit"] < before
    assert textmodel.load(out).desc == textmodel.load(folder / "model.npz").desc
    assert textmodel.load(out).trained_with["steps"] == 30


def test_network_options_reach_the_model(folder, capsys, tmp_path):
    out = tmp_path / "model.npz"
    options = ["--mode", "rnn_tanh", "--layers", 2, "--hidden", 5, "--embedding", 3, "--dropout", 0.25]
    assert main(capsys, "train", folder / "text.txt", "--quiet", "--steps", 1, "--out", out, *options)[0] == 0
    assert textmodel.load(out).desc == rnnkit.RNNDescriptor("rnn_tanh", 3, 5, 2, dropout=0.25)


def test_training_options_change_the_model(folder, capsys, tmp_path):
    changes = ("--batch", 2), ("--seq-len", 5), ("--lr", 1e-4), ("--clip", 1e-3), ("--steps", 2), ("--seed", 1)
    usual, models = ["--quiet", "--steps", 3, "--batch", 3, "--seq-len", 4, "--hidden", 4], []
    for options in ([], [], *changes):
        assert main(capsys, "train", folder / "text.txt", "--out", tmp_path / "model.npz", *usual, *options)[0] == 0
        models.append(textmodel.load(tmp_path / "model.npz").parameters.flat.tobytes())
    assert models[0] == models[1] and len(set(models)) == 1 + len(changes)


def test_sample_writes_the_prompt_and_its_continuation(folder):
    done = run("sample", folder / "model.npz", "--bytes", 50, "--prompt", "gaté ", "--seed", 1)
    again = run("sample", folder / "model.npz", "--bytes", 50, "--prompt", "gaté ", "--seed", 1)
    assert (done.returncode, again.stderr) == (0, b"")  # the first may have had to compile
    assert done.stdout.startswith("gaté ".encode())
    assert len(done.stdout) == len("gaté ".encode()) + 50
    assert again.stdout == done.stdout


def test_sample_options_change_the_text(folder, capfdbinary):
    texts = set()
    for options in ([], ["--temperature", "0"], ["--temperature", "2"], ["--seed", "2"], ["--bytes", "99"]):
        assert command_line.main(["sample", str(folder / "model.npz"), "--seed", "1", "--bytes", "100", *options]) == 0
        texts.add(capfdbinary.readouterr().out)
    assert sorted(map(len, texts)) == [99, 100, 100, 100, 100]


def test_sample_ends_quietly_without_a_reader(folder, start):
    process = start("sample", folder / "model.npz", "--bytes", 10**9)
    assert len(process.stdout.read(10)) == 10
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=120) == 1


def test_version_and_help(capsys):
    for arguments, expected in (
        (["--version"], f"rnnkit {rnnkit.__version__}\n"),
        (["--help"], "(?s)usage: rnnkit .*train .*sample .*"),
        (["train", "--help"], "(?s)usage: rnnkit train .*--mode .*--init-from .*"),
        (["sample", "--help"], "(?s)usage: rnnkit sample .*--temperature .*"),
    ):
        with pytest.raises(SystemExit) as exit:
            command_line.main(arguments)
        assert exit.value.code == 0
        assert re.fullmatch(expected, capsys.readouterr().out)
    assert main(capsys) == (0, command_line.build_parser().format_help(), "")


def test_commands_and_options_have_help_texts():
    (commands,) = (one for one in command_line.build_parser()._actions if isinstance(one.choices, dict))
    for name, parser in commands.choices.items():
        assert parser.description and [action.dest for action in parser._actions if not action.help] == [], name
    shown = command_line.build_parser([]).format_help()
    for title, own in GROUPS.items():
        lines = shown.partition(f"\n{title}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split(maxsplit=1) for line in lines] == [[one.name, one.about] for one in own]


def modules_after(*arguments):
    """What a process has imported of rnnkit after a command."""
    code = f"""
import contextlib, io, sys
from rnnkit.commands import command_line
from rnnkit.commands.table import GROUPS
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    command_line.main({list(arguments)})
print(*[name for name in sys.modules if name.startswith("rnnkit")])
"""
    return {*subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()}


def test_only_the_called_command_is_imported():
    for line in ("--help", "--version", "", "check rnnkit.cells:JANET", "warmup --help", "rain", "warmup --mode train"):
        found = modules_after(*line.split())
        assert "rnnkit.commands.command_line" in found
        assert not [name for name in found if name.startswith("rnnkit.language_model")]
    assert "rnnkit.language_model.options" in modules_after("train", "--help")


@pytest.mark.parametrize(
    ("arguments", "where", "facts"),
    [
        (["rain"], "rnnkit: argument COMMAND:", ["'rain'"]),
        (["train", "--out", ""], "rnnkit train: argument --out:", ["''", TRAIN_HELP]),
        (["train", "--steps", "0"], "rnnkit train: argument --steps:", [1, 0, TRAIN_HELP]),
        (["train", "--steps", "1.5"], "rnnkit train: argument --steps:", ["'1.5'", TRAIN_HELP]),
        (["train", "--steps", HUGE], "rnnkit train: argument --steps:", [2**63 - 1, HUGE, TRAIN_HELP]),
        (["train", "--mode", "lstn"], "rnnkit train: argument --mode:", ["'lstn'"]),
        (["train", "--lr", "nan"], "rnnkit train: argument --lr:", [0, "nan", TRAIN_HELP]),
        (["train", "none", "--lr", "0"], "rnnkit train: argument --lr:", [0, TRAIN_HELP]),
        (["train", "none", "--minutes", "0"], "rnnkit train: argument --minutes:", [0, TRAIN_HELP]),
        (["train", "none", "--epochs", "0"], "rnnkit train: argument --epochs:", [0, TRAIN_HELP]),
        (["train", "none", "--clip", "0"], "rnnkit train: argument --clip:", [0, TRAIN_HELP]),
        (["train", "none", "--keep", "-1"], "rnnkit train: argument --keep:", [0, -1, TRAIN_HELP]),
        (["train", "--clip", "inf"], "rnnkit train: argument --clip:", [0, "inf", TRAIN_HELP]),
        (["train", "--dropout", "2"], "rnnkit train: argument --dropout:", [0, 1, 2]),
        (["sample"], "rnnkit sample:", ["MODEL", "rnnkit sample --help"]),
        (["sample", "a\0b"], "rnnkit sample: argument MODEL:", [r"'a\x00b'", "rnnkit sample --help"]),
        (["sample", "m", "--temperature", "-1"], "rnnkit sample: argument --temperature:", [0, -1]),
        (["sample", "m", "--top-p", "0"], "rnnkit sample: argument --top-p:", [0, 1]),
    ],
)
def test_bad_arguments_are_one_line(capsys, arguments, where, facts):
    with pytest.raises(SystemExit) as exit:
        command_line.main(arguments)
    assert exit.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == "" and one_line_says(captured.err, where, *facts)


def test_bad_files_and_contradicting_options_are_one_line(folder, capsys, tmp_path):
    missing, empty, short = tmp_path / "missing", tmp_path / "empty", tmp_path / "short"
    empty.write_bytes(b"")
    short.write_bytes(b"x" * 100)
    model = (folder / "model.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(model[: len(model) // 2])
    (tmp_path / "flipped.npz").write_bytes(model[:2000] + bytes([model[2000] ^ 1]) + model[2001:])

    assert_refused(capsys, "train", missing, because=(f"{missing}:", "No such file or directory"))
    assert_refused(capsys, "train", tmp_path, because=(f"{tmp_path}:", "Is a directory"))
    assert_refused(capsys, "train", empty, because=("read_files: paths", "byte", f"'{empty}'"))
    assert_refused(capsys, "train", short, because=("rows: text", "batch_size*(seq_len+1)=", 94))
    out = missing / "model.npz"
    assert_refused(capsys, "train", folder / "text.txt", "--out", out, because=("train: --out", "folder", out))
    assert_refused(capsys, "sample", missing, because=(f"{missing}:", "No such file or directory"))
    because = "train: --hidden", 24, "--init-from", 3
    assert_refused(capsys, "train", "--hidden", 3, "--init-from", folder / "model.npz", because=because)
    damage = ("complete", "truncated"), ("complete", "truncated"), ("undamaged", "CRC-32")
    for path, facts in zip((short, tmp_path / "cut.npz", tmp_path / "flipped.npz"), damage, strict=True):
        assert_refused(capsys, "sample", path, because=(f"load: path '{path}'", ".npz", *facts))


def test_out_is_a_regular_file_or_refused_before_training(capsys, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for out, kind in ((tmp_path / "fifo", "a FIFO"), ("/dev/null", "a character device")):
        # The text is not there either, and would be missed first if it were read before.
        because = f"save: path '{out}'", "regular file", kind
        assert_refused(capsys, "train", tmp_path / "missing", "--out", out, because=because)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode) and stat.S_ISFIFO(os.stat(tmp_path / "fifo").st_mode)


@pytest.mark.parametrize(
    ("options", "because"),
    [
        (["--hidden", 10**12], ("RNNDescriptor: hidden_size", 2147483647, 1000000000000)),
        (["--hidden", 2**31 - 1], ("Parameters: desc", 9223372036854775807, "bytes")),
        (["--hidden", 2**28], ("Unable to allocate", "1.00 EiB", "float32")),
    ],
)
def test_network_too_large_for_memory_is_one_line(capsys, options, because):
    assert_refused(capsys, "train", *options, because=because)


@pytest.mark.parametrize("nested", ["[" * 100_000, '{"a":' * 100_000])
def test_nested_settings_are_one_line(folder, capsys, tmp_path, nested):
    model = tmp_path / "nested.npz"
    with np.load(folder / "model.npz") as file:
        np.savez(model, **dict(file) | {"trained_with": nested})
    because = f"load: path '{model}'", "trained_with", "JSON", "maximum recursion depth exceeded"
    assert_refused(capsys, "sample", model, because=because)
    assert_refused(capsys, "train", "--init-from", model, because=because)


def test_float16_model_is_one_line(folder, capsys, tmp_path):
    half = textmodel.TextModel.random(rnnkit.RNNDescriptor("gru", 3, 4, dtype="float16"), 0)
    half.save(tmp_path / "half.npz")
    got = "RNNDescriptor('gru', 3, 4, dtype='float16')"
    because = f"load: path '{tmp_path / 'half.npz'}'", "float32", "float64", got
    assert_refused(capsys, "sample", tmp_path / "half.npz", because=because)
    out = tmp_path / "out.npz"
    assert_refused(capsys, "train", "--init-from", tmp_path / "half.npz", "--out", out, because=because)


def test_model_with_side_inputs_is_one_line_in_every_command(folder, capsys, tmp_path):
    path = tmp_path / "side.npz"
    textmodel.TextModel.random(rnnkit.RNNDescriptor(AUGRU(), 3, 4), 0).save(path)
    text, out = folder / "text.txt", ["--out", tmp_path / "out"]
    for arguments in (
        ["sample", path],
        ["score", text, "--model", path],
        ["compress", text, "--model", path, *out],
        ["compress", text, "--model", path, "--learn", *out],
        ["decompress", text, "--model", path, *out],
        ["train", text, "--init-from", path, *out],
    ):
        assert_refused(capsys, *arguments, because=(f"load: path '{path}'", "side inputs", "AUGRU()"))
    assert os.listdir(tmp_path) == ["side.npz"]


def test_memory_error_without_message_is_one_line(capsys, monkeypatch):
    def out_of_memory(path):
        raise MemoryError

    monkeypatch.setattr(textmodel, "load", out_of_memory)
    assert_refused(capsys, "sample", "model.npz", because=("MemoryError",))


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (["--steps", 1, "--lr", 3e38, "--weight-decay", 2], ["the weights", "finite", "last step", "--lr"]),
        (["--lr", 1e38], ["the loss", "finite", "step", "--lr"]),
    ],
)
def test_diverging_training_is_one_line_and_saves_nothing(folder, capsys, tmp_path, options, facts):
    out = tmp_path / "model.npz"
    status, _, err = main(capsys, "train", folder / "text.txt", "--quiet", "--out", out, *TRAIN, *options)
    assert status == 2 and one_line_says(err, f"rnnkit: train: {facts[0]}", *facts[1:])
    assert not out.exists()


def test_names_of_many_files_are_cut_short(folder, capsys, tmp_path):
    names = [folder / "text.txt"] * 100
    out = tmp_path / "model.npz"
    options = ["--quiet", "--steps", 1, "--out", out, *NETWORK]
    assert main(capsys, "train", *names, *options)[0] == 0
    kept = textmodel.load(out).trained_with["text"]
    assert 500 < len(kept) <= 1000 and kept.endswith("[...]")


def test_missing_extra_is_one_line_with_the_cure(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    because = "train: tqdm", "none", "pip install 'rnnkit[train]'"
    assert_refused(capsys, "train", folder / "text.txt", because=because)
    options = ["--quiet", "--out", tmp_path / "model.npz", *TRAIN, "--steps", 1]  # which needs no progress bar
    status, _, err = main(capsys, "train", folder / "text.txt", *options)
    assert (status, err) == (0, "")
