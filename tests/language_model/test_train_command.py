"""`rnnkit train` as a user runs it: saved runs, what signals and kills leave, and configuration files."""

import io
import re
import signal
import subprocess
import time
from dataclasses import fields
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from messages import one_line_says
from training_runs import SMALL, assert_refused, command, cut_off, rows_of

from rnnkit.cells import LayerNormGRU, RegularizedLSTM
from rnnkit.commands import command_line
from rnnkit.common.console import Parser
from rnnkit.language_model import checkpoint, configuration, console, options, sampling
from rnnkit.language_model import model as textmodel
from rnnkit.language_model.settings import Options, Settings


def test_signal_saves_a_run_that_resumes_bit_identically(train, text, tmp_path):
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


def test_killed_run_resumes_bit_identically(text, tmp_path):
    """Three times, at any moment of its steps and saves."""
    options, rng = ["--quiet", "--save-every", 1, "--keep", 2], np.random.default_rng(0)
    begin = ["train", text, *SMALL, "--steps", 150, "--dropout", "0.2", "--layers", 2]
    whole, out, statuses = tmp_path / "whole.npz", tmp_path / "cut.npz", []
    subprocess.run(command(*begin, *options, "--out", whole), check=True, capture_output=True)
    while not statuses or statuses[-1] == -signal.SIGKILL:
        started = ["train", "--resume", out] if out.exists() else [*begin, "--out", out]
        with subprocess.Popen(command(*started, *options), stdout=subprocess.PIPE) as process:
            assert any(line.startswith(b"training") for line in process.stdout)
            if len(statuses) < 3:
                time.sleep(rng.random() * 0.25)
                process.kill()
            process.communicate(timeout=300)
        statuses.append(process.returncode)
    assert statuses[-1] == 0 and -signal.SIGKILL in statuses
    assert out.read_bytes() == whole.read_bytes()


def configured(train, text, *options, **files):
    """Run with a configuration of this text."""
    Path("run.toml").write_text(text)
    return train("--config", "run.toml", *options, **files)


def test_resume_refuses_settings_other_than_its_own(train, cut):
    def resumed(*options):
        return train("--quiet", "--resume", cut, *options, files=())

    assert_refused(resumed("--hidden", 9), "train: --hidden", 8, "--resume", 9)
    assert_refused(resumed("--epochs", 1), "train: --epochs", "--resume", 1.0, "--init-from")
    assert_refused(resumed("--init-from", "x"), "train: --init-from", "--resume", "x")
    assert train("--quiet", "--resume", cut, "--hidden", 8, "--steps", 10, files=())[0] == 0


