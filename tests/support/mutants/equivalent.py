"""Generated faults that change nothing that anybody could see, each with the reason; by their names."""

_FLAT = "kernels read and write the rows of all steps, one after the other, whatever the shape says"

EQUIVALENT = {
    "rnnkit/call/checks.py inputs: condition left out: like is None or type(like) is ndarray -> ((like is None)), in "
    "usual = type(x) is ndarray and (like is None or type(like) is ndarray) and x.dtype is desc.np_dtype":
        "a shortcut past checks that have the same outcome",
    "rnnkit/language_model/sampling.py _bytes: constant: 0 -> (-1), in yield int(unread[0])":
        "there is one",
    "rnnkit/cpu/scheduler.py best_sharing: comparison: taken <= _TOLERANCE * shortest -> "
    "(taken < _TOLERANCE * shortest), in "
    "near = [(one.threads, taken, one) for one, taken in choices.items() if taken <= _TOLERANCE * shortest]":
        "no division takes exactly so much",
    "rnnkit/cuda/context.py Context._persists: constant: 128 -> 129, in "
    "return batch % 8 == 0 and batch <= 128 and fits":
        "129 is no multiple of 8",
    'kernels/rnnkit_kernels/cells/uses.py module: neighbours swapped: "numpy", "_operator" -> "_operator", "numpy", in '
    '_LIBRARIES = "builtins", "cmath", "math", "numpy", "_operator", "rnnkit", _PACKAGE':
        "what is among them has no order",
    "kernels/rnnkit_kernels/loop.py _run_pass: constant: 1 -> 0, in "
    "step = Step(sizes, weights, operands, None, zeros, schedule.panel_grain, t % 2 == 1, True)":
        "every other step reads the weights backwards, whichever it is: the last ones are in the cache still",
    "kernels/rnnkit_kernels/machine/packing.py _pack_word_of.full_precision: constant: 0 -> (-1), in "
    "panels[at + lane] = b.data[source + lane] if lane < columns.stop - columns.start else 0":
        "a column beyond the last unit is computed and goes nowhere",
    "kernels/rnnkit_kernels/machine/gemm.py product: statement left out: not_inlined() -> pass":
        "compiling takes longer",
    "kernels/rnnkit_kernels/machine/operators.py _Operator.get_call_type: neighbours swapped: "
    "ConfigStack.top_or_none(), "
    "tuple(args) -> tuple(args), ConfigStack.top_or_none(), in question = ConfigStack.top_or_none(), tuple(args)":
        "a key is told from others in any order",
    "kernels/rnnkit_kernels/machine/rounding.py _bfloat16_rows.pair: constant: 0 -> (-1), in "
    "target[1 + source.size // 2] = bfloat16_pair(source[source.size - 1] * factor, source.dtype.type(0))":
        "the number beside the last odd one meets a weight of 0",
    "kernels/rnnkit_kernels/machine/sync.py _pause.generate: statement left out: _emit_pause(builder) -> pass":
        "waiting takes more of the core that two threads may share",
    "rnnkit/network/networks.py module: neighbours swapped: GRU, RNN -> RNN, GRU, in "
    "KINDS = {kind._name: kind for kind in (LSTM, GRU, RNN)}":
        "a table by name has no order",
    "rnnkit/network/plan.py Plan.stream: constant: 1 -> 2, in "
    'expected = "be at least 1" if num_streams < 1 else f"be at most {MAX_SIZE}"':
        "1 is not refused",
    "rnnkit/call/workspace.py workspace_layout: neighbours swapped: seq_len, batch_size -> batch_size, seq_len, in "
    'blocks.append(Block(f"gates_{pseudo_layer}", (seq_len, batch_size, gate_columns(desc)), dtype))': _FLAT,
    "rnnkit/call/workspace.py workspace_layout: neighbours swapped: seq_len, batch_size -> batch_size, seq_len, in "
    'blocks.append(Block(f"input_l{layer}", (seq_len, batch_size, width), dtype))': _FLAT,
    "rnnkit/call/workspace.py workspace_layout: neighbours swapped: seq_len, batch_size -> batch_size, seq_len, in "
    'blocks.append(Block(f"mask_l{layer}", (seq_len, batch_size, width), np.dtype(bool)))': _FLAT,
}  # fmt: skip
