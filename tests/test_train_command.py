"""`rnnkit train` as a user runs it: saved runs, what signals and kills leave, and configuration files."""

import re
import signal
import subprocess
import time
from dataclasses import fields
from itertools import islice

import numpy as np
import pytest
from messages import one_line_says
from training_runs import SMALL, assert_refused, command, cut_off, rows_of, text_in, trainer

from rnnkit.cells import LayerNormGRU, RegularizedLSTM
from rnnkit.commands import command_line
from rnnkit.common.console import Parser
from rnnkit.language_model import checkpoint, configuration, console, options, sampling
from rnnkit.language_model import model as textmodel
from rnnkit.language_model.settings import Options, Settings


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return text_in(tmp_path_factory.mktemp("text"))


@pytest.fixture
def train(text, tmp_path, capsys, monkeypatch):
    """Run the command in this process and an empty folder; return its exit status and what it printed."""
    monkeypatch.chdir(tmp_path)
    return trainer(text, capsys)


def test_ctrl_c_saves_a_run_that_goes_on_to_the_same_bits(train, text, tmp_path):
    train("--quiet", "--steps", 300, "--out", "whole.npz")
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        options = [*SMALL, "--quiet", "--steps", 300, "--out", tmp_path / "part.npz"]
        process = subprocess.Popen(command("train", text, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process:
            assert any(line.startswith(b"training") for line in process.stdout)
            process.send_signal(number)
            out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (status, b"")
        how = rb"; to resume: rnnkit train --resume \S+part.npz"
        (steps,) = re.findall(rb"saved     \S+part.npz, after (\d+) steps" + how, out)
        assert 1 <= int(steps) < 300
        status, out, err = train("--quiet", "--resume", "part.npz", files=())
        assert (status, err) == (0, "")
        assert f"from      part.npz, after {int(steps):,} steps\n" in out
        assert (tmp_path / "part.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def assert_survives_kills(text, folder, kills, rng, steps=150):
    """Raise unless a run that is killed again and again ends with the bits of one that was not."""
    options = ["--quiet", "--save-every", 1, "--keep", 2]
    begin = ["train", text, *SMALL, "--steps", steps, "--dropout", "0.2", "--layers", 2]
    for name in ("whole", "cut"):
        (folder / name).mkdir()
    subprocess.run(command(*begin, *options, "--out", folder / "whole/m.npz"), check=True, capture_output=True)
    out, killed = folder / "cut/m.npz", 0
    while True:
        started = ["train", "--resume", out] if out.exists() else [*begin, "--out", out]
        process = subprocess.Popen(command(*started, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process:
            if killed < kills:
                lines = iter(process.stdout.readline, b"")
                assert any(line.startswith(b"training") for line in lines), process.stderr.read()
                time.sleep(rng.random() * 0.25)  # at any moment of the steps and saves that follow
                process.kill()
                killed += process.wait() == -signal.SIGKILL
            else:
                _, err = process.communicate(timeout=300)
        if process.returncode != -signal.SIGKILL:
            break
    assert process.returncode == 0, err
    assert out.read_bytes() == (folder / "whole/m.npz").read_bytes()
    return killed


def test_a_run_that_is_killed_goes_on_to_the_same_bits(text, tmp_path):
    assert assert_survives_kills(text, tmp_path, 3, np.random.default_rng(0)) >= 1


def test_a_finished_run_cannot_go_on(train):
    train("--quiet", "--steps", 2)
    assert_refused(train("--quiet", "--resume", "model.npz", files=()), "load: path 'model.npz'", "run", "--init-from")


@pytest.fixture
def cut(train):
    """A run of ten steps that a signal has ended after three."""
    cut_off(train, 3, "--steps", 10)
    return "model.npz"


def test_settings_of_a_run_may_be_given_again_but_no_others(train, cut):
    def resumed(*options):
        return train("--quiet", "--resume", cut, *options, files=())

    assert_refused(resumed("--hidden", 9), "train: --hidden", 8, "--resume", 9)
    assert_refused(resumed("--epochs", 1), "train: --epochs", "--resume", 1.0, "--init-from")
    assert_refused(resumed("--init-from", "x"), "train: --init-from", "--resume", "x")
    assert train("--quiet", "--resume", cut, "--hidden", 8, "--steps", 10, files=())[0] == 0


def test_a_run_goes_on_with_its_own_text(train, cut, text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_bytes(text.read_bytes() + b"!")
    assert_refused(train("--quiet", "--resume", cut, files=[other]), "train: FILE", other)
    copy = tmp_path / "copy.txt"
    copy.write_bytes(text.read_bytes())
    cut_off(train, 4, "--resume", cut, files=[copy])
    assert checkpoint.load(cut).record.files == [str(copy)]  # where it is read the next time
    assert train("--quiet", "--resume", cut, files=())[0] == 0


def test_a_configuration_may_say_which_run_goes_on(train, cut, tmp_path):
    (tmp_path / cut).rename(tmp_path / "run.npz")
    (tmp_path / "run.toml").write_text('resume = "run.npz"\nquiet = true')
    assert train("--config", "run.toml", files=())[0] == 0
    assert textmodel.load("run.npz").trained_with["steps"] == 10 and not (tmp_path / cut).exists()


def test_a_run_may_go_on_in_another_file(train, cut, tmp_path):
    before = (tmp_path / cut).read_bytes()
    assert train("--quiet", "--resume", cut, "--out", "done.npz", files=())[0] == 0
    assert (tmp_path / cut).read_bytes() == before and textmodel.load("done.npz").trained_with["steps"] == 10


def test_the_best_by_validation_is_kept(train, tmp_path, monkeypatch):
    bits = {10: 3.0, 20: 1.0, 30: 2.0, 40: 4.0}
    scores = iter([*bits.values(), 5.0])  # the last of the held-out text
    monkeypatch.setattr("rnnkit.language_model.scoring.bits_per_byte", lambda *args: next(scores))
    _, out, _ = train("--quiet", "--steps", 40, "--keep", 1, "--save-every", 15, "--validate-every", 10, "--log",
                      "log.csv", "--out", "m.npz")
    assert "best      1.000 bits per byte on the validation text, in step 20\n" in out
    assert sorted(path.name for path in tmp_path.glob("*.npz")) == ["m-best.npz", "m-step30.npz", "m.npz"]
    logged = {int(row["step"]): float(row["validation_bits"]) for row in rows_of("log.csv") if row["validation_bits"]}
    assert logged == bits and textmodel.load("m-best.npz").trained_with["steps"] == 20


def test_minutes_end_a_run(train):
    begin = time.monotonic()
    status, out, _ = train("--quiet", "--minutes", "0.05", "--validate-every", "1h")
    assert status == 0 and time.monotonic() - begin > 3
    steps = int(re.search(r"over ([\d,]+) steps", out)[1].replace(",", "")) + 1
    assert textmodel.load("model.npz").trained_with | {"steps": steps, "minutes": 0.05} == textmodel.load(
        "model.npz").trained_with


def test_epochs_end_a_run(train, text):
    assert train("--quiet", "--epochs", "0.5")[0] == 0
    size = len(text.read_bytes())
    size -= size // 20 + size // 80
    assert textmodel.load("model.npz").trained_with["steps"] == round(0.5 * ((size // 4 - 1) // 16))


def test_lines_where_no_terminal_is(train, monkeypatch):
    monkeypatch.setattr("rnnkit.language_model.report.LINE_SECONDS", 0.0)
    status, _, err = train("--steps", 4, "--validate-every", 2)
    lines = [line for line in err.splitlines() if not line.startswith("rnnkit: compiling")]
    assert status == 0 and len(lines) == 5  # one of the end
    assert re.fullmatch(r" 25%  step 1  \d\.\d{3} bits/byte, first step \d+\.\d s", lines[0])
    expected = r"100%  step 4  \d\.\d{3} bits/byte, validation \d\.\d{3}, [\d.]+k?B/s, 00:00 left"
    assert re.fullmatch(expected, lines[-1]), lines[-1]


class Terminal:
    """A stream that says it is one."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return True


def test_a_bar_on_a_terminal(train, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    status, out, _ = train("--steps", 50, "--validate-every", 5, "--sample-every", 25)
    assert status == 0 and out.count("--- step ") == 2
    assert re.search(r"\r100% .*\d\.\d{3} bits/byte, validation \d\.\d{3}, [\d.]+k?B/s, 00:00 left", terminal.text)


def test_samples_are_of_the_model_as_it_is(train):
    _, out, _ = train("--quiet", "--steps", 20, "--sample-every", 10, "--save-every", 20)
    samples = re.split(r"--- step \d+\n", out.split("speed")[0])[1:]
    assert len(samples) == 2 and samples[0] != samples[1]
    text = bytes(islice(sampling.generate(textmodel.load("model.npz"), b"\n", 0.7, seed=0), 200))
    assert samples[1] == text.decode(errors="replace") + "\n"


def test_a_configuration_gives_options(train, tmp_path):
    (tmp_path / "run.toml").write_text('steps = 7\nhidden = 5\nseq-len = 9\nseq_len = 9\nquiet = true\nlog = "log.csv"')
    assert train("--config", "run.toml", "--seq-len", 11)[0] == 0
    found = textmodel.load("model.npz")
    assert (found.trained_with["steps"], found.trained_with["seq_len"], found.desc.hidden_size) == (7, 11, 8)
    assert (tmp_path / "log.csv").exists()


def test_a_budget_on_the_command_line_goes_before_another_in_the_configuration(train, tmp_path):
    (tmp_path / "run.toml").write_text("minutes = 60\nquiet = true")
    assert train("--config", "run.toml", "--steps", 3)[0] == 0
    assert textmodel.load("model.npz").trained_with["steps"] == 3


def test_files_in_a_configuration(train, text, tmp_path):
    (tmp_path / "run.toml").write_text(f'files = ["{text}", "{text}"]\nsteps = 1\nquiet = true')
    status, out, _ = train("--config", "run.toml", files=())
    assert status == 0 and f"text      {text}, {text}: " in out
    (tmp_path / "--text").write_bytes(text.read_bytes())
    (tmp_path / "run.toml").write_text('files = ["--text"]\nsteps = 1\nquiet = true\nsave_every = 1')
    assert "text      --text: " in train("--config", "run.toml", files=())[1]


def test_a_signal_in_the_last_step_finds_a_finished_run(train, monkeypatch):
    from rnnkit.language_model.training import Run

    advance = Run.advance
    monkeypatch.setattr(Run, "advance", lambda run, stop: advance(run, run.step == 4))
    status, out, _ = train("--quiet", "--steps", 5)
    assert status == 0 and "held-out" in out


@pytest.mark.parametrize(("content", "where", "facts"), [
    ("stepz = 3", "train: --config", ["stepz", "run.toml", "steps"]),
    ("zzzzzz = 3", "train: --config", ["zzzzzz", "run.toml", "accumulate", "batch"]),
    ("config = 'x'", "train: --config", ["config", "run.toml"]),
    ("steps =", "train: --config", ["TOML", "run.toml", "Invalid value"]),
    ("quiet = 1", "train: --config", ["quiet", "true", "false", 1, "run.toml"]),
    ("steps = [1]", "train: --config", ["steps", "number", [1], "run.toml"]),
    ("steps = true", "train: --config", ["steps", "number", True, "run.toml"]),
    ("steps = '1'", "train: --config", ["steps", "number", "'1'", "run.toml"]),
    ("lr = 'fast'", "train: --config", ["lr", "number", "'fast'", "run.toml"]),
    ("out = 5", "train: --config", ["out", "text", 5, "run.toml"]),
    ("log = 5.5", "train: --config", ["log", "text", 5.5, "run.toml"]),
    ("mode = 5", "train: --config", ["mode", "text", 5, "run.toml"]),
    ("files = ['text.txt', 5]", "train: --config", ["files", "text", ["text.txt", 5], "run.toml"]),
    ("save_every = true", "train: --config", ["save_every", "text", "number", True, "run.toml"]),
    ("steps = 1" + 5000 * "0", "train: --config", ["TOML", "run.toml", "Exceeds the limit"]),
    ("[steps]\na = 1", "train: --config", ["steps", "number", {"a": 1}, "run.toml"]),
    ("steps = 3\nepochs = 4", "train: budget", ["--steps", "--minutes", "--epochs", "steps, epochs"]),
])
def test_bad_configurations_are_one_line(train, tmp_path, content, where, facts):
    (tmp_path / "run.toml").write_text(content)
    assert_refused(train("--quiet", "--config", "run.toml"), where, *facts)


@pytest.mark.parametrize("content", [
    "steps = 0", "mode = 'lstn'", "hidden = 1.5", "save_every = '5x'", "out = ''", 'log = "a\\u0000b"',
])  # fmt: skip
def test_bad_values_in_a_configuration_are_one_line(train, tmp_path, capsys, content):
    (tmp_path / "run.toml").write_text(content)
    with pytest.raises(SystemExit, match="2"):
        train("--config", "run.toml")
    name, err = content.split()[0].replace("_", "-"), capsys.readouterr().err
    assert one_line_says(err, f"run.toml: argument --{name}:", "rnnkit train --help")


def test_a_configuration_of_bytes_is_one_line(train, tmp_path):
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe")
    assert_refused(train("--quiet", "--config", "run.toml"), "train: --config", "TOML", "run.toml")
    assert_refused(train("--quiet", "--config", "none.toml"), "none.toml:", "No such file or directory")


@pytest.fixture
def handle_interrupts():
    """What sets the handler of SIGINT, which a background job has ignored, for one test."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


def test_signals_act_at_once_the_second_time(handle_interrupts):
    handle_interrupts(signal.default_int_handler)
    before = signal.getsignal(signal.SIGTERM)
    with console.deferred_signals() as signals:
        assert signals.number is None
        signal.raise_signal(signal.SIGINT)
        assert signals.number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_is_ignored_stays_so(handle_interrupts):
    handle_interrupts(signal.SIG_IGN)
    with console.deferred_signals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.number is None


def test_layer_norm_and_noise(train, tmp_path):
    """In a model and its file; a new run may begin from it with other noise, but not with norms."""
    end = "--quiet", "--steps", 2
    status, out, _ = train("--mode", "lstm", "--zoneout", "0.1", *end, "--out", "held.npz")
    assert (status, "RegularizedLSTM" in out) == (0, True)
    assert textmodel.load("held.npz").desc.mode == RegularizedLSTM(zoneout=0.1)
    status, out, _ = train("--init-from", "held.npz", "--recurrent-dropout", "0.3", *end, "--out", "again.npz")
    assert (status, "recurrent_dropout=0.3, zoneout=0.0" in out) == (0, True)
    refused = train("--init-from", "held.npz", "--layer-norm", *end, "--out", "no.npz")
    assert_refused(refused, "train: --layer-norm", False, "--init-from", True)
    (tmp_path / "norm.toml").write_text("layer-norm = true\nmode = 'gru'\nzoneout = 0.2\n")
    args = command_line.build_parser().parse_args(["train", "--config", "norm.toml"])
    given = configuration.parsed(options.add_train_options, args)
    chosen = {name: given[name] for name in ("layer_norm", "mode", "zoneout")}
    assert Settings.of(chosen).cell == LayerNormGRU(zoneout=0.2)
    refused = train("--mode", "rnn_tanh", "--zoneout", "0.1", *end, "--out", "no.npz")
    assert_refused(refused, "train: --mode", "lstm", "gru", "rnn_tanh", "--layer-norm", "--zoneout")


def test_the_options_are_those_of_one_table():
    """The command line has no option of its own but --config, and what a run keeps are options of the table."""
    parser = Parser()
    options.add_train_options(parser)
    table = {one.name: one for one in (*fields(Options), *fields(Settings))}
    found = {action.dest: action for action in parser._actions if action.dest not in ("help", "files")}
    assert list(found) == list(table)
    for name, action in found.items():
        text, default = action.help.replace("%%", "%"), table[name].default
        assert text.startswith(table[name].metadata["help"])
        assert text.endswith(f"(default: {default})") or default is None or default is False
    kept = {one.name for one in fields(checkpoint.Record)} & table.keys()
    assert kept == {name for name, one in table.items() if one.metadata.get("kept")} and "log_every" in kept