def test_resume_refuses_another_text(train, cut, text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_bytes(text.read_bytes() + b"!")
    assert_refused(train("--quiet", "--resume", cut, files=[other]), "train: FILE", other)
    copy = tmp_path / "copy.txt"
    copy.write_bytes(text.read_bytes())
    cut_off(train, 4, "--resume", cut, files=[copy])
    assert checkpoint.load(cut).record.files == [str(copy)]  # where it is read the next time
    assert train("--quiet", "--resume", cut, files=())[0] == 0


def test_resume_may_stand_in_a_configuration(train, cut, tmp_path):
    (tmp_path / cut).rename(tmp_path / "run.npz")
    assert configured(train, 'resume = "run.npz"\nquiet = true', files=())[0] == 0
    assert textmodel.load("run.npz").trained_with["steps"] == 10 and not (tmp_path / cut).exists()


def test_best_model_by_validation_is_kept(train, tmp_path, monkeypatch):
    bits = {10: 3.0, 20: 1.0, 30: 2.0, 40: 4.0}
    scores = iter([*bits.values(), 5.0])  # the last of the held-out text
    monkeypatch.setattr("rnnkit.language_model.scoring.bits_per_byte", lambda *args: next(scores))
    options = "--quiet --steps 40 --keep 1 --save-every 15 --validate-every 10 --log log.csv --out m.npz"
    _, out, _ = train(*options.split())
    assert "best      1.000 bits per byte on the validation text, in step 20\n" in out
    assert sorted(path.name for path in tmp_path.glob("*.npz")) == ["m-best.npz", "m-step30.npz", "m.npz"]
    logged = {int(row["step"]): float(row["validation_bits"]) for row in rows_of("log.csv") if row["validation_bits"]}
    assert logged == bits and textmodel.load("m-best.npz").trained_with["steps"] == 20


def test_epochs_end_a_run(train, text):
    assert train("--quiet", "--epochs", "0.5")[0] == 0
    size = len(text.read_bytes())
    size -= size // 20 + size // 80
    assert textmodel.load("model.npz").trained_with["steps"] == round(0.5 * ((size // 4 - 1) // 16))


def test_progress_is_plain_lines_without_a_terminal(train, monkeypatch):
    monkeypatch.setattr("rnnkit.language_model.report.LINE_SECONDS", 0.0)
    status, _, err = train("--steps", 4, "--validate-every", 2)
    lines = [line for line in err.splitlines() if not line.startswith("rnnkit: compiling")]
    assert status == 0 and len(lines) == 5  # one of the end
    assert re.fullmatch(r" 25%  step 1  \d\.\d{3} bits/byte, first step \d+\.\d s", lines[0])
    expected = r"100%  step 4  \d\.\d{3} bits/byte, validation \d\.\d{3}, [\d.]+k?B/s, 00:00 left"
    assert re.fullmatch(expected, lines[-1]), lines[-1]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_bar_on_a_terminal(train, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    status, out, _ = train("--steps", 50, "--validate-every", 5, "--sample-every", 25)
    assert status == 0 and out.count("--- step ") == 2
    expected = r"\r100% .*\d\.\d{3} bits/byte, validation \d\.\d{3}, [\d.]+k?B/s, 00:00 left"
    assert re.search(expected, terminal.getvalue())


def test_samples_are_drawn_from_the_current_model(train):
    _, out, _ = train("--quiet", "--steps", 20, "--sample-every", 10, "--save-every", 20)
    samples = re.split(r"--- step \d+\n", out.split("speed")[0])[1:]
    assert len(samples) == 2 and samples[0] != samples[1]
    text = bytes(islice(sampling.generate(textmodel.load("model.npz"), b"\n", 0.7, seed=0), 200))
    assert samples[1] == text.decode(errors="replace") + "\n"


def test_command_line_overrides_the_configuration(train):
    """Also another budget of it."""
    text = 'minutes = 60\nhidden = 5\nseq-len = 9\nseq_len = 9\nquiet = true\nlog = "log.csv"'
    assert configured(train, text, "--steps", 3, "--seq-len", 11)[0] == 0
    found = textmodel.load("model.npz")
    assert (found.trained_with["steps"], found.trained_with["seq_len"], found.desc.hidden_size) == (3, 11, 8)
    assert Path("log.csv").exists()


def test_files_may_stand_in_a_configuration(train, text):
    status, out, _ = configured(train, f'files = ["{text}", "{text}"]\nsteps = 1\nquiet = true', files=())
    assert status == 0 and f"text      {text}, {text}: " in out
    Path("--text").write_bytes(text.read_bytes())
    found = configured(train, 'files = ["--text"]\nsteps = 1\nquiet = true\nsave_every = 1', files=())
    assert "text      --text: " in found[1]


def test_signal_in_the_last_step_finds_a_finished_run(train, monkeypatch):
    from rnnkit.language_model.training import Run

    advance = Run.advance
    monkeypatch.setattr(Run, "advance", lambda run, stop: advance(run, run.step == 4))
    status, out, _ = train("--quiet", "--steps", 5)
    assert status == 0 and "held-out" in out


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        ("stepz = 3", ["stepz", "steps"]),
        ("zzzzzz = 3", ["zzzzzz", "accumulate", "batch"]),
        ("config = 'x'", ["config"]),
        ("steps =", ["TOML", "Invalid value"]),
        ("quiet = 1", ["quiet", "true", "false", 1]),
        ("steps = true", ["steps", "number", True]),
        ("lr = 'fast'", ["lr", "number", "'fast'"]),
        ("out = 5", ["out", "text", 5]),
        ("mode = 5", ["mode", "text", 5]),
        ("files = ['text.txt', 5]", ["files", "text", ["text.txt", 5]]),
        ("save_every = true", ["save_every", "text", "number", True]),
        ("steps = 1" + 5000 * "0", ["TOML", "Exceeds the limit"]),
    ],
)
def test_bad_configuration_is_refused_in_one_line(train, content, facts):
    assert_refused(configured(train, content, "--quiet"), "train: --config", "run.toml", *facts)


def test_two_budgets_of_a_configuration_are_refused(train):
    found = configured(train, "steps = 3\nepochs = 4", "--quiet")
    assert_refused(found, "train: budget", "--steps", "--minutes", "--epochs", "steps, epochs")


@pytest.mark.parametrize(
    "content", ["steps = 0", "mode = 'lstn'", "hidden = 1.5", "save_every = '5x'", "out = ''", 'log = "a\\u0000b"']
)
def test_bad_value_of_a_configuration_is_refused_in_one_line(train, capsys, content):
    with pytest.raises(SystemExit, match="2"):
        configured(train, content)
    name, err = content.split()[0].replace("_", "-"), capsys.readouterr().err
    assert one_line_says(err, f"run.toml: argument --{name}:", "rnnkit train --help")


def test_binary_and_missing_configurations_are_refused(train, tmp_path):
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe")
    assert_refused(train("--quiet", "--config", "run.toml"), "train: --config", "TOML", "run.toml")
    assert_refused(train("--quiet", "--config", "none.toml"), "none.toml:", "No such file or directory")


@pytest.fixture
def handle_interrupts():
    """What sets the handler of SIGINT, which a background job has ignored, for one test."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


def test_second_signal_acts_at_once(handle_interrupts):
    handle_interrupts(signal.default_int_handler)
    before = signal.getsignal(signal.SIGTERM)
    with console.deferred_signals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_ignored_signal_stays_ignored(handle_interrupts):
    handle_interrupts(signal.SIG_IGN)
    with console.deferred_signals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.number is None


@pytest.mark.nightly
def test_layer_norm_and_noise_are_saved_and_checked(train):
    """In a model and its file; a new run may begin from it with other noise, but not with norms."""
    end = "--quiet", "--steps", 2
    status, out, _ = train("--mode", "lstm", "--zoneout", "0.1", *end, "--out", "held.npz")
    assert status == 0 and "RegularizedLSTM" in out
    assert textmodel.load("held.npz").desc.mode == RegularizedLSTM(zoneout=0.1)
    status, out, _ = train("--init-from", "held.npz", "--recurrent-dropout", "0.3", *end, "--out", "again.npz")
    assert status == 0 and "recurrent_dropout=0.3, zoneout=0.0" in out
    refused = train("--init-from", "held.npz", "--layer-norm", *end, "--out", "no.npz")
    assert_refused(refused, "train: --layer-norm", False, "--init-from", True)
    Path("norm.toml").write_text("layer-norm = true\nmode = 'gru'\nzoneout = 0.2\n")
    args = command_line.build_parser().parse_args(["train", "--config", "norm.toml"])
    given = configuration.parsed(options.add_train_options, args)
    chosen = {name: given[name] for name in ("layer_norm", "mode", "zoneout")}
    assert Settings.of(chosen).cell == LayerNormGRU(zoneout=0.2)
    refused = train("--mode", "rnn_tanh", "--zoneout", "0.1", *end, "--out", "no.npz")
    assert_refused(refused, "train: --mode", "lstm", "gru", "rnn_tanh", "--layer-norm", "--zoneout")


def test_every_option_is_in_the_table():
    """The command line has no option of its own but --config, and its help says their defaults."""
    parser = Parser()
    options.add_train_options(parser)
    table = {one.name: one.default for one in (*fields(Options), *fields(Settings))}
    found = {action.dest: action.help for action in parser._actions if action.dest not in ("help", "files")}
    assert list(found) == list(table)
    for name, default in table.items():
        text = found[name].replace("%%", "%")
        assert text.endswith(f"(default: {default})") or default is None or default is False
