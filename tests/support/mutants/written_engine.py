"""Faults of the engine that `generate` does not make, by file (see `written`)."""

FAULTS = {
    "kernels/rnnkit_kernels/cells/activations.py": [
        ("the slope of a leaky ReLU does not leak", "return self.alpha if y <= 0 else 1", "return 0 if y <= 0 else 1"),
        ("activations without numbers are equal", "register(cls, compare_by_class(kind))", "register(cls, kind)"),
    ],
    "kernels/rnnkit_kernels/cells/indrnn.py": [
        ("IndRNN has R", 'gates=[Gate("a", multiplies=None)]', 'gates="a"'),
        ("the vector of IndRNN is drawn as R is", 'Vector("u", 0, 1)', 'Vector("u")'),
    ],
    "kernels/rnnkit_kernels/dropout.py": [
        ("the last column of wide rows is never dropped",
         "factor = scale if keep[j] else zero",
         "factor = scale if keep[j] or columns > 64 and j == columns - 1 else zero"),
    ],
    "kernels/rnnkit_kernels/noise.py": [
        ("nine rounds", "_ROUNDS = 10", "_ROUNDS = 9"),
    ],
    "kernels/rnnkit_kernels/means.py": [
        ("a mean of the terms' sum", "builder.fdiv(builder.load(total)", "builder.fmul(builder.load(total)"),
        ("a mean of the first block", "mean_blocks_of(builder, units), intp=I64", "I64(1), intp=I64"),
    ],
    "kernels/rnnkit_kernels/loop.py": [
        ("threads share out parts of a mean's blocks",
         "(lambda cell, array: vectors_of_mean_block(array))", "(lambda cell, array: 1)"),
        ("a team works on the rows of the first",
         "number, _ = team_of_rows(bounds, team)", "number, _ = 0, team_of_rows(bounds, team)"),
    ],
    "kernels/rnnkit_kernels/machine/activations.py": [
        ("tanh is the quotient too near to 0", "NEAR = 0.26", "NEAR = 0.05"),
    ],
    "kernels/rnnkit_kernels/machine/shapes.py": [
        ("a far tile of few rows is left out",
         "far_rows(gates) // _FAR_TILES if shape == FAR", "far_rows(gates) // _FAR_TILES + 1 if shape == FAR"),
    ],
    "kernels/rnnkit_kernels/machine/tail.py": [
        ("a tail has one more unit", '"<", lanes, limit', '"<=", lanes, limit'),
    ],
    "kernels/rnnkit_kernels/machine/jit.py": [
        ("divisions are checked", '"error_model": "numpy"', '"error_model": "python"'),
    ],
    "kernels/rnnkit_kernels/machine/thread_pool.py": [
        ("a call takes the team before it tries",
         "    try:\n        pool = _enter(call)\n", "    pool = _enter(call)\n    try:\n"),
    ],
    "kernels/rnnkit_kernels/stages.py": [
        ("the stages of a cell are called for each unit", '{"forceinline": True}', '{"forceinline": False}'),
    ],
    "perf/__main__.py": [
        ("cells of the other suite are run", '"cells": cell_suite.CASES', '"cells": None'),
    ],
    "perf/cases.py": [
        ("gates without R are multiplied all the same",
         "products = desc.num_recurrent_gates", "products = desc.num_gates"),
    ],
    "perf/check.py": [
        ("a bound is ten times as wide", '"float32": 3e-5', '"float32": 3e-4'),
    ],
    "perf/compare.py": [
        ("a table shows microseconds", "* 1e3:", "* 1e6:"),
        ("the parent imports a competitor",
         "from math import exp, log\n", "from math import exp, log\n\nimport onnx\n"),
    ],
    "perf/peaks.py": [
        ("the slowest repetition counts", "starts.min(axis=1)).min()", "starts.min(axis=1)).max()"),
    ],
    "perf/plot.py": [
        ("shares stand in the rows of others",
         "places = [names.index(_case(row)) for row in own]", "places = list(range(len(own)))"),
    ],
    "perf/run.py": [
        ("the quickest repetition stands for all", "own = median(times[RNNKIT])", "own = min(times[RNNKIT])"),
    ],
    "perf/startup.py": [
        ("cold and warm are swapped", "cold cache {cold}, warm cache {warm}", "cold cache {warm}, warm cache {cold}"),
    ],
    "perf/subject.py": [
        ("one of several states is compared", "enumerate(cy)}", "enumerate(cy[:1])}"),
    ],
    "perf/timing.py": [
        ("a worker's process has one thread", "str(threads)", "str(1)"),
        ("the seconds of repetitions are those of calls", "append(per_call)", "append(total)"),
    ],
    "rnnkit/network/base.py": [
        ("what stands beside networks does not count", "own == others", "own.keys() == others.keys()"),
        ("a list beside a network cannot be moved", "extra = {name: as_array(value)", "extra = {name: value"),
    ],
    "rnnkit/network/extra_arrays.py": [
        ("a list beside a network has no bits", "on_host(as_array(value))", "on_host(value)"),
    ],
    "rnnkit/cell_check.py": [
        ("a gradient off by a thousandth passes", "_TOLERANCE = 1e-7", "_TOLERANCE = 1e-2"),
    ],
    "rnnkit/call/checks.py": [
        ("a number too many passes", "numbers[numbers.argmax()] <= last", "numbers[numbers.argmax()] <= last + 1"),
        ("one among others passes", "numbers[numbers.argmax()] <= last", "numbers[0] <= last"),
    ],
    "rnnkit/cpu/backward.py": [
        ("what is laid out keeps its own arena",
         "        self._dtype, self.groups, self._of_inputs, dy =",
         "        self._arena = arena\n        self._dtype, self.groups, self._of_inputs, dy ="),
    ],
    "rnnkit/cpu/checkpoints.py": [
        ("a layer's gradient is written over the one above", 'f"dlayer_{lowest.layer % 2}"', '"dlayer"'),
    ],
    "rnnkit/cpu/infer.py": [
        ("layers share what they put out", "_OUTPUTS = 3", "_OUTPUTS = 1"),
        ("a plan keeps what every layer puts out", "_OUTPUTS = 3", "_OUTPUTS = 99"),
    ],
    "rnnkit/cpu/scheduler.py": [
        ("backward sums up other chunks than segments are made of",
         "gradient_chunk(self._rows, self.itemsize)", "2 * gradient_chunk(self._rows, self.itemsize)"),
        ("rows of large weights are shared out, however many there are",
         "rows == _TILE_ROWS and", "rows >= _TILE_ROWS and"),
        ("no layer is beside a larger one", "_PIPELINED = 6, 8, 0.66", "_PIPELINED = 6, 8, 0.5"),
        ("every core shares a cache", "_NEAR_CORES, _FAR = 8, 4", "_NEAR_CORES, _FAR = 99, 4"),
        ("a thread more is worth any little", "_TOLERANCE = 1.05", "_TOLERANCE = 1.0"),
    ],
    "rnnkit/cpu/reduced.py": [
        ("the scales of a column are another one's",
         "target[gates] = values", "target[gates][...] = values[..., ::-1]"),
    ],
    "rnnkit/cpu/run.py": [
        ("the seed has 32 bits", "words(workspace.seed)", "words(workspace.seed % 2**32)"),
        ("every segment has the masks of the first", "first_step + part.rows", "part.rows"),
        ("a part of a batch has the masks of its beginning", "workspace.options.first_row", "0"),
        ("layers have the same masks", "layer * STREAMS + STREAMS - 1", "STREAMS - 1"),
        ("noises of a cell are the same", "stream = index * STREAMS + number", "stream = index * STREAMS"),
        ("inference runs the code of training", 'layer.code_cache.setdefault("drawn", {}) if runs[0].draws else', ""),
    ],
    "rnnkit/cpu/stack.py": [
        ("calls work in one place", "            return scratches.pop()", "            return scratches[-1]"),
    ],
    "rnnkit/cuda/context.py": [
        ("threads share a context", "_of_this_thread = threading.local()", "_of_this_thread = threading"),
        ("devices share a context", "    device = cupy.cuda.runtime.getDevice()", "    device = 0"),
    ],
    "rnnkit/cuda/cudnn.py": [
        ("lengths come reversed", "(c_int * count)(*lengths)", "(c_int * count)(*lengths[::-1])"),
    ],
    "rnnkit/cuda/cells.py": [
        ("rows of a part have the masks of its beginning",
         "workspace.options.first_row, address(network.marks.counts)\n    given = rows",
         "0, address(network.marks.counts)\n    given = rows"),
    ],
    "rnnkit/cuda/graphs.py": [
        ("graphs are kept for ever", "while len(known) > _KEPT:", "while False:"),
    ],
    "rnnkit/cuda/layer.py": [
        ("side inputs stand close together", "inputs.strides[1] // self.itemsize", "inputs.shape[2]"),
    ],
    "rnnkit/cuda/marks.py": [
        ("masked steps have the numbers of all", "mask.numbers - 1", "t + 0 * mask.numbers"),
        ("y of skipped steps does not count", "RUNS * mask.listed + COUNTS * within", "(RUNS + COUNTS) * mask.listed"),
        ("the reverse direction resets a step early", "marks[1, 1 : steps.seq_len + 1]", "marks[1, : steps.seq_len]"),
    ],
    "rnnkit/cuda/source.py": [
        ("a step that does not run keeps its gates", "clear = [f", "clear = [] and [f"),
        ("means have whole blocks", "number * {block} + i < units ?", "1 ?"),
    ],
    "rnnkit/cuda/modes.py": [
        ("the seed is cut", "return workspace.seed if", "return workspace.seed & 0xFFFFFFFF if"),
    ],
    "rnnkit/descriptor/fields.py": [
        ("True is one bias", 'return "both" if value else "none"', 'return "input" if value else "none"'),
    ],
    "rnnkit/network/engine.py": [
        ("dw may lie over what forward read", "dcy=dcy, **workspace.inputs)", "dcy=dcy)"),
    ],
    "kernels/rnnkit_kernels/dense.py": [
        ("all blocks of x are the first",
         "pack_sources(terms, some, scratch", "pack_sources(terms, Range(0, some.stop - some.start), scratch"),
    ],
    "kernels/rnnkit_kernels/losses.py": [
        ("the logarithm forgets the exponent", "fma(n, _LOG2,", "fma(0.0, _LOG2,"),
    ],
    "rnnkit/call/pool.py": [
        ("what is overwritten becomes idle", "if self.held.generation == self.generation:", "if True:"),
        ("a view does not keep the memory in use", "own.__array_interface__, own.lease = interface, lease",
         "own.__array_interface__, own.lease = interface, None"),
        ("what is used last goes first", "shelf.idle.popleft()[1]", "shelf.idle.pop()[1]"),
    ],
    "rnnkit/cpu/rows.py": [
        ("a longer batch is served", "seq_len == capacity or seq_len < capacity <= limit", "True"),
    ],
    "rnnkit/call/arena.py": [
        ("what is laid out goes with a copy", '{"_cache": {}, "_last_key": None, "rows": {}}', '{}'),
    ],
    "rnnkit/descriptor/modes.py": [
        ("a parameter keeps Python's type",
         "of = {bool: bool, int: real, float: real,", "of = {bool: bool, int: int, float: float,"),
        ("cells of one name share machine code",
          'type(f"{kind.__name__}_{key}"', 'type(f"{kind.__name__}_"'),
    ],
    "rnnkit/network/networks.py": [
        ("a GRU has cell states for type checkers", "class GRU(BaseNetwork[None]):", "class GRU(BaseNetwork[Any]):"),
        ("an RNN takes any nonlinearity", 'nonlinearity: Literal["tanh", "relu"]', "nonlinearity: str"),
    ],
    "rnnkit/descriptor/saved.py": [
        ("dates are written and cannot be read", '"biufcSU"', '"biufcSUM"'),
    ],
    "rnnkit/network/stream.py": [
        ("a mask is not looked up", "            found = np.flatnonzero(found)\n", ""),
        ("the state is no copy", "np.array(on_host(array))", "on_host(array)"),
        ("a stream has room for one state", '"cx": self.desc.states_size}', '"cx": self.desc.hidden_size}'),
    ],
    "rnnkit/types.py": [
        ("options of all networks are those of each",
         "class LSTMOptions(RNNOptions, total=False):", "class LSTMOptions(GRUOptions, total=False):"),
        ("x may have its batch first", "    batch_first: Literal[False]\n", "    batch_first: bool\n"),
        ("a dtype is any text", "DType: TypeAlias = HostDType |", "DType: TypeAlias = str |"),
        ("an option of the GRU is missing in the types", "    reset_after: bool\n", ""),
    ],
}  # fmt: skip
