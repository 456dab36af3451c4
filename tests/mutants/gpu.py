"""Faults of the GPU engine, noticed on the stand-ins."""

from mutants.mutant import Mutant

BINDING, CONTEXT, ENGINE = "rnnkit/cuda/cudnn.py", "rnnkit/cuda/context.py", "rnnkit/cuda/engine.py"
SMALL = ("tests/test_gpu_algorithm.py::test_of_a_small_network",)
HOW_SMALL = ("tests/test_gpu_algorithm.py::test_how_large_a_small_network_may_be",)
REGISTERS = ("tests/test_gpu_algorithm.py::test_of_a_network_with_its_weights_in_registers",)
DEVICE = ("tests/test_gpu_algorithm.py::test_of_a_device",)
STEP = ("tests/test_gpu_algorithm.py::test_a_training_step_takes_one",)
EVERY_CELL = ("tests/test_gpu.py::test_every_cell",)
DENSE = ("tests/test_gpu.py::test_arrays_that_are_not_dense_or_aligned",)
NOT_GIVEN = ("tests/test_gpu.py::test_states_and_gradients_that_are_not_given",)
BOUNDS = ("tests/test_gpu.py::test_the_bounds_of_a_clip_are_float32",)
ON_A_BOUND = ("tests/test_gpu.py::test_a_cell_on_the_bound_of_its_clip",)
BEYOND = ("tests/test_gpu.py::test_initial_cells_beyond_the_clip",)
AGAIN = ("tests/test_gpu.py::test_backward_any_number_of_times",)
VIEWS = ("tests/test_gpu.py::test_what_views_the_memory_of_a_workspace",)
SEED = ("tests/test_gpu_standin.py::test_dropout_by_the_seed",)
AT_ONCE = ("tests/test_gpu_standin.py::test_two_backward_calls_at_once",)
REFUSED = ("tests/test_gpu_standin.py::test_an_algorithm_that_the_device_refuses",)
LAYOUT = ("tests/test_gpu_standin.py::test_another_layout_of_the_weights_is_noticed",)
EACH_DEVICE = ("tests/test_gpu_algorithm.py::test_of_each_of_two_devices",)
DEVICES = ("tests/test_gpu_standin.py::test_arrays_on_two_devices",)
BROKEN = ("tests/test_gpu_loading.py::test_a_broken_library_is_not_passed_over",)

