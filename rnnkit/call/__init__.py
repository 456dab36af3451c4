"""The layer of calls: check arguments and options, provide arrays and the workspace, call an engine."""
