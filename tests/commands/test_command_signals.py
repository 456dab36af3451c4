"""Ctrl-C, SIGTERM and closed streams: a command ends with the usual status, without a traceback or temporary files."""

import os
import signal
import subprocess
import sys
import time

import pytest
from language_models import small_model
from messages import one_line_says

from rnnkit.commands import command_line
from rnnkit.language_model import compressor, container

TEXT = b"the quick brown fox jumps over the lazy dog, again and again\n" * 30
ENDS = [("SIGINT", 130, b"rnnkit: interrupted\n"), ("SIGTERM", 143, b""), ("SIGHUP", 129, b"")]
ends = pytest.mark.parametrize(("name", "status", "printed"), ENDS)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text").write_bytes(TEXT * 3000)
    how = compressor.description(hidden=64)
    block = container.block(0, bytes(1 << 20), bytes(400))
    (tmp_path / "zeros.rnk").write_bytes(container.start(how.pack()) + block + container.end(1, 1 << 20))
    return tmp_path


def started(folder, *arguments, python=("-m", "rnnkit"), **options):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": folder} | options
    return subprocess.Popen([sys.executable, *python, *arguments], **pipes)


@ends
@pytest.mark.parametrize("arguments", [("compress", "text", "--hidden", "32"), ("decompress", "zeros.rnk")])
def test_signal_leaves_no_temporary_file(folder, arguments, name, status, printed):
    before = sorted(os.listdir(folder))
    with started(folder, *arguments, preexec_fn=not_ignored) as process:
        while not is_at_work(process, folder):
            pass
        process.send_signal(getattr(signal, name))
        _, err = process.communicate(timeout=60)
    assert (process.returncode, without_news(err)) == (status, printed)
    assert sorted(os.listdir(folder)) == before


# A command that is interrupted where what a handler raises is dropped, and in code that is run by `exec`.
LOSSES = """
import os, signal, sys, time
from rnnkit.commands import command_line, table

class Loses:
    def __del__(self):
        os.kill(os.getpid(), number)
        time.sleep(1)

def in_destructor(args):
    Loses()
    time.sleep(60)

def in_exec(args):
    exec("os.kill(os.getpid(), number); time.sleep(60)")

def in_except(args):
    try:
        os.kill(os.getpid(), number)
    except:
        pass
    time.sleep(60)

def in_cleanup(args):
    try:
        os.kill(os.getpid(), number)
    finally:
        time.sleep(0.5)  # longer than until it is sent again
        print("clean", file=sys.stderr)

class Command(table.Command):
    def add_options(self, parser):
        parser.set_defaults(run=run)

def main():
    table.COMMANDS["lose"] = Command("lose", "", "")
    return command_line.main(["lose"])

number, run = getattr(signal, sys.argv[1]), globals()[sys.argv[2]]
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.mark.parametrize("place", ["in_destructor", "in_exec", "in_except", "in_cleanup"])
@ends
def test_signal_is_neither_lost_nor_sent_during_cleanup(tmp_path, place, name, status, printed):
    (tmp_path / "lose.py").write_text(LOSSES)
    with started(tmp_path, name, place, python=("-m", "lose"), preexec_fn=not_ignored) as process:
        _, err = process.communicate(timeout=5)
    assert (process.returncode, err) == (status, b"clean\n" * (place == "in_cleanup") + printed)


def test_second_signal_ends_the_command_at_once(tmp_path):
    text = LOSSES.replace("time.sleep(0.5)", "os.kill(os.getpid(), number); time.sleep(60)")
    (tmp_path / "lose.py").write_text(text)
    with started(tmp_path, "SIGTERM", "in_cleanup", python=("-m", "lose")) as process:
        _, err = process.communicate(timeout=5)
    assert (process.returncode, err) == (-signal.SIGTERM, b"")


def not_ignored():
    """SIGHUP is ignored under nohup, and children inherit that."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def without_news(err):
    """What was printed, without the line that kernels are being compiled."""
    return b"".join(line for line in err.splitlines(keepends=True) if b"compiling kernels" not in line)


