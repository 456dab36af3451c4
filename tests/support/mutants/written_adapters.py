"""Faults of adapters, training and commands that `generate` does not make, by file (see `written`)."""

FAULTS = {
    "rnnkit/distributed/collectives.py": [
        ("weights may differ in dtype", " elements of {w.dtype}", ""),
    ],
    "rnnkit/distributed/launch.py": [
        ("the outer launcher counts", "    for launcher in LAUNCHERS:", "    for launcher in LAUNCHERS[::-1]:"),
    ],
    "rnnkit/distributed/ranks.py": [
        ("every failure has one status", "status = _exit_status(error)", "status = 1"),
    ],
    "rnnkit/interop/flux.py": [
        ("the bias of Flux's GRU has the name of the others'", '"GRU": "b"', '"GRU": "bias"'),
    ],
    "rnnkit/interop/jax.py": [
        ("the gates of linen's LSTM are exchanged", '"i f g o") for leaf', '"f i g o") for leaf'),
        ("the gates of nnx's GRU are Keras's", '_Layout("r z n", _DENSE', '_Layout("z r n", _DENSE'),
    ],
    "rnnkit/interop/keras.py": [
        ("the gates of a Keras GRU are ours", '"z r n"', '"r z n"'),
        ("to_keras exchanges the two biases", "np.stack(both_biases(cell))", "np.stack(both_biases(cell)[::-1])"),
        ("a Keras layer may have another recurrent activation", '"recurrent_activation": ("sigmoid",), ', ""),
        ("a subclass is taken for the Keras layer",
         "cls = type(layer).__name__", "cls = type(layer).__base__.__name__"),
    ],
    "rnnkit/interop/networks.py": [
        ("weights on a GPU are not fetched", "on_host(net.weights)", "net.weights"),
    ],
    "rnnkit/interop/onnx_files.py": [
        ("links out of the model's folder are followed",
         "path = os.path.realpath(os.path.join", "path = os.path.normpath(os.path.join"),
    ],
    "rnnkit/interop/onnx_operators.py": [
        ("the peepholes of ONNX are in the order of ours",
         "peephole_i peephole_o peephole_f", "peephole_i peephole_f peephole_o"),
    ],
    "rnnkit/interop/safetensors.py": [
        ("a damaged file of safetensors is no ValueError", "except library.SafetensorError as", "except KeyError as"),
    ],
    "rnnkit/interop/torch.py": [
        ("a PyTorch module does not tell its dropout", ', getattr(module, "dropout", None)', ", 0.0"),
        ("from_torch checks the shapes of the first layer alone",
         "layout = weight_layout(desc)", "layout = weight_layout(desc)[:2]"),
    ],
    "rnnkit/language_model/job.py": [
        ("a refusal of one rank leaves the others waiting",
         "    refusals = comm.allgather(refusal)\n", "    refusals = [refusal]\n"),
    ],
    "rnnkit/plot/curves.py": [
        ("time is drawn in seconds", '("seconds", 60,', '("seconds", 1,'),
    ],
    "rnnkit/language_model/coding.py": [
        ("the model never learns", "self._updates, self._is_packed = self._updates + 1, False", "return"),
        ("a row begins after a NUL byte", "full((1, rows), INITIAL_BYTE", "full((1, rows), 0"),
    ],
    "rnnkit/language_model/compressor.py": [
        ("a payload may be too short", "block.size <= MAX_EXPANSION", "0 <= MAX_EXPANSION"),
    ],
    "rnnkit/language_model/container.py": [
        ("a payload is not looked at", "if zlib.crc32(payload) == crc:", "if True:"),
    ],
    "rnnkit/language_model/scoring.py": [
        ("rows that learn begin at a NUL byte", "np.broadcast_to(read[-1], (1,", "np.broadcast_to(read[-1] * 0, (1,"),
    ],
    "rnnkit/language_model/training.py": [
        ("a run that goes on reads its text from the start",
         "self.step, self.seconds, self.first_seconds = step,",
         "self.step, self.seconds, self.first_seconds = 0 * step,"),
        ("an epoch is a step less", "round(amount * corpus", "int(amount * corpus"),
    ],
    "rnnkit/sklearn/base.py": [
        ("a sample without weight is trained on", "= np.flatnonzero(weights)", "= np.arange(len(weights))"),
        ("weights do not reach the loss", ".mean(axis=1) * factors)", ".mean(axis=1))"),
        ("features are standardized with the validation part", "steps = sequences.valid()", "steps = sequences.steps"),
    ],
    "rnnkit/sklearn/classifier.py": [
        ("balanced weights are another class's",
         "y=self.classes_[targets])[targets]", "y=self.classes_[targets])[targets - 1]"),
        ("classes are not sorted", "given = np.unique(classes)", "given = np.asarray(classes)"),
    ],
    "rnnkit/sklearn/fitting.py": [
        ("the validation part is not drawn",
         "    order = rng.permutation(len(classes))\n", "    order = np.arange(len(classes))\n"),
        ("the mean loss is that of batches", "total += len(numbers) * model", "total += model"),
    ],
    "rnnkit/sklearn/model.py": [
        ("scores are those of the first block",
         "            scores[numbers] =", "            scores[: len(numbers)] ="),
    ],
    "rnnkit/sklearn/sequences.py": [
        ("a part has the first sequences' starts", "self.starts[numbers], self", "self.starts[: len(numbers)], self"),
        ("complex numbers pass", 'not in "biuf"', 'not in "biufc"'),
    ],
    "rnnkit/torch/function.py": [
        ("a gradient of batch_first is not turned back", "dx = layout.to_tensor_layout(dx) if", "dx = dx if"),
        ("autograd does not watch the weights", "kept, *(aliases[number] for number in ctx.numbers))", "kept)"),
        ("autograd does not watch the input",
         "input_to_save(call.desc, tensors), kept", "x.detach().clone(), kept"),
        ("lengths are for training", "hx, cx), **call.options, inputs=inputs)", "hx, cx), inputs=inputs)"),
        ("weights in shared memory are read where they were", "one in found] == self.addresses", "one in found]"),
    ],
    "rnnkit/torch/fallback.py": [
        ("second derivatives are at other data of a parameter",
         "list(addresses) if addresses", "list(addresses) if []"),
        ("autocast reaches the operations of second derivatives",
         "with torch.enable_grad(), without_autocast(values[0].device)", "with torch.enable_grad()"),
    ],
    "rnnkit/torch/arrays.py": [
        ("a lazily negated input is taken as it lies", "detach().resolve_neg().numpy()", "detach().numpy()"),
        ("an input is read without its strides",
         "resolve_neg().numpy()\n", 'resolve_neg().numpy().ravel("K").reshape(tensor.shape)\n'),
    ],
    "rnnkit/torch/plain.py": [
        ("backward reads other data of a parameter", "[one.detach() for one in parameters]", "list(parameters)"),
    ],
    "rnnkit/torch/calls.py": [
        ("hx of a packed sequence is in the order of the lengths", "lengths[order] =", "lengths[:] ="),
        ("gradients of initial states alone are forgotten",
         "one.requires_grad for one in tensors", "one.requires_grad for one in tensors[3:]"),
    ],
    "rnnkit/torch/modules.py": [
        ("parameters of one memory are parted",
         "len({one.data_ptr() for one in parameters})", "len(set(map(id, parameters)))"),
        ("parameters of one storage stay in it", "one.untyped_storage().nbytes() == one.nbytes", "True"),
    ],
    "rnnkit/training/losses.py": [
        ("a place in the scores is a uint8", ".astype(np.int64)  # an index", "  # an index"),
    ],
    "rnnkit/training/optimizers.py": [
        ("every array decays as the first",
         "strict=True):\n            arguments.check_like",
         "strict=True):\n            decay = self._decays[0]\n            arguments.check_like"),
        ("moments are taken by reference", "np.array(on_host(moment))", "on_host(moment)"),
        ("moments are taken before the steps are checked",
         '        if state["steps"] < 0:\n', '        super()._take(state)\n        if state["steps"] < 0:\n'),
    ],
    "rnnkit/training/padding.py": [
        ("sequences are not shuffled", "order = rng.permutation(len(lengths))", "order = np.arange(len(lengths))"),
    ],
}  # fmt: skip
