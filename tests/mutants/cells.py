"""Faults in what runs cells of a user's own: vectors, several states, gates without R, checks and names."""

from mutants.mutant import faults_in

CACHE, CHECK = "tests/test_own_cache.py::test_", "tests/test_check_cell.py::test_"
OWN, RULES = "tests/test_own_cells.py::test_", "tests/test_cell_rules.py::test_"
VALUES, GRADIENTS = f"{OWN}its_values_are_those_of_the_twin", f"{OWN}its_gradients_are_those_of_its_values"
BITS = f"{OWN}every_way_to_run_it_has_the_same_bits"
PEEPHOLE, STACKED = (f"{GRADIENTS}[Peephole-h5]",), (f"{VALUES}[Peephole-h17-stack-float32]",)
INDEPENDENT, FEEDFORWARD = (f"{GRADIENTS}[Independent-h5]",), (f"{GRADIENTS}[Feedforward-h5]",)
STABILISED, BLOCKS = (f"{GRADIENTS}[Stabilised-h5]",), (f"{OWN}the_blocks_of_its_weights",)
FILES, TUPLES = (f"{OWN}a_network_of_it_is_saved_and_loaded",), (f"{OWN}several_states_are_a_tuple",)
PLANTED = (f"{CHECK}a_planted_error_is_named[0-1.001]", f"{CHECK}a_planted_error_is_named[0-nan]")