ALGORITHM = (
    Mutant(
        "all arithmetic is coarse", CONTEXT, 'coarse = desc.dtype == "float16" or desc.allow_tf32', "coarse = True",
        SMALL
    ),
    Mutant("float16 is not coarse", CONTEXT, 'coarse = desc.dtype == "float16" or ', "coarse = ", SMALL),
    Mutant("TF32 is not coarse", CONTEXT, '"float16" or desc.allow_tf32', '"float16"', SMALL),
    Mutant("any bias is plain", CONTEXT, 'plain = desc.bias == "both" and ', "plain = ", SMALL),
    Mutant("skip input is plain", CONTEXT, 'desc.input_mode == "linear" and ', "", SMALL),
    Mutant("a projection is plain", CONTEXT, "not desc.projected and ", "", SMALL),
    Mutant("a clip is plain", CONTEXT, " and desc.cell_clip is None", "", SMALL),
    Mutant("packed sequences are plain", CONTEXT, " or shape.layout == cudnn.SEQ_MAJOR_PACKED", "", SMALL),
    Mutant(
        "training has inference's limits", CONTEXT, "_SMALL_TRAINING if mode == cudnn.TRAINING else ", "", HOW_SMALL
    ),
    Mutant(
        "inference has training's limits", CONTEXT, " if mode == cudnn.TRAINING else _SMALL_INFERENCE", "", HOW_SMALL
    ),
    Mutant("a small network ends earlier", CONTEXT, "desc.hidden_size <= limit", "desc.hidden_size < limit", HOW_SMALL),
    Mutant("a small network of any size", CONTEXT, "desc.hidden_size <= limit and ", "", HOW_SMALL),
    Mutant("inference's limit of several gates", CONTEXT, "(192, 384)", "(193, 384)", HOW_SMALL),
    Mutant("inference's limit of several gates, below", CONTEXT, "(192, 384)", "(191, 384)", HOW_SMALL),
    Mutant("training's limit of several gates", CONTEXT, "(128, 256)", "(127, 256)", HOW_SMALL),
    Mutant("training's limit of several gates, beyond", CONTEXT, "(128, 256)", "(129, 256)", HOW_SMALL),
    Mutant("training's limit of one gate", CONTEXT, "(128, 256)", "(128, 257)", HOW_SMALL),
    Mutant("training's limit of one gate, below", CONTEXT, "(128, 256)", "(128, 255)", HOW_SMALL),
    Mutant("inference's limit of one gate", CONTEXT, "(192, 384)", "(192, 383)", HOW_SMALL),
    Mutant("inference's limit of one gate, beyond", CONTEXT, "(192, 384)", "(192, 385)", HOW_SMALL),
    Mutant("small networks of any length", CONTEXT, " and shape.seq_len <= _SMALL_STEPS", "", SMALL),
    Mutant("small networks are one step shorter", CONTEXT, "_SMALL_STEPS = 65535", "_SMALL_STEPS = 65534", SMALL),
    Mutant("small networks on any device", CONTEXT, "self._capability >= 60 and ", "", DEVICE),
    Mutant("small networks not on Pascal", CONTEXT, "self._capability >= 60", "self._capability > 60", DEVICE),
    Mutant(
        "no weights in registers", CONTEXT, "cudnn.PERSIST_STATIC if self._persists",
        "cudnn.STANDARD if self._persists", REGISTERS
    ),
    Mutant("any hidden size", CONTEXT, "desc.hidden_size % 128 == 0 and ", "", REGISTERS),
    Mutant(
        "multiples of 64 for the hidden size", CONTEXT, "desc.hidden_size % 128", "desc.hidden_size % 64", REGISTERS
    ),
    Mutant("any input size", CONTEXT, "desc.input_size % 128 == 0 and ", "", REGISTERS),
    Mutant("multiples of 64 for the input size", CONTEXT, "desc.input_size % 128", "desc.input_size % 64", REGISTERS),
    Mutant("multiples of 256 for the input size", CONTEXT, "desc.input_size % 128", "desc.input_size % 256", REGISTERS),
    Mutant("no largest hidden size", CONTEXT, " and desc.hidden_size <= 1024", "", REGISTERS),
    Mutant("1024 is too large", CONTEXT, "desc.hidden_size <= 1024", "desc.hidden_size < 1024", REGISTERS),
    Mutant("TF32 in registers", CONTEXT, 'desc.dtype != "float16" or desc.num', "desc.num", REGISTERS),
    Mutant("any number of layers", CONTEXT, "desc.num_pseudo_layers > 1 or ", "", REGISTERS),
    Mutant("both directions", CONTEXT, "desc.num_pseudo_layers > 1", "desc.num_layers > 1", REGISTERS),
    Mutant("two layers", CONTEXT, "desc.num_pseudo_layers > 1", "desc.num_directions > 1", REGISTERS),
    Mutant("gru in registers", CONTEXT, ' or _name(desc) == "GRU"', "", REGISTERS),
    Mutant("registers before Ampere", CONTEXT, "self._capability < 80 or ", "", DEVICE),
    Mutant("registers not on the first Ampere", CONTEXT, "self._capability < 80", "self._capability <= 80", DEVICE),
    Mutant("registers on small Ampere", CONTEXT, "self._capability % 10 == 6 or ", "", DEVICE),
    Mutant("registers on few processors", CONTEXT, " or self._processors < 98", "", DEVICE),
    Mutant("98 processors are few", CONTEXT, "self._processors < 98", "self._processors <= 98", DEVICE),
    Mutant("any batch", CONTEXT, "batch % 8 == 0 and ", "", REGISTERS),
    Mutant("batches by four", CONTEXT, "batch % 8 == 0", "batch % 4 == 0", REGISTERS),
    Mutant("no largest batch", CONTEXT, " and batch <= 128", "", REGISTERS),
    Mutant("a batch of 128 is too large", CONTEXT, "batch <= 128", "batch < 128", REGISTERS),
    Mutant("everything fits", CONTEXT, " and batch <= 128 and fits", " and batch <= 128", REGISTERS),
    Mutant("lstm need not fit", CONTEXT, 'fits = _name(desc) == "LSTM" or ', "fits = ", REGISTERS),
    Mutant("a batch of 96 fits", CONTEXT, "batch < 96", "batch <= 96", REGISTERS),
    Mutant("no batch fits", CONTEXT, "batch < 96 or ", "", REGISTERS),
    Mutant("896 units fit", CONTEXT, "desc.hidden_size < 896", "desc.hidden_size <= 896", REGISTERS),
    Mutant("no units fit", CONTEXT, " or desc.hidden_size < 896", "", REGISTERS),
    Mutant("a refusal is forgotten", CONTEXT, "        self._refused.add(key)\n", "", REFUSED),
    Mutant("a refusal is of all shapes", CONTEXT, "key = (desc, mode, shape)", "key = (desc, mode)", REFUSED),
    Mutant(
        "a repeated forward takes inference's", ENGINE, "return _run(desc, w, cudnn.TRAINING",
        "return _run(desc, w, cudnn.INFERENCE", STEP
    ),
)

