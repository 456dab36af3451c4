"""Faults in the CPU engine and its kernels. Most tests named are of the cell whose kernels compile soonest."""

from mutants.mutant import Mutant

ALGEBRA, BACKWARD, BITS = "tests/test_algebra.py::test_", "tests/test_backward.py::test_", "tests/test_bits.py::test_"
CHECKS, DROPOUT, FORWARD = "tests/test_checks.py::test_", "tests/test_dropout.py::test_", "tests/test_forward.py::test_"
KERNELS, TEAM = "tests/test_kernels.py::test_", "tests/test_team.py::test_"
VECTORIZATION, WORKSPACE = "tests/test_vectorization.py::test_", "tests/test_workspace.py::test_"

WAITS = f"{BITS}a_layer_waits_for_every_step_that_it_needs"
REPORTS = f"{BITS}a_step_is_reported_when_every_thread_is_done_with_it"
WAIT_FORWARD = (f"{WAITS}[tanh-16-2-500]", f"{WAITS}[tanh-16-4-500]", f"{WAITS}[tanh-5-4-500]")
WAIT_BACKWARD = (f"{WAITS}[tanh-16-2-1]", f"{WAITS}[tanh-16-4-1]", f"{WAITS}[tanh-5-4-1]")
SOILED = (f"{FORWARD}all_memory_is_written_before_it_is_read[tanh-float32-nan]",)
GATES, MASKS = f"{VECTORIZATION}gate_mathematics_is_vectorized", f"{DROPOUT}the_seed_decides_every_element"
COMBINATIONS, GRADIENTS = f"{FORWARD}every_combination_equals", f"{BACKWARD}every_combination_has_the_right_gradient"
TANH, LSTM = f"{COMBINATIONS}_the_reference[tanh-float32]", f"{COMBINATIONS}_the_reference[lstm-float32]"

