"""What `import rnnkit` gives, written down once more."""

PUBLIC = """
    RNNDescriptor num_weights weight_layout weight_views WeightBlock init_weights pack_weights workspace_nbytes
    forward backward infer prepare Forward Backward Infer Workspace Plan Stream LSTM GRU RNN Network load check_cell
    set_debug WorkspaceError BackendError
""".split()
