"""How a call runs: its arguments and options are checked, its arrays and workspace found, and an engine called."""
