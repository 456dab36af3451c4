"""Faults in the operators of ONNX, and in files of other formats."""

from mutants.mutant import faults_in

ARRAYS, MODELS = "tests/test_interop_onnx.py::test_", "tests/test_onnx_files.py::test_"
TENSORS, STANDARD = "tests/test_interop_safetensors.py::test_", "tests/test_onnx_node_tests.py::test_"
SAYS, RUNS, REFUSED = f"{ARRAYS}an_operator_gives_what", f"{ARRAYS}a_run_names_sizes", f"{ARRAYS}what_is_no_operator"
SAYS, RUNS = f"{SAYS}_the_documentation_says", f"{RUNS}_in_the_order_of_the_layout"
REFUSED, THERE = f"{REFUSED}_of_ours_is_refused_by_name", f"{ARRAYS}there_and_back_gives_the_same_bits"
LAYERS, DATA = f"{ARRAYS}layers_that_do_not_fit_are_refused_by_number", f"{MODELS}data_are_read_from_the_models_folder"
DATA, UNFIT = f"{DATA}_alone_and_as_many_as_there_are", f"{MODELS}a_node_that_rnnkit_lacks_is_refused_by_name"
NAMES, RESULTS = f"{MODELS}nodes_go_by_their_names_or_outputs", f"{MODELS}onnx_runtime_gives_the_results_of_the_network"
CONSTANTS, KEEPS = f"{MODELS}constants_of_every_kind_are_found", f"{TENSORS}there_and_back_keeps_weights_and_options"
HOSTILE = f"{TENSORS}a_hostile_header_is_refused_before_memory_is_taken"


_OPERATORS = faults_in(
    "rnnkit/interop/onnx.py",
    ("a reverse operator reads forward", "        x = _backwards(x, lengths) if self.reverse else x\n", "",
     (SAYS, f"{STANDARD}a_test_of_the_standard_passes")),
    ("a reverse operator starts in the padding", "lengths - 1 - steps, steps)", "len(x) - 1 - steps, steps)", (SAYS,)),
    ("the states of an operator are time-major", "Infer(y, self._swapped(hy), self._swapped(cy))", "Infer(y, hy, cy)",
     (SAYS,)),
    ("what a model computes is zeros", "given[name] is None and name in self.computed", "False",
     (f"{ARRAYS}what_the_model_computes_must_be_given",)),
    ("sizes are named as with layout 0", "            dims[:2] = dims[1], dims[0]\n", "            pass\n", (RUNS,)),
    ("every GRU of ONNX resets after the product", 'op_type != "GRU" or bool(linear_before_reset)', "True", (SAYS,)),
    ("shapes of an operator's arrays are believed",
     '        check_shape("from_onnx", name, array, *expected[name])\n', "        pass\n", (REFUSED,)),
    ("the gates of an operator are ours", "reordered(part, operator.gates, gate_order(desc))", "part", (SAYS, THERE)),
    ("both directions run in reverse", "if reverse and desc.bidirectional:", "if False:",
     (f"{ARRAYS}what_onnx_lacks_is_refused_with_the_reason",)),
    ("the skip input is written as the last W", 'if desc.input_mode == "skip":', "if False:",
     (f"{ARRAYS}what_onnx_writes_otherwise_gives_the_same_results",)),
    ("layers that do not fit are stacked", "        _check_layer(f", "        False and _check_layer(f", (LAYERS,)),
    ("initial states are lost in a stack", "and getattr(node, state).any()", "and False", (LAYERS,)),
)
_MODELS = faults_in(
    "rnnkit/interop/onnx_files.py",
    ("a model that ends early is taken for one", "if not self._model.opset_import:", "if False:",
     (f"{MODELS}a_file_that_is_cut_off_anywhere",)),
    ("two nodes of one name are one", "if not node.name or node.name in found else", "if not node.name else", (NAMES,)),
    ("operators of another domain are ONNX's", ' and node.domain in ("", "ai.onnx")', "", (NAMES,)),
    ("unknown inputs are ignored", "if len(node.input) > len(known):", "if False:", (UNFIT,)),
    ("data outside of the model's folder are read", "commonpath([path, self._folder]) != self._folder",
     'commonpath([path, "/"]) != "/"', (DATA,)),
    ("links out of the model's folder are followed", "path = os.path.realpath(os.path.join",
     "path = os.path.normpath(os.path.join", (DATA,)),
    ("the sizes of data are believed", "if start < 0 or length < 0 or start + length > size:", "if False:", (DATA,)),
    ("data are read from their file's begin", "            file.seek(start)\n", "",
     (f"{MODELS}data_outside_of_the_file_are_read",)),
    ("nodes in bodies are not seen", "for body in (attribute.g, *attribute.graphs):", "for body in ():",
     (f"{MODELS}nodes_in_the_bodies_of_others_see_the_constants_around",)),
    ("constants are initializers alone", 'if node.op_type == "Constant" and', "if False and", (CONSTANTS,)),
    ("a model is written in place", 'with archive.replacing("save_onnx", path) as', 'with open(path, "wb") as',
     (f"{MODELS}a_failure_leaves_what_was_there",)),
) + faults_in(
    "rnnkit/interop/onnx_model.py",
    ("a model forgets the states of empty sequences", '"Where", ["empty_rows", f"initial_{initial}", f"last_{last}"],',
     '"Identity", [f"last_{last}"],', (RESULTS,)),
    ("a model's states are for one sequence", '"Expand", [name, "state_shape"],', '"Identity", [name],', (RESULTS,)),
    ("a model's directions are mixed", "perm=[0, 2, 1, 3]", "perm=[0, 1, 2, 3]", (RESULTS,)),
)
_TENSORS = faults_in(
    "rnnkit/interop/safetensors.py",
    ("tensors of every dtype are read", "if dtype not in DTYPES:", "if False:",
     (f"{TENSORS}other_dtypes_are_refused_by_name",)),
    ("every tensor of a file is read", "_tensor(file, name) if _stands_at(before, name) else None",
     "_tensor(file, name)", (f"{TENSORS}what_does_not_stand_at_the_prefix_is_not_read",)),
    ("the descriptor of a file is not looked at", "if text is None else", "if True else", (KEEPS,)),
    ("options of a file with a descriptor are ignored", "    if options:\n", "    if False:\n",
     (f"{TENSORS}a_file_of_ours_takes_no_options_and_names_its_tensors",)),
    ("a damaged file of safetensors is no ValueError", "except library.SafetensorError as", "except KeyError as",
     (HOSTILE,)),
    ("tensors are written in place", 'with archive.replacing("save_safetensors", path) as',
     'with open(path, "wb") as', (f"{TENSORS}a_failure_leaves_what_was_there",)),
)

MUTANTS = _OPERATORS + _MODELS + _TENSORS
