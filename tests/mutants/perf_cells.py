"""Faults in what cells that are no modes are timed beside."""

from mutants.mutant import Mutant

CELLS = "tests/test_perf_cells.py::test_"
BASELINES, LOOPS = "perf/baselines.py", "perf/cell_loops.py"
REFERENCE = (f"{CELLS}the_engine_has_the_results_of_the_reference",)
LOOP = (f"{CELLS}a_loop_has_the_results_of_the_engine",)

MUTANTS = (
    Mutant(
        "gates without R are multiplied all the same", "perf/cases.py",
        "products = desc.num_recurrent_gates", "products = desc.num_gates", (f"{CELLS}the_work_of_gates_without_r",),
    ),
    Mutant(
        "rows of R that are not there are read", "perf/cases.py",
        "return (desc.num_recurrent_gates", "return (desc.num_gates", (f"{CELLS}the_work_of_gates_without_r",),
    ),
    Mutant(
        "one of several states is compared", BASELINES, "enumerate(cy)}", "enumerate(cy[:1])}",
        (f"{CELLS}every_state_is_compared",),
    ),
    Mutant(
        "a cell's reference is rounded", BASELINES, '_cell_loop("torch-loop", wide', '_cell_loop("torch-loop", given',
        REFERENCE,
    ),
    Mutant(
        "what is beside an own cell is that cell", BASELINES, 'given._replace(desc=replace(given.desc, mode="lstm"))',
        "given", (f"{CELLS}the_built_in_one_is_not_its_own",),
    ),
    Mutant(
        "every loop is compiled", LOOPS, "torch.compile(forward) if compiled else forward", "torch.compile(forward)",
        (f"{CELLS}only_the_compiled_loop_is_compiled",),
    ),
    Mutant(
        "no loop is compiled", LOOPS, "torch.compile(forward) if compiled else forward", "forward",
        (f"{CELLS}only_the_compiled_loop_is_compiled",),
    ),
    Mutant("gradients of a loop add up", LOOPS, "            array.grad = None\n", "            pass\n", LOOP),
    Mutant("a compiled loop goes on where it ended", LOOPS, "        states[-1] = start\n", "", LOOP),
    Mutant("the last rows of R multiply h too", LOOPS, "multiplied @ r[1]", "states[0] @ r[1]", LOOP),
    Mutant(
        "a table of cells has empty columns", "perf/compare.py", "set() if shown & set(CELL_LOOPS) else ", "",
        (f"{CELLS}a_table_of_cells_has_columns_for_loops_alone",),
    ),
    Mutant(
        "cells of the other suite are run", "perf/__main__.py", '"cells": cell_suite.CASES',
        '"cells": None', (f"{CELLS}a_suite_has_its_own_cases",),
    ),
)  # fmt: skip