MEMORY_AND_ORDER = (
    Mutant("the seed is cut", ENGINE, "return workspace.seed if", "return workspace.seed & 0xFFFFFFFF if", SEED),
    Mutant("the seed is cut at the call", BINDING, "c_float, _P, _Z, c_ulonglong]", "c_float, _P, _Z, c_uint]", SEED),
    Mutant(
        "a repeated forward has no seed", ENGINE, "    seed, inputs = _seed(desc, workspace), (",
        "    seed, inputs = None, (", AGAIN
    ),
    Mutant("nothing is dropped", CONTEXT, "desc.num_layers, dropout, cudnn", "desc.num_layers, None, cudnn", SEED),
    Mutant(
        "bounds are not float32", ENGINE, "low, high = map(np.float32, desc.cell_clip)", "low, high = desc.cell_clip",
        BOUNDS
    ),
    Mutant("cuDNN is told of no clip", CONTEXT, "if desc.cell_clip is not None:", "if False:", EVERY_CELL),
    Mutant("the lower bound is inside", ENGINE, "(raw <= low)", "(raw < low)", ON_A_BOUND),
    Mutant("the upper bound is inside", ENGINE, "(raw >= high)", "(raw > high)", ON_A_BOUND),
    Mutant("inference does not clip", ENGINE, "            _clip(desc, outputs[2])\n", "", BOUNDS),
    Mutant("the gradient passes the clip", ENGINE, "            dcy[record.outside] = 0\n", "", BEYOND),
    Mutant(
        "dcy is changed", ENGINE, "dcy = dcy.copy()  # it may be the caller's", "pass",
        ("tests/test_gpu.py::test_a_clip_in_half_precision",)
    ),
    Mutant("no lock", ENGINE, "    with record.lock:\n", "    if True:\n", AT_ONCE),
    Mutant(
        "the reserve space is never spent", ENGINE, "spent, record.spent = record.spent, True", "spent = record.spent",
        AGAIN
    ),
    Mutant(
        "the workspace holds nothing", "rnnkit/memory.py", "return any(overlap(array, one)",
        "return False and any(overlap(array, one)", VIEWS
    ),
    Mutant(
        "all memory must overlap", "rnnkit/memory.py", "return any(overlap(array, one)",
        "return all(overlap(array, one)", VIEWS
    ),
    Mutant(
        "neighbours overlap", "rnnkit/arrays.py", "start < other_stop and other_start < stop",
        "start <= other_stop", VIEWS
    ),
    Mutant("an empty view overlaps", "rnnkit/arrays.py", "if not (one.size and other.size):", "if False:", VIEWS),
    Mutant(
        "initial states are not kept", ENGINE, "    kept[...] = states\n    return kept", "    return states",
        ("tests/test_gpu.py::test_states_may_change_after_forward",)
    ),
)

