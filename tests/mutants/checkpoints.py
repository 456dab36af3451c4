"""Faults in training with checkpoints, which any of the tests below notices in the bits."""

from mutants.mutant import faults_in

BITS, MEMORY = "tests/test_time_checkpoints.py::test_", "tests/test_checkpoint_memory.py::test_"
LONG = f"{BITS}long_sequences_have_the_same_bits[tanh-"
STACKED, BOTH = f"{LONG}7-300-lengths1-layers0-1]", f"{LONG}7-300-lengths1-layers1-1]"  # with dropout
FOUR_LAYERS = f"{LONG}5-450-None-layers2-1]"
ALL = (STACKED, BOTH, FOUR_LAYERS)
REUSED = f"{BITS}its_memory_is_used_again"
PADDED = f"{BITS}any_memory_order_and_padding"
ORDER = f"{BITS}the_sequences_of_a_segment_keep_their_order"
BY_HAND = f"{MEMORY}the_memory_by_hand"

MUTANTS = (
    *faults_in(
        "rnnkit/cpu/rows.py",
        (
            "the sequences of a segment are sorted anew",
            "steps.batch_size, True, order)",
            "steps.batch_size, True)",
            (ORDER, STACKED),
        ),
        ("all segments have the lengths of the first", "np.clip(steps.lengths - start,", "np.clip(steps.lengths,", ALL),
    ),
    *faults_in(
        "rnnkit/steps.py",
        (
            "a segment is no whole number of chunks",
            "min(-(-checkpoint_steps // chunk) * chunk,",
            "min(checkpoint_steps,",
            ALL,
        ),
        (
            "chunks of segments are not those of the sequence",
            "return max(1, _GRADIENT_BYTES // itemsize // max(batch_size, 1))",
            "return max(1, _GRADIENT_BYTES // itemsize // max(batch_size, 2))",
            (f"{BITS}a_chunk_is_what_a_product_works_through_at_once",),
        ),
    ),
    *faults_in(
        "rnnkit/cpu/planner.py",
        (
            "backward sums up other chunks than segments are made of",
            "gradient_chunk(self._batch, self.itemsize)",
            "2 * gradient_chunk(self._batch, self.itemsize)",
            ALL,
        ),
    ),
    *faults_in(
        "rnnkit/cpu/run.py",
        ("every segment has the masks of the first", "divmod(first_step *", "divmod(0 *", (STACKED,)),
        (
            "the masks of a segment begin with a counter's first draw",
            "stream.random(numbers,",
            "stream.random(0,",
            (REUSED,),
        ),
        ("a counter's value makes 4 draws", "_DRAWS = 8", "_DRAWS = 4", (STACKED,)),
    ),
    *faults_in(
        "rnnkit/cpu/backward.py",
        (
            "the layers of a chain share packed weights",
            "run.layer.layer - self._lowest if self._chain else place",
            "place",
            (FOUR_LAYERS,),
        ),
        (
            "a direction's gradient passes dropout before the other's is added",
            "if lowest > self._lowest:",
            "if lowest > 0:",
            (BOTH,),
        ),
    ),
    *faults_in(
        "rnnkit/cpu/checkpoints.py",
        ("a forward with checkpoints begins from zeros", "0 if hx is None else hx", "0", ALL),
        ("a forward with checkpoints begins from cells of zeros", "0 if cx is None else cx", "0", (REUSED,)),
        ("padding of y is not cleared", "ready_to_clear([part], own_steps, 0)", "()", (PADDED,)),
        (
            "outputs of the reverse direction are lost",
            "units = slice(layer.direction * size, (layer.direction + 1) * size)",
            "units = slice(0, size)",
            (BOTH,),
        ),
        ("the last segment packs no weights", "packs=number + 1 == len(run.bounds)", "packs=number == 0", ALL),
        (
            "the gradient of the reverse direction's input is lost",
            "                add(both, gradient.dx, own_steps, lowest)\n",
            "",
            (BOTH,),
        ),
        (
            "between layers of two directions no gradient is dropped",
            "                if lowest.layer:\n                    gradient.drop(both, lowest.layer)\n",
            "",
            (BOTH,),
        ),
        (
            "a layer's gradient is written over the one above",
            'f"dlayer_{lowest.layer % 2}"',
            '"dlayer"',
            (BOTH,),
        ),
        (
            "the reverse direction's segments are those of the other",
            ".direction == 1:\n            start",
            ".direction == 2:\n            start",
            (BOTH,),
        ),
        (
            "a segment that was interrupted is taken for whole",
            "            self._memory.segment = None  # until it is whole\n",
            "",
            (f"{BITS}an_exception_in_any_kernel_leaves_a_workspace_that_is_right",),
        ),
        (
            "the segment that was run last is run again",
            "if self._memory.segment != key:",
            "if True:",
            (f"{BITS}the_segment_that_was_run_last_is_not_run_again",),
        ),
        (
            "an earlier forward's segment is taken",
            "(self._workspace.generation, chain, number)",
            "(0, chain, number)",
            (REUSED,),
        ),
        (
            "another direction's segment is taken",
            "(self._workspace.generation, chain, number)",
            "(self._workspace.generation, number)",
            (f"{LONG}1030-3-None-layers1-205]",),
        ),
        (
            "another segment is taken",
            "(self._workspace.generation, chain, number)",
            "(self._workspace.generation, chain)",
            ALL,
        ),
        (
            "final states are those of the first segment",
            "        if number + 1 == len(self.bounds):\n",
            "        if number == 0:\n",
            ALL,
        ),
    ),
    *faults_in(
        "rnnkit/workspace.py",
        (
            "the reverse direction comes last in forward",
            "for direction in (1, 0)]",
            "for direction in (0, 1)]",
            (BOTH,),
        ),
        ("a segment is not counted", "checkpoint_steps)) + segment", "checkpoint_steps))", (BY_HAND,)),
        (
            "the states of a workspace with checkpoints are looked for",
            "if self.checkpoint_steps is not None:",
            "if False:",
            (f"{BITS}the_states_of_every_step_are_not_there",),
        ),
        (
            "no steps between checkpoints are taken",
            "    if value < 1:",
            "    if value < 0:",
            (f"{BITS}a_wrong_number_of_steps_is_refused",),
        ),
    ),
    *faults_in(
        "rnnkit/engine.py",
        (
            "checkpoints on a GPU are ignored",
            "if checkpoint_steps is not None and library_of(x) is not np:",
            "if False:",
            (f"{BITS}on_a_gpu_there_are_no_checkpoints",),
        ),
    ),
)
