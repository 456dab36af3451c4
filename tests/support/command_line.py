"""The command line in this process."""

from rnnkit.commands import command_line


def main(capsys, *arguments):
    """Run a command in this process; return its exit status and what it printed."""
    status = command_line.main([str(argument) for argument in arguments])
    return status, *capsys.readouterr()
