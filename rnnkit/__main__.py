"""`python -m rnnkit`: the command line."""

import sys

from rnnkit.commands.command_line import main

if __name__ == "__main__":
    sys.exit(main())