MUTANTS = (
    *faults_in(
        "kernels/products.py",
        ("vectors are not packed", "        if p.bias >= 0:", "        if p.bias >= 0 and p.gates > 0:",
         (f"{VALUES}[Peephole-h5-float32]",)),
    ),
    *faults_in(
        "kernels/stages.py",
        ("vectors are read one block too early",
         "    count = len(cell.instance_class.declaration.slots)\n",
         "    count = len(cell.instance_class.declaration.slots) - 1\n",
         (f"{VALUES}[Independent-h5-float32]",)),
        ("the second state is read at the first one's place",
         'places |= {name: ("states", slot), f"{name}_prev": ("states_prev", slot)}',
         'places |= {name: ("states", slot), f"{name}_prev": ("states_prev", 0)}',
         (f"{VALUES}[Stabilised-h5-float32]",)),
        ("the gradients of all states are one",
         'places |= {f"d{name}": ("dstates", slot), f"d{name}_prev": ("dstates", slot)}',
         'places |= {f"d{name}": ("dstates", 0), f"d{name}_prev": ("dstates", 0)}',
         STABILISED),
        ("numbers of a module keep their type", "(ir.Const, ir.Global, ir.FreeVar)", "(ir.Const,)",
         (f"{VALUES}[Independent-h5-float32]",)),
        ("a result of another type is stored", "        if result != real:", "        if False:",
         (f"{OWN}an_error_of_compilation_names_the_stage",)),
    ),
    *faults_in(
        "kernels/loop_gradient.py",
        ("the gradient of h without R is not cleared",
         "            for j in range(columns.stop - columns.start):\n                total[j] = 0\n",
         "            for j in range(columns.stop - columns.start):\n                total[j] += 0\n",
         FEEDFORWARD),
        ("the direct part of the gradient of h is lost without R",
         "else direct if said.carries_hidden else zero", "else zero", INDEPENDENT),
    ),
    *faults_in(
        "rnnkit/cpu/layer.py",
        ("the gradients of vectors lie in front of the last slot",
         "    column, own = len(said.slots) * sizes.hidden, len(said.vectors) * sizes.hidden\n",
         "    column, own = (len(said.slots) - 1) * sizes.hidden, len(said.vectors) * sizes.hidden\n",
         PEEPHOLE),
        ("the vectors of all layers are the first one's", "starts[said.vectors[0].name + suffix]",
         'starts[said.vectors[0].name + "_l0"]', STACKED),
    ),
    *faults_in(
        "rnnkit/weights.py",
        ("vectors stand layer by layer behind the biases of each",
         "    for blocks in (_biases, _vectors):\n        for _, suffix in pseudo_layers:\n"
         "            yield from ((name + suffix, shape) for name, shape in blocks(desc))",
         "    for _, suffix in pseudo_layers:\n        for blocks in (_biases, _vectors):\n"
         "            yield from ((name + suffix, shape) for name, shape in blocks(desc))",
         BLOCKS),
        ("vectors are drawn as the weights are",
         "-bound if low is None else low, bound if high is None else high", "-bound, bound", BLOCKS),
        ("a cell without R has rows of it", "    if desc.num_recurrent_gates:\n", "    if True:\n", BLOCKS),
    ),
    *faults_in(
        "rnnkit/states.py",
        ("states come back in another order",
         "np.split(states, len(desc.states), axis=2))", "np.split(states, len(desc.states), axis=2)[::-1])",
         (f"{VALUES}[Stabilised-h5-float32]",)),
    ),
    *faults_in(
        "rnnkit/workspace.py",
        ("the first state is shown for each",
         "first, size = self.desc.states.index(name) * self.desc.hidden_size,", "first, size = 0,",
         (f"{OWN}the_states_of_every_step",)),
    ),
    *faults_in(
        "rnnkit/stream.py",
        ("a stream has room for one state", '"cx": desc.states_size}', '"cx": desc.hidden_size}',
         (f"{OWN}many_streams_of_it",)),
    ),
    *faults_in(
        "rnnkit/modes.py",
        ("a parameter keeps Python's type",
         "of = {bool: bool, int: real, float: real,", "of = {bool: bool, int: int, float: float,",
         (f"{OWN}its_parameters", f"{VALUES}[Independent-h5-float32]")),
        ("a NaN is a parameter", "if wanted is float and math.isnan(value):", "if False:",
         (f"{OWN}what_does_not_go_with_a_cell_is_refused",)),
        ("cells of one name share machine code", '    name = f"{said.name}_{(said.digest or \'\')[:16]}"\n',
         '    name = f"{said.name}_"\n', (f"{OWN}cells_of_one_name_are_kept_apart",)),
        ("a shipped cell has to be given", "    cell = cell or _shipped(name, source)\n", "",
         (f"{OWN}a_network_of_a_shipped_cell_is_loaded_without_it",)),
        ("a file of another source is loaded", "    if said.digest != source:", "    if False:", FILES),
        ("a file of another cell is loaded", "    if said.name != name:", "    if False:", FILES),
    ),
    *faults_in(
        "rnnkit/cell_check.py",
        ("a gradient off by a thousandth passes", "_BOUND = 1e-7", "_BOUND = 1e-2", PLANTED),
        ("a NaN passes", "    error = math.inf if math.isnan(error) else error\n", "",
         (f"{CHECK}an_error_in_a_part_of_the_numbers_is_named",)),
        ("trials are all left out", "    if curved > _KINK * size:", "    if True:", (f"{CHECK}what_is_right",)),
    ),
    *faults_in(
        "kernels/cells/source.py",
        ("a function that an equation calls is no part of its source",
         "            _add(digest, value, seen)\n        elif", "            pass\n        elif",
         (f"{CACHE}a_second_process_is_warm_and_an_edit_compiles_anew",)),
        ("a number that an equation uses is no part of its source",
         "            digest.update(repr(value).encode())\n", "            pass\n",
         (f"{OWN}cells_of_one_name_are_kept_apart",)),
    ),
    *faults_in(
        "kernels/cells/activations.py",
        ("cells without parameters are equal",
         "    kind.__eq__ = lambda self, other: type(self) is type(other) and tuple.__eq__(self, other)\n",
         "    kind.__eq__ = lambda self, other: tuple.__eq__(self, other)\n",
         (f"{OWN}cells_without_parameters_are_not_equal",)),
    ),
    *faults_in(
        "kernels/cells/rules.py",
        ("a name stands for two things", "        if given.count(name) > 1:", "        if False:",
         (f"{RULES}refused",)),
        ("a stage reads what is not there", "        if name not in known:", "        if False:", (f"{RULES}refused",)),
        ("a stage writes what nobody declared", "        if name not in writable:", "        if False:",
         (f"{RULES}refused",)),
        ("a stage may return too few numbers", "    if len(results) != len(stage.writes):\n        raise refusal",
         "    if False:\n        raise refusal", (f"{RULES}refused",)),
    ),
)  # fmt: skip
