"""Faults in what holds the states of many streams, and in how it is timed."""

from mutants.mutant import faults_in

STREAM, ERRORS = "tests/test_stream.py::test_", "tests/test_stream_errors.py::test_"
REFUSED = (f"{ERRORS}what_is_refused_changes_nothing",)
ALONE, GPU = f"{STREAM}each_stream_has_the_bits_of_itself_alone", (f"{STREAM}streams_on_a_gpu",)
ARRIVALS = f"{STREAM}a_thousand_streams_with_random_arrivals"
AMID = (f"{STREAM}an_exception_before_any_line_of_a_step_leaves_old_states_or_new_ones",)
OWNED, OUT = (f"{STREAM}what_is_returned_is_the_callers",), f"{STREAM}out_is_written_and_returned"
RESET, SAVED = (f"{STREAM}reset_begins_again",), f"{STREAM}a_saved_state_goes_on_with_the_same_bits"
COPIED, ALLOCATES = f"{STREAM}a_copy_has_states_of_its_own", (f"{STREAM}a_step_into_out_allocates_nothing",)
SERVED = ("tests/test_perf_engines.py::test_every_engine_serves_streams_as_the_twin_does",)
LENGTHS = "tests/test_errors.py::test_wrong_lengths"
ONCE = (f"{STREAM}a_second_call_at_once_is_refused_and_the_first_goes_on",)

MUTANTS = (
    *faults_in(
        "rnnkit/stream.py",
        ("a step of all keeps the states before it", "            self._states = tuple(after[: len(states)])\n", "",
         (f"{STREAM}a_loop_of_steps_is_that_of_the_plan",)),
        ("a step of all writes the states that it reads", "self._buffers or network.buffers(count), None",
         "(*states, *network.buffers(count)[len(states) :]), None", (f"{STREAM}a_loop_of_steps_is_that_of_the_plan",)),
        ("a step of all allocates its buffers", "self._buffers or network.buffers(count), None",
         "network.buffers(count), None", ALLOCATES),
        ("an interrupted step leaves its buffers", "self._buffers or network.buffers(count), None  # whatever",
         "self._buffers or network.buffers(count), self._buffers  # what", AMID),
        ("a step of some allocates its buffers", "self._network.buffers(count, take)", "self._network.buffers(count)",
         ALLOCATES),
        ("gathered states are allocated", "[take(name, (len(array), count, array.shape[2]), array.dtype)",
         "[np.empty((len(array), count, array.shape[2]), array.dtype)", ALLOCATES),
        ("a step of some works in what another number had", "len(rows) != self._room[0]", "len(rows) > self._room[0]",
         (ARRIVALS,)),
        ("states are not written back", "            self._scatter(rows, after)\n        if out", "        if out",
         (ARRIVALS,)),
        ("states after several steps are not written back", "        self._scatter(rows, after)\n        return y",
         "        return y", (ARRIVALS,)),
        ("y is the memory of the states", "y if buffers is None else y.copy()", "y", OWNED),
        ("out is not written", "        out[...] = y\n", "", (f"{OUT}[None]",)),
        ("cells are not gathered", "hx, cx, *_ = *(self._states if rows is None else self._gather(rows)[0]), None",
         "hx, cx, *_ = *(self._states if rows is None else [self._gather(rows)[0][0], None]), None", (ARRIVALS,)),
        ("lengths are ignored", 'checks.lengths("run", lengths, len(x), count))', "None)", (ALONE,)),
        ("all streams begin again", "        rows, _, _ = self._checked_rows(\"reset\", rows)\n",
         "        rows, _, _ = self._checked_rows(\"reset\", None)\n", RESET),
        ("one row is written into those behind it", "rows.item(), row + 1)", "rows.item(), None)", RESET),
        ("a mask is not looked up", "            found = np.flatnonzero(found)\n", "", (ALONE,)),
        ("the state is no copy", "np.array(on_host(array))", "on_host(array)", (SAVED, COPIED)),
        ("a restored state lacks its cells", "self._scatter(None, [self._library.asarray(array) for array in found])",
         "self._scatter(None, [self._library.asarray(array) for array in found][:1] + [0] * len(found[1:]))", (SAVED,)),
        ("a copy begins anew", "        self.restore(state)\n", "        pass\n", (COPIED,)),
        ("a row too many passes", "found, size - 1,", "found, size,", REFUSED),
        ("a stream may be named twice", "        if count > 1:\n", "        if False:\n", REFUSED),
        ("a mask of any length passes", "            if found.shape != (size,):\n", "            if False:\n", REFUSED),
        ("a state of other names passes", "if set(state) != set(self._names):",
         "if not set(self._names) <= set(state):", REFUSED),
        ("a state of another dtype passes", "if array.dtype != own.dtype:", "if False:", REFUSED),
        ("a state of another size passes", "            if array.shape != own.shape:\n", "            if False:\n",
         REFUSED),
        ("a read-only out passes to NumPy", "not out.flags.writeable", "False", REFUSED),
        ("two calls at once pass", "if len(calls) > 1 and at_work(calls, call):", "if False:", ONCE),
        ("a call stays at work for ever", "            calls.discard(call)\n", "            pass\n", (COPIED,)),
        ("rows stay on the host", "            rows = self._library.asarray(rows)\n            return",
         "            return", GPU),
        ("states are on whichever device is the current one", "            with self._device:\n",
         "            with self._library.cuda.Device():\n", (f"{STREAM}streams_stay_on_the_device_of_the_weights",)),
    ),
    *faults_in(
        "rnnkit/checks.py",
        ("a negative number passes", "not 0 <= numbers[numbers.argmin()] <= numbers", "not numbers",
         (*REFUSED, LENGTHS)),
        ("a number too many passes", "numbers[numbers.argmax()] <= last", "numbers[numbers.argmax()] <= last + 1",
         (*REFUSED, LENGTHS)),
        ("one among others passes", "numbers[numbers.argmax()] <= last", "numbers[0] <= last", (*REFUSED, LENGTHS)),
    ),
    *faults_in(
        "rnnkit/plan.py",
        ("two directions have streams", "        if self.desc.num_directions != 1:\n", "        if False:\n",
         (f"{ERRORS}two_directions_have_no_streams",)),
        ("there may be no stream", "if num_streams < 1:", "if num_streams < 0:",
         (f"{ERRORS}a_number_of_streams_that_is_refused",)),
    ),
    *faults_in(
        "perf/serving.py",
        ("streams go on where the last run ended", "        stream.restore(initial)\n", "", SERVED),
        ("states by hand go on where the last run ended", "        hx[...] = given.hx\n", "", SERVED),
        ("cells by hand are not written back", "                cx[:, rows] = cy\n", "                pass\n", SERVED),
    ),
    *faults_in(
        "perf/report.py",
        ("an older report is refused", "engine for engine in COMPETITORS if engine in found", "COMPETITORS",
         ("tests/test_perf_report.py::test_a_report_may_be_older_than_a_competitor",)),
    ),
)
