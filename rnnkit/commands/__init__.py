"""The command line: its parser, its table of commands, and the commands of the package itself."""
