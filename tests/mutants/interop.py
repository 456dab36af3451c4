"""Faults in the converters of other frameworks' weights."""

from mutants.mutant import faults_in

FLUX, JAX = "tests/test_interop_flux.py::test_", "tests/test_interop_jax.py::test_"
KERAS, MXNET = "tests/test_interop_keras.py::test_", "tests/test_interop_mxnet.py::test_"
SHARED, TORCH = "tests/test_interop_networks.py::test_", "tests/test_interop_torch.py::test_"
MODULES, LAYERS = f"{TORCH}a_module_becomes_its_network", f"{KERAS}layers_become_their_network"
TO_LAYERS, CELLS = f"{KERAS}a_network_is_written_into_layers", f"{FLUX}cells_become_their_network"
BY_FLAX, ROUND = f"{JAX}flax_computes_the_same", f"{JAX}a_round_trip_keeps_every_bit"
NOT_KERAS, FROM_TORCH = f"{KERAS}what_computes_something_else_is_refused", f"{TORCH}from_torch_refuses"
TO_TORCH = f"{TORCH}to_torch_refuses_and_writes_nothing"


_TORCH = faults_in(
    "rnnkit/interop/torch.py",
    ("the projection of PyTorch is not told from the weights", "if projection is None else projection.shape[1]", "",
     (MODULES,)),
    ("a PyTorch module does not tell its nonlinearity", 'getattr(module, "nonlinearity", None), module', "None, module",
     (MODULES,)),
    ("a PyTorch module does not tell its dropout", ", module.dropout", ", 0.0",
     (f"{TORCH}a_module_tells_its_dropout_and_a_state_dict_is_told",)),
    ("to_torch gives views", "blocks[name].copy() if", "blocks[name] if", (f"{TORCH}the_weights_are_copies",)),
    ("to_torch makes ones of a bias that is not there", "else np.zeros(", "else np.ones(",
     (f"{TORCH}a_bias_that_is_not_there_is_zeros",)),
    ("from_torch ignores names that it does not know", "    if unknown:", "    if False:", (FROM_TORCH,)),
    ("from_torch checks the shapes of the first layer alone", "layout = weight_layout(desc)",
     "layout = weight_layout(desc)[:2]", (FROM_TORCH,)),
    ("to_torch converts to the dtype of the module", "if found != desc.dtype", "if False", (TO_TORCH,)),
    ("to_torch writes into a module of another nonlinearity", "if chosen is not None and", "if False and", (TO_TORCH,)),
    ("to_torch lets load_state_dict find what does not fit",
     '    _check_entries("to_torch", "module", prefix, desc, own)\n', "", (TO_TORCH,)),
    ("to_torch gives the weights of another GRU", "reset_after=(True,)", "reset_after=(True, False)", (TO_TORCH,)),
)
_KERAS = faults_in(
    "rnnkit/interop/keras.py",
    ("the gates of a Keras GRU are ours", '"z r n"', '"r z n"', (LAYERS,)),
    ("the gates of a Keras LSTM are ONNX's", '"LSTM": "i f g o"', '"LSTM": "i o f g"', (LAYERS,)),
    ("the two biases of a Keras GRU are exchanged", 'zip(("bias_ih", "bias_hh"),', 'zip(("bias_hh", "bias_ih"),',
     (LAYERS,)),
    ("to_keras exchanges the two biases", "np.stack(both_biases(cell))", "np.stack(both_biases(cell)[::-1])",
     (TO_LAYERS,)),
    ("to_keras forgets a bias", 'one_bias("to_keras", desc, cell, "Keras")', "both_biases(cell)[0]", (TO_LAYERS,)),
    ("a Keras layer may go backwards", '"go_backwards": (backwards,)', '"go_backwards": (False, True)', (NOT_KERAS,)),
    ("a Keras layer may drop inputs", '"dropout": (0,), "rec', '"rec', (NOT_KERAS,)),
    ("a Keras layer may drop states", ', "recurrent_dropout": (0,)', "", (NOT_KERAS,)),
    ("a Keras layer may have another activation", '{"activation": ("tanh",), ', "{", (NOT_KERAS,)),
    ("a Keras layer may have another recurrent activation", '"recurrent_activation": ("sigmoid",), ', "", (NOT_KERAS,)),
    ("directions of Keras may be merged otherwise", '["merge_mode"], ("concat",)',
     '["merge_mode"], ("concat", "sum", None)', (NOT_KERAS,)),
    ("Keras layers may differ", "kind, first[1], strict", "kind, kind, strict", (f"{KERAS}from_keras_refuses",)),
    ("a subclass is taken for the Keras layer", "cls = type(layer).__name__", "cls = type(layer).__base__.__name__",
     (f"{KERAS}a_subclass_is_refused",)),
    ("to_keras lets set_weights find what does not fit", "if own != wanted_own or", "if False and",
     (f"{KERAS}nothing_is_written_if_the_second_layer_is_refused",)),
    ("to_keras takes layers of another kind", "kind, wanted, strict", "kind, kind, strict",
     (f"{KERAS}to_keras_refuses",)),
)
_OTHERS = (
    *faults_in(
        "rnnkit/interop/mxnet.py",
        ("p of MXNet is forgotten", "dropout=p,", "", (f"{MXNET}p_is_the_dropout",)),
        ("a bound of MXNet may stand alone", "if bounds.count(None) == 1", "if False", (f"{MXNET}from_mxnet_refuses",)),
        ("to_mxnet leaves out a bias that is not there", 'replace(net.desc, bias="both")', "net.desc",
         (f"{MXNET}a_bias_that_is_not_there_is_zeros",)),
        ("to_mxnet gives the weights of another GRU", "reset_after=(True,)", "reset_after=(True, False)",
         (f"{MXNET}to_mxnet_refuses",)),
        ("a vector of MXNet may be too long", '    check_shape("from_mxnet", "vector", array, (num_weights(desc),)',
         '    check_shape("from_mxnet", "vector", array, (None,)', (f"{MXNET}from_mxnet_refuses",)),
    ),
    *faults_in(
        "rnnkit/interop/flux.py",
        ("the gates of Flux's GRU are Keras's", '"GRU": "r z n"', '"GRU": "z r n"', (CELLS,)),
        ("the gates of Flux's LSTM are ONNX's", '"LSTM": "i f g o"', '"LSTM": "i o f g"', (CELLS,)),
        ("the bias of Flux's GRU has the name of the others'", '"GRU": "b"', '"GRU": "bias"', (CELLS,)),
        ("a GRUv3Cell passes for a GRUCell", 'str(field).startswith("Wh_")', "False", (f"{FLUX}from_flux_refuses",)),
        ("a bias of Flux that is False is an array", 'if isinstance(found.get("bias"), (bool, np.bool_))', "if False",
         (f"{FLUX}one_cell_is_a_stack_of_one_and_the_bias_has_either_name_or_none",)),
        ("to_flux gives one of two directions", "bidirectional=(False,), ", "", (f"{FLUX}to_flux_refuses",)),
    ),
    *faults_in(
        "rnnkit/interop/jax.py",
        ("the gates of linen's LSTM are exchanged", '"i f g o") for leaf', '"f i g o") for leaf', (BY_FLAX,)),
        ("the gates of nnx's LSTM are exchanged", '_Layout("i f g o", _DENSE', '_Layout("f i g o", _DENSE', (BY_FLAX,)),
        ("the gates of nnx's GRU are Keras's", '_Layout("r z n", _DENSE', '_Layout("z r n", _DENSE', (ROUND,)),
        ("directions of Flax are exchanged", '"forward_rnn", "backward_rnn"  #', '"backward_rnn", "forward_rnn"  #',
         (BY_FLAX,)),
        ("biases that linen's GRU lacks are dropped", "added(first, np.where(kept, 0, second))", "first",
         (f"{JAX}other_biases_are_added_to_those_that_flax_has",)),
        ("a kernel of Flax of another size passes", "if rows == columns * len(entries)", "if True",
         (f"{JAX}from_jax_refuses",)),
    ),
    *faults_in(
        "rnnkit/interop/stacks.py",
        ("layers may have other directions", "if len(layer) != len(first)", "if False", (f"{JAX}from_jax_refuses",)),
        ("a bias inside of the reset is added outside", "if gate.apart and own.any()", "if False",
         (f"{SHARED}the_bias_inside_of_a_reset_is_not_added",)),
        ("the sum of biases loses a negative 0",
         "np.where(second == 0, first, np.where(first == 0, second, first + second))", "first + second",
         (f"{SHARED}sums_keep_the_bits_of_what_is_added_to_zero",)),
        ("the shapes of a stack are not checked",
         "        check_shape(function, cell.entry(name), arrays[name], shape, dims)", "        del shape",
         (f"{FLUX}from_flux_refuses",)),
        ("names of a stack's arrays are not checked",
         "check_names(function, cell.name, expected, form.entries, cell.entries)", "del expected",
         (f"{FLUX}from_flux_refuses",)),
    ),
    *faults_in(
        "rnnkit/interop/networks.py",
        ("a foreign byte order is kept", '.astype(array.dtype.newbyteorder("="), copy=False)', "",
         (f"{SHARED}a_foreign_byte_order_is_brought_to_ours",)),
        ("arrays may have two dtypes", "if arrays[name].dtype != arrays[first].dtype", "if False",
         (f"{SHARED}dtypes_must_not_differ",)),
        ("arrays may be of half precision", "if dtype_name(dtype) not in HOST_DTYPES", "if False",
         (f"{SHARED}what_is_no_real_array_is_refused",)),
        ("weights on a GPU are not fetched", "on_host(net.weights)", "net.weights",
         (f"{SHARED}a_network_on_a_gpu_is_taken_to_the_host",)),
        ("options are ignored where something else tells them", "        if value is not None:", "        if False:",
         (FROM_TORCH, f"{KERAS}from_keras_refuses")),
        ("any option is allowed", "        if found not in values:", "        if False:",
         (f"{SHARED}a_network_is_asked_for_and_only_its_options_that_are_allowed",)),
    ),
)
MUTANTS = (*_TORCH, *_KERAS, *_OTHERS)