def is_at_work(process, folder):
    """Whether the command has been busy with its temporary file for a while: it checks --out with another one."""
    names = [name for name in os.listdir(folder) if name.startswith(".rnnkit-")]
    time.sleep(0.3)
    return process.poll() is not None or bool(names and names[0] in os.listdir(folder))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])  # as under nohup, and in background jobs of a shell
def test_ignored_signal_stays_ignored(folder, name):
    small_model("gru", "float32").save(folder / "model.npz")
    (folder / "text").write_bytes(TEXT)

    def ignore():
        signal.signal(getattr(signal, name), signal.SIG_IGN)

    with started(folder, "compress", "text", "--model", "model.npz", preexec_fn=ignore) as process:
        while process.poll() is None:
            process.send_signal(getattr(signal, name))
            time.sleep(0.02)
    assert process.returncode == 0 and (folder / "text.rnk").exists()


def test_handlers_are_restored_after_a_command(tmp_path):
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = [signal.getsignal(number) for number in numbers]
    assert command_line.main(["sample", str(tmp_path / "none")]) == 2
    assert [signal.getsignal(number) for number in numbers] == before


SCRIPT = "import sys\nfrom rnnkit.commands.command_line import main\nsys.exit(main())\n"
MOMENTS = ["numpy._core.multiarray", "numba.core.config"]
MOMENTS += [f"rnnkit.{name}" for name in ("common.startup", "errors", "network.plan", "common.console")]
MOMENTS += ["rnnkit.language_model.job"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("installed", [False, True], ids=["python -m rnnkit", "rnnkit"])
def test_ctrl_c_during_the_imports_is_one_line(folder, moment, installed):
    """Python prints the name of each module after its import, which tells when to interrupt."""
    (folder / "rnnkit").write_text(SCRIPT)
    python = "-X", "importtime", *((folder / "rnnkit",) if installed else ("-m", "rnnkit"))
    with started(folder, "compress", "text", "--hidden", "32", python=python) as process:
        for line in process.stderr:
            if line.rstrip().endswith(b" " + moment.encode()):
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    lines = [line for line in err.splitlines() if not line.startswith(b"import time:")]
    assert (process.returncode, lines) == (130, [b"rnnkit: interrupted"])
    assert sorted(os.listdir(folder)) == ["rnnkit", "text", "zeros.rnk"]


def test_import_of_rnnkit_keeps_the_handler():
    code = "import signal, rnnkit; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    for name in ("program.py", "-c"):
        command = [sys.executable, "-c", f"import sys; sys.argv[0] = {name!r}; {code}"]
        assert subprocess.run(command, capture_output=True).stdout == b"True\n"


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Run a command in a shell, in a folder with a model and a text."""
    monkeypatch.delenv("PYTHONUNBUFFERED", False)  # of build servers: users' commands have buffers
    small_model("gru", "float32").save(tmp_path / "model.npz")
    (tmp_path / "text").write_bytes(TEXT[:300])
    options = {"shell": True, "cwd": tmp_path, "capture_output": True}
    return lambda line: subprocess.run(f"{sys.executable} -m rnnkit {line}", **options)


STREAMS = [(">/dev/full", ["No space left"]), (">&-", ["standard output", "closed"])]


@pytest.mark.parametrize("arguments", ["sample model.npz", "score text --model model.npz", "compress text"])
@pytest.mark.parametrize(("stream", "facts"), STREAMS)
def test_unwritable_output_is_one_line(shell, arguments, stream, facts):
    done = shell(f"{arguments} {stream}")
    assert done.returncode == 2 and one_line_says(without_news(done.stderr).decode(), "rnnkit:", *facts), done.stderr


@pytest.mark.parametrize("stream", ["2>&-", "2>/dev/full"])
def test_commands_need_no_stderr(shell, stream):
    for arguments, status in (("compress text --model model.npz", 0), ("compress none", 2), ("compress --no", 2)):
        assert shell(f"{arguments} {stream}").returncode == status