ARGUMENTS = (
    Mutant(
        "forward: hx and cx", ENGINE, "_pointer(hx), _pointer(hy), setup.cell, _pointer(cx)",
        "_pointer(cx), _pointer(hy), setup.cell, _pointer(hx)", EVERY_CELL
    ),
    Mutant(
        "forward: hy and cy", ENGINE, "_pointer(hy), setup.cell, _pointer(cx), _pointer(cy)",
        "_pointer(cy), setup.cell, _pointer(cx), _pointer(hy)", EVERY_CELL
    ),
    Mutant(
        "forward: hx and hy", ENGINE, "_pointer(hx), _pointer(hy), setup.cell",
        "_pointer(hy), _pointer(hx), setup.cell", EVERY_CELL
    ),
    Mutant(
        "forward: no cx", ENGINE, "_pointer(cx), _pointer(cy), w.nbytes", "None, _pointer(cy), w.nbytes", EVERY_CELL
    ),
    Mutant(
        "forward: cells by hidden states", ENGINE, "_pointer(hy), setup.cell, _pointer(cx)",
        "_pointer(hy), setup.hidden, _pointer(cx)", EVERY_CELL
    ),
    Mutant(
        "forward: the kinds of x and y", ENGINE, "setup.x, x.data.ptr, setup.y, y", "setup.y, x.data.ptr, setup.x, y",
        EVERY_CELL
    ),
    Mutant(
        "forward: x and y", ENGINE, "x.data.ptr, setup.y, y.data.ptr", "y.data.ptr, setup.y, x.data.ptr", EVERY_CELL
    ),
    Mutant("the reserve space is too small", ENGINE, "(setup.reserve_nbytes,)", "(setup.work_nbytes,)", EVERY_CELL),
    Mutant(
        "the states of dropout are freed", CONTEXT, "return Network(rnn, dropout, states)",
        "return Network(rnn, dropout, None)", SEED
    ),
    Mutant(
        "backward: no reserve space", ENGINE, "scratch = work.nbytes, work.data.ptr, reserve.nbytes, reserve.data.ptr",
        "scratch = reserve.nbytes, reserve.data.ptr, work.nbytes, work.data.ptr", EVERY_CELL
    ),
    Mutant(
        "backward: dx and x", ENGINE, "        dx.data.ptr, setup.hidden", "        record.x.data.ptr, setup.hidden",
        EVERY_CELL
    ),
    Mutant(
        "backward: y and dy", ENGINE, "record.y.data.ptr, dy.data.ptr, setup.x",
        "dy.data.ptr, record.y.data.ptr, setup.x", EVERY_CELL
    ),
    Mutant(
        "backward: dhy and hx", ENGINE, "_pointer(record.hx), _pointer(dhy)", "_pointer(dhy), _pointer(record.hx)",
        EVERY_CELL
    ),
    Mutant("backward: dhy and dhx", ENGINE, "_pointer(dhy), dhx.data.ptr", "dhx.data.ptr, _pointer(dhy)", EVERY_CELL),
    Mutant("backward: no dhy", ENGINE, "_pointer(dhy), dhx.data.ptr", "None, dhx.data.ptr", EVERY_CELL),
    Mutant("backward: dcy and dcx", ENGINE, "_pointer(dcy), _pointer(dcx)", "_pointer(dcx), _pointer(dcy)", EVERY_CELL),
    Mutant("backward: no dcy", ENGINE, "_pointer(dcy), _pointer(dcx)", "None, _pointer(dcx)", EVERY_CELL),
    Mutant("backward: no cx", ENGINE, "setup.cell, _pointer(record.cx),", "setup.cell, None,", EVERY_CELL),
    Mutant(
        "weights: x and y", ENGINE, "None, setup.x, record.x.data.ptr", "None, setup.x, record.y.data.ptr", EVERY_CELL
    ),
    Mutant(
        "weights: no hx", ENGINE, "setup.hidden, _pointer(record.hx), setup.y", "setup.hidden, None, setup.y",
        EVERY_CELL
    ),
    Mutant("one direction only", CONTEXT, "int(desc.bidirectional)", "int(False)", EVERY_CELL),
    Mutant("hidden states of cells' size", CONTEXT, "states(desc.output_size)", "states(desc.hidden_size)", EVERY_CELL),
    Mutant(
        "skip input is linear", CONTEXT, "cudnn.INPUT_MODES[desc.input_mode]", "0",
        ("tests/test_gpu.py::test_skip_input",)
    ),
    Mutant(
        "lengths are not sorted", ENGINE, "tuple(lengths.tolist())",
        "tuple(lengths.tolist()[::-1])", EVERY_CELL
    ),
    Mutant("padding keeps what it had", ENGINE, "        sequences[...] = 0\n", "", EVERY_CELL),
    Mutant(
        "states are not gathered", ENGINE, "array if self.order is None else array[:, self.order]", "array", EVERY_CELL
    ),
    Mutant(
        "states are not scattered", ENGINE,
        "            if array is not None:\n                array[:, self.order] = values", "            pass",
        EVERY_CELL
    ),
    Mutant(
        "dw is written and not added", ENGINE, "dw is None else dw\n", "True else dw\n",
        ("tests/test_gpu.py::test_the_gradient_of_weights_is_added",)
    ),
    Mutant("dw that is not aligned is lost", ENGINE, "            total[...] = sums\n", "            pass\n", DENSE),
    Mutant("nothing is aligned", ENGINE, "if array.data.ptr % _ALIGNMENT == 0 else", "if True else", DENSE),
    Mutant("a dy that is not given is garbage", ENGINE, "dense_dy = cupy.zeros(", "dense_dy = cupy.empty(", NOT_GIVEN),
    Mutant(
        "states that are not given are garbage", ENGINE, "cupy.zeros(shape, desc.np_dtype) if states is None",
        "cupy.empty(shape, desc.np_dtype) if states is None", NOT_GIVEN
    ),
    Mutant(
        "the layout of weights is not checked", CONTEXT, "            self._check_layout(desc, rnn)\n",
        "            pass\n", LAYOUT
    ),
    Mutant(
        "nor with dropout", CONTEXT, "            self._kept_network(desc, algorithm)  #", "            pass  #", LAYOUT
    ),
    Mutant("the last matrix may be anywhere", CONTEXT, "(matrix.value or 0) - start", "expected[1]", LAYOUT),
    Mutant(
        "math is coarse", CONTEXT, "else cudnn.FMA_MATH", "else cudnn.DEFAULT_MATH",
        ("tests/test_gpu_standin.py::test_the_kind_of_arithmetic",)
    ),
)

