"""Faults in networks as objects, in files of whole models, and in the debug switch."""

from mutants.mutant import faults_in

OBJECTS, DEBUG = "tests/test_network_objects.py::test_", "tests/test_debugging.py::test_"
MODELS, EQUAL, DTYPE = (f"{OBJECTS}a_file_of_a_whole_model",), (f"{OBJECTS}equality",), (f"{OBJECTS}another_dtype",)
PLANS, CHANGED = (f"{OBJECTS}a_plan_is_pickled_as_what_it_is_made_of",), (f"{DEBUG}what_has_changed_is_named",)
LISTS = (f"{OBJECTS}what_stands_beside_a_network_may_be_a_list",)
REFUSALS, TYPED = (f"{OBJECTS}refusals",), (f"{OBJECTS}what_people_type_who_come_from_elsewhere",)

MUTANTS = (
    *faults_in(
        "rnnkit/base_network.py",
        ("a class takes the descriptor of another", "        if not cls._takes(desc.mode):", "        if False:",
         REFUSALS),
        ("a seed is ignored beside weights", "        elif seed is not None:", "        elif False:", REFUSALS),
        ("weights of any size are taken",
         '        check_weights(function, "weights", weights, desc)\n', "", REFUSALS),
        ("networks of other weights are equal", "and _bits(self._weights) == _bits(other._weights)", "", EQUAL),
        ("what stands beside networks does not count",
         "== {name: _bits(array) for name, array in other.arrays.items()}", "is not None", EQUAL),
        ("equality is that of numbers", "return str(host.dtype), host.shape, host.tobytes()",
         "return str(host.dtype), host.shape, host.tolist()", EQUAL),
        ("a copy shares the weights", "_set(self._desc, copy_of(self._weights), self._copies())",
         "_set(self._desc, self._weights, self._copies())", (f"{OBJECTS}copies",)),
        ("a list beside a network cannot be copied", "copy_of(_array(value))", "copy_of(value)", LISTS),
        ("a list beside a network has no bits", "host = on_host(_array(array))", "host = on_host(array)", LISTS),
        ("a list beside a network cannot be moved", "beside_it = {name: _array(value)", "beside_it = {name: value",
         LISTS),
        ("the flag of coarser products stays", "replace(self._desc, dtype=dtype, allow_tf32=False)",
         "replace(self._desc, dtype=dtype)", DTYPE),
        ("weights that overflow warn", 'with np.errstate(over="ignore"), beside', "with beside", DTYPE),
        ("batch_first is ignored", "    if batch_first:", "    if False:", REFUSALS),
        ("another network's nonlinearity is the descriptor's to refuse",
         '    if "nonlinearity" in options:', "    if False:", REFUSALS),
        ("text is moved to a GPU", "move(array) if _is_number(array) else array", "move(array)",
         ("tests/test_gpu.py::test_a_network_as_an_object",)),
        ("what load found is not saved again", "self._weights, self.arrays | arrays)", "self._weights, arrays)",
         MODELS),
    ),
    *faults_in(
        "rnnkit/arrays.py",
        ("a copy is made on the current device",
         "return nullcontext() if isinstance(array, np.ndarray) else array.device", "return nullcontext()",
         ("tests/test_gpu.py::test_copies_of_a_network_stay_on_its_device",)),
    ),
    *faults_in(
        "rnnkit/network.py",
        ("what stands beside a network is dropped", "        net.arrays = others(file)\n", "", MODELS),
    ),
    *faults_in(
        "rnnkit/saved.py",
        ("an array takes the place of the weights", "    if name in MEMBERS:", "    if False:",
         (f"{OBJECTS}arrays_that_a_file_does_not_take",)),
        ("dates are written and cannot be read", '"biufcSU"', '"biufcSUM"',
         (f"{OBJECTS}arrays_that_a_file_does_not_take",)),
        ("a mask is dropped", "    if isinstance(value, np.ma.MaskedArray):", "    if False:",
         (f"{OBJECTS}arrays_that_a_file_does_not_take",)),
    ),
    *faults_in(
        "rnnkit/plan.py",
        ("a plan is pickled with weights that others change", "self._flat = copy_of(w)", "self._flat = w", PLANS),
    ),
    *faults_in(
        "rnnkit/descriptor.py",
        ("True is one bias", 'return "both" if value else "none"', 'return "input" if value else "none"', TYPED),
        ("False is no projection", " and not isinstance(value, bool) and value == 0", " and value == 0",
         REFUSALS),
        ("0.0 is no projection", "(isinstance(value, Integral) and not isinstance(value, bool) and value == 0)",
         "value is not False and value == 0", REFUSALS),
    ),
    *faults_in(
        "rnnkit/debugging.py",
        ("x is not looked at", '(("w", w), ("x", workspace.x))', '(("w", w),)', CHANGED),
        ("what was noted is always compared", "    if _on:\n        for name, array in",
         "    if True:\n        for name, array in", CHANGED),
        ("zero turns it on", 'not in ("", "0")', 'not in ("",)', (f"{DEBUG}the_environment_variable",)),
    ),
    *faults_in(
        "rnnkit/engine.py",
        ("backward without a gradient computes zeros",
         "    if dy is None and dhy is None and dcy is None:", "    if False:",
         (f"{DEBUG}backward_without_a_gradient_is_a_mistake",)),
        ("forward notes nothing", "        debugging.note(filled, w)\n", "", CHANGED),
    ),
)  # fmt: skip