_LENGTHS = (
    Mutant(
        "lengths are ignored from the second span of a long inference",
        "rnnkit/cpu/infer.py",
        "segment_of(steps, start, stop)",
        "segment_of(steps, 0, stop - start)",
        (f"{BITS}a_long_inference_knows_the_lengths_in_every_chunk[tanh]",),
    ),
    Mutant(
        "padding of y is not cleared in inference",
        "rnnkit/cpu/infer.py",
        "clearing = ready_to_clear([out], rows, 1)",
        "pass",
        SOILED,
    ),
    Mutant(
        "padding of the workspace's cells is not cleared",
        "rnnkit/cpu/engine.py",
        'startswith(("hidden", "cell"))',
        'startswith("hidden")',
        (f"{WORKSPACE}other_lengths_fit[lstm-lengths1]",),
    ),
    Mutant(
        "padding of the workspace's hidden states is not cleared",
        "rnnkit/cpu/engine.py",
        'startswith(("hidden", "cell"))',
        'startswith("cell")',
        (f"{WORKSPACE}other_lengths_fit[lstm-lengths1]",),
    ),
    Mutant(
        "padding of dx is not cleared",
        "rnnkit/cpu/backward.py",
        "(np.zeros if steps.padded else np.empty)",
        "np.empty",
        SOILED,
    ),
    Mutant(
        "the reverse direction starts at the end of the batch",
        "kernels/rows.py",
        "t + 1 < lengths[n]",
        "t + 1 < seq_len",
        (TANH,),
    ),
)
_DROPOUT = (
    Mutant(
        "a layer's mask is another's, shifted",
        "rnnkit/cpu/run.py",
        "counter=[blocks, 0, 0, layer]",
        "counter=[layer, 0, 0, 0]",
        (f"{MASKS}[7-0.1-5-False-float32]",),
    ),
    Mutant(
        "the seed has 32 bits",
        "rnnkit/cpu/run.py",
        "key=workspace.seed",
        "key=workspace.seed % 2**32",
        (f"{MASKS}[1099511627779-0.5-5-False-float32]",),
    ),
    Mutant(
        "the last column of wide rows is never dropped",
        "kernels/dropout.py",
        "factor = scale if keep[j] else zero",
        "factor = scale if keep[j] or columns > 64 and j == columns - 1 else zero",
        (f"{MASKS}[0-0.5-70-True-float32]",),
    ),
    Mutant(
        "what is kept is not scaled",
        "rnnkit/cpu/run.py",
        "1 / (1 - desc.dropout)",
        "1",
        (f"{BITS}dropout_scales_what_it_keeps[tanh]",),
    ),
    Mutant(
        "the gradient passes through what was dropped",
        "rnnkit/cpu/backward.py",
        "if self._desc.dropout > 0:",
        "if False:",
        (f"{BACKWARD}gradients_with_dropout[tanh-0.25]",),
    ),
)
_MEMORY = (
    Mutant(
        "a workspace's memory of another dtype is used again",
        "rnnkit/memory.py",
        " and array.dtype == dtype",
        "",
        (f"{WORKSPACE}another_dtype_gets_its_own_memory",),
    ),
    Mutant(
        "a stale workspace is taken",
        "rnnkit/memory.py",
        "if generation != self.generation:",
        "if False:",
        (f"{WORKSPACE}a_stale_workspace_is_refused",),
    ),
    Mutant(
        "a foreign workspace is taken",
        "rnnkit/workspace.py",
        "if desc is not None and desc is not workspace.desc and desc != workspace.desc:",
        "if False:",
        (f"{WORKSPACE}a_foreign_workspace_is_refused",),
    ),
    Mutant(
        "an input in the memory that is used again is taken",
        "rnnkit/engine.py",
        "if workspace.memory.holds(array):",
        "if False:",
        (f"{WORKSPACE}an_input_in_the_memory_that_is_used_again_is_refused",),
    ),
    Mutant(
        "a gradient that overlaps the weights is taken",
        "rnnkit/checks.py",
        "if overlap(dw, array):",
        "if dw is array:",
        (f"{CHECKS}a_gradient_in_the_memory_of_the_weights_is_refused",),
    ),
    Mutant(
        "misaligned arrays reach the kernels",
        "rnnkit/cpu/layer.py",
        'requirements=["C", "A"]',
        'requirements=["C"]',
        (f"{ALGEBRA}any_memory_order[misaligned-float32-tanh]",),
    ),
    Mutant(
        "strided arrays reach the kernels",
        "rnnkit/cpu/layer.py",
        "if type(array) is np.ndarray and array.flags.carray:",
        "if type(array) is np.ndarray and array.flags.writeable:",
        (f"{ALGEBRA}steps_in_any_memory_order[strided-float32-tanh]",),
    ),
    Mutant(
        "dw that is given is left as it was",
        "rnnkit/cpu/backward.py",
        " if dw is None else dw",
        "",
        (f"{BACKWARD}dw_is_added_into[tanh-float32]",),
    ),
    Mutant(
        "initial hidden states are ignored",
        "rnnkit/cpu/run.py",
        "0 if states.hx is None else states.hx[run.layer.index]",
        "0",
        (TANH,),
    ),
)
_PIPELINED = (
    Mutant(
        "the upper of two layers does not wait for the last step",
        "kernels/loop.py",
        "wait_for_progress(whole_team, to_do)",
        "wait_for_progress(whole_team, to_do - 1)",
        WAIT_FORWARD,
    ),
    Mutant(
        "the lower of two layers says that it is further than it is",
        "kernels/loop.py",
        "post_progress(whole_team, to_do)",
        "post_progress(whole_team, to_do + 1)",
        WAIT_FORWARD,
    ),
    Mutant(
        "one thread says that its layer is done before the others are",
        "kernels/loop.py",
        "        if shares_rows(schedule.bounds, team):\n            barrier(team)\n        if role == LEADS",
        "        if role == LEADS",
        (f"{REPORTS}[forward-1]",),
    ),
    Mutant(
        "backward, the lower of two layers does not wait for the last step",
        "kernels/loop_gradient.py",
        "wait_for_progress(whole_team, done + now)",
        "wait_for_progress(whole_team, done + now - 1)",
        WAIT_BACKWARD,
    ),
    Mutant(
        "backward, the upper of two layers says that it is further than it is",
        "kernels/loop_gradient.py",
        "post_progress(whole_team, done + now)",
        "post_progress(whole_team, done + now + 1)",
        WAIT_BACKWARD,
    ),
    Mutant(
        "backward, one thread says that its layer is done before the others are",
        "kernels/loop_gradient.py",
        "            if role == LEADS:\n                barrier(team)\n",
        "            if role == LEADS:\n",
        (f"{REPORTS}[backward-2]",),
    ),
    Mutant(
        "two layers are never pipelined",
        "rnnkit/cpu/planner.py",
        "0, count, True, True, lag, *own, 2 * half.threads)",
        "0, count, False, True, lag, *own, 2 * half.threads)",
        (f"{BITS}pipelined_layers_change_no_bit[tanh-5-None-2-2]",),
    ),
)
_THREADS = (
    Mutant(
        "no work is ever shared",
        "kernels/machine/team.py",
        "(work > _SMALL_WORK or team.is_awake(work)):",
        "work > 10**18:",
        (f"{BITS}the_number_of_threads_changes_no_bit[tanh-9-None-2]",),
    ),
    Mutant(
        "two directions never have threads of their own",
        "kernels/machine/partition.py",
        "if not split or team.size % tasks > 0:",
        "if True:",
        (f"{BITS}the_number_of_threads_changes_no_bit[tanh-9-None-2]",),
    ),
    Mutant(
        "rows of the batch are never shared",
        "kernels/machine/partition.py",
        "return team.size > 1 and bounds.size > 1 and team.size % (bounds.size - 1) == 0",
        "return False",
        (f"{BITS}the_number_of_threads_changes_no_bit[tanh-12-None-3]",),
    ),
    Mutant(
        "no blocks are ever dealt out",
        "rnnkit/cpu/planner.py",
        "Schedule(row_numbers(0), grain_of(self.itemsize), count,",
        "Schedule(row_numbers(0), 0, count,",
        (f"{BITS}whoever_does_a_block_changes_no_bit[tanh-None-2]",),
    ),
    Mutant(
        "a block is two threads'",
        "kernels/machine/partition.py",
        "return taken == number and exchange(sync, place, before, none + number + 1)",
        "return taken <= number",
        (f"{TEAM}every_item_is_one_ranks",),
    ),
    Mutant(
        "threads that share the units of a step do not meet behind it",
        "kernels/loop.py",
        "            barrier(team_of_steps)\n",
        "",
        (f"{BITS}the_number_of_threads_changes_no_bit[tanh-5-lengths2-3]",),
    ),
)
_MATHEMATICS = (
    Mutant(
        "two gates are swapped",
        "kernels/cells/lstm.py",
        "i, f, g, o = sigmoid(i), sigmoid(f)",
        "i, f, g, o = sigmoid(f), sigmoid(i)",
        (LSTM,),
    ),
    Mutant(
        "the reverse direction runs forward",
        "kernels/loop.py",
        "t = steps.start + steps.stop - 1 - index if layer.reverse else index",
        "t = index",
        (TANH,),
    ),
    Mutant(
        "only one of two biases is added",
        "kernels/products.py",
        "bias[p.first + i] += w[",
        "bias[p.first + i] = w[",
        (TANH,),
    ),
    Mutant(
        "a deep product begins anew in each block",
        "kernels/machine/gemm.py",
        "begins = overwrite and k.start == 0",
        "begins = overwrite",
        (f"{KERNELS}a_product_of_any_depth[1030-float32]",),
    ),
    Mutant(
        "panels are multiplied once more from the last one on",
        "kernels/machine/gemm.py",
        "stop = min(vector + size, vectors.stop)",
        "stop = vectors.stop",
        (f"{KERNELS}panels_are_read_from_either_end[700-350-1-float32]",),
    ),
    Mutant(
        "panels that are no whole run are left out",
        "kernels/machine/gemm.py",
        "runs = (vectors.stop - vectors.start + size - 1) // size",
        "runs = (vectors.stop - vectors.start) // size",
        (f"{KERNELS}panels_are_read_from_either_end[700-350-1-float32]",),
    ),
    Mutant(
        "tanh is the quotient too near to 0",
        "kernels/machine/activations.py",
        "_NEAR = 0.26",
        "_NEAR = 0.05",
        (f"{KERNELS}activations_are_accurate",),
    ),
    Mutant(
        "a gradient is wrong by a thousandth",
        "kernels/cells/lstm.py",
        "(1 - g * g), dc * f",
        "(1 - g * g), dc * f * 1.001",
        (f"{GRADIENTS}[lstm]",),
    ),
    Mutant(
        "the gradient passes a bound of the clip",
        "kernels/cells/lstm.py",
        "0 if c <= self.low or",
        "0 if c < self.low or",
        (f"{BACKWARD}the_gradient_stops_where_the_cell_is_clipped",),
    ),
    Mutant(
        "the reset gate is left out of its product's gradient",
        "kernels/cells/gru.py",
        "dn, dn * r, dh * z",
        "dn, dn, dh * z",
        (f"{GRADIENTS}[gru]",),
    ),
)
_VECTORS = (
    Mutant(
        "divisions are checked",
        "kernels/machine/jit.py",
        '"error_model": "numpy"',
        '"error_model": "python"',
        (f"{GATES}[LSTM-activate-float32]",),
    ),
    Mutant(
        "the stages of a cell are called for each unit",
        "kernels/stages.py",
        '{"forceinline": True}',
        '{"forceinline": False}',
        (f"{GATES}[LSTM-activate-float32]",),
    ),
    Mutant(
        "a number in a stage is of twice the precision",
        "kernels/stages.py",
        "reals[0](one.value.value)",
        "float(one.value.value)",
        (LSTM,),
    ),
    Mutant(
        "a tile has more sums than registers",
        "kernels/machine/tile.py",
        "(REGISTERS - vectors - 1) // vectors",
        "(REGISTERS + REGISTERS) // vectors",
        (f"{VECTORIZATION}tiles_stay_in_whole_registers",),
    ),
    Mutant(
        "a row alone that streams its weights reads the vector behind",
        "kernels/machine/tile.py",
        "_I64(within * self.lanes)",
        "_I64((within + self.streams) * self.lanes)",
        (f"{BITS}a_row_alone_has_the_bits_that_it_has_among_others[gru-None-520]",),
    ),
    Mutant(
        "tiles work on half a register",
        "kernels/machine/tile.py",
        "self.lanes = VECTOR_BYTES * 8 // bits",
        "self.lanes = VECTOR_BYTES * 4 // bits",
        (f"{VECTORIZATION}tiles_stay_in_whole_registers[float32-4]",),
    ),
)

MUTANTS = (*_LENGTHS, *_DROPOUT, *_MEMORY, *_PIPELINED, *_THREADS, *_MATHEMATICS, *_VECTORS)