PLACES = (
    Mutant(
        "the stream stays", CONTEXT,
        "        self._handle.use(cupy.cuda.get_current_stream().ptr)\n        self.library.call(name",
        "        self.library.call(name", ("tests/test_gpu_standin.py::test_the_current_stream",)
    ),
    Mutant(
        "threads share a context", CONTEXT, "_of_this_thread = threading.local()", "_of_this_thread = threading",
        ("tests/test_gpu_standin.py::test_threads_have_their_own_handles",)
    ),
    Mutant(
        "devices share a context", CONTEXT, "    device = cupy.cuda.runtime.getDevice()", "    device = 0", EACH_DEVICE
    ),
    Mutant(
        "devices share handles", BINDING, "self._idle_handles.setdefault(device, [])",
        "self._idle_handles.setdefault(0, [])", ("tests/test_gpu_standin.py::test_handles_stay_on_their_device",)
    ),
    Mutant(
        "the kind of device 0", CONTEXT, "found = cupy.cuda.Device(device)", "found = cupy.cuda.Device(0)", EACH_DEVICE
    ),
    Mutant(
        "forward on the current device", ENGINE, "    with x.device:\n        # Of all",
        "    if True:\n        # Of all", DEVICES
    ),
    Mutant("backward on the current device", ENGINE, "    with workspace.x.device:", "    if True:", DEVICES),
    Mutant(
        "inference on the current device", ENGINE, "        with x.device:\n            batch =",
        "        if True:\n            batch =", DEVICES
    ),
    Mutant(
        "a broken library is passed over", BINDING, "raise _unusable(path, error) from None\n    cure",
        "continue\n    cure", BROKEN
    ),
    Mutant(
        "the library that is loaded is not shared", BINDING, "ctypes.CDLL(_SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)",
        'ctypes.CDLL("libcudnn-of-nobody.so.9")', ("tests/test_cudnn_library.py::test_it_is_loaded_once",)
    ),
    Mutant(
        "lengths come reversed", BINDING, "(c_int * count)(*lengths)", "(c_int * count)(*lengths[::-1])", EVERY_CELL
    ),
    Mutant(
        "CUDA's versions are not compared", CONTEXT, "if theirs // 1000 != ours // 1000:", "if False:",
        ("tests/test_gpu_standin.py::test_libraries_for_different_versions_of_cuda",)
    ),
    Mutant(
        "any version of cuDNN", BINDING, "if self.version // 10000 != 9:", "if False:",
        ("tests/test_gpu_loading.py::test_a_library_of_another_version",)
    ),
    Mutant(
        "a copy without networks", BINDING, '        self.call("cudnnAdvVersionCheck")', "        pass",
        ("tests/test_gpu_loading.py::test_a_library_without_the_functions_of_networks",)
    ),
    Mutant(
        "CUDNN_PATH is not looked at", BINDING, 'if "CUDNN_PATH" in os.environ:', "if False:",
        ("tests/test_gpu_loading.py::test_what_is_found_is_loaded",)
    ),
    Mutant(
        "CONDA_PREFIX is not looked at", BINDING, 'if "CONDA_PREFIX" in os.environ:', "if False:",
        ("tests/test_gpu_loading.py::test_what_is_found_is_loaded",)
    ),
)

MUTANTS = ALGORITHM + MEMORY_AND_ORDER + ARGUMENTS + PLACES
