"""Faults in the performance harness: figures that would be wrong while everything looks right."""

from mutants.mutant import Mutant

PERF = "tests/test_perf.py::test_"
COMMANDS = "tests/test_perf_commands.py::test_"
ENGINES = "tests/test_perf_engines.py::test_"
PEAKS = "tests/test_perf_peaks.py::test_"
REPORT = "tests/test_perf_report.py::test_"
WORKER = "tests/test_perf_worker.py::test_"

_PEAKS = (
    Mutant(
        "the peak is halved",
        "perf/peaks.py",
        "return 2 * lanes * _CHAINS",
        "return lanes * _CHAINS",
        (f"{PEAKS}a_peak_counts_each_multiply_add_of_all_threads_twice",),
    ),
    Mutant(
        "one thread's multiply-adds are counted",
        "perf/peaks.py",
        "turns * threads / seconds",
        "turns / seconds",
        (f"{PEAKS}a_peak_counts_each_multiply_add_of_all_threads_twice",),
    ),
    Mutant(
        "one thread's bytes are counted",
        "perf/peaks.py",
        "sum(part.nbytes for part in parts)",
        "parts[0].nbytes",
        (f"{PEAKS}a_bandwidth_counts_the_bytes_of_all_threads",),
    ),
    Mutant(
        "the slowest repetition counts",
        "perf/peaks.py",
        "starts.min(axis=1)).min()",
        "starts.min(axis=1)).max()",
        (f"{PEAKS}the_quickest_repetition_counts_from_the_first_start_to_the_last_end",),
    ),
    Mutant(
        "a repetition begins with its last thread",
        "perf/peaks.py",
        "starts.min(axis=1)",
        "starts.max(axis=1)",
        (f"{PEAKS}the_quickest_repetition_counts_from_the_first_start_to_the_last_end",),
    ),
    Mutant(
        "a turn more than was asked for",
        "perf/peaks.py",
        'icmp_signed("<", count',
        'icmp_signed("<=", count',
        (f"{PEAKS}the_chains_compute_what_they_say",),
    ),
    Mutant(
        "a GPU's milliseconds are microseconds",
        "perf/peaks.py",
        "/ 1e3)",
        "/ 1e6)",
        (f"{PEAKS}the_peak_of_a_gpu_is_that_of_its_quickest_product",),
    ),
)

_TIMING = (
    Mutant(
        "a repetition is not divided by its calls",
        "perf/worker.py",
        "seconds / self.calls, seconds",
        "seconds, seconds",
        (f"{WORKER}the_seconds_of_a_call_are_those_of_the_repetition_by_its_calls",),
    ),
    Mutant(
        "kibibytes are bytes",
        "perf/worker.py",
        "split()[0]) * 1024",
        "split()[0])",
        (f"{WORKER}the_most_memory_is_in_bytes_and_since_the_case_was_loaded",),
    ),
    Mutant(
        "the most memory is that of all cases",
        "perf/worker.py",
        "        _reset_peak_memory()\n",
        "",
        (f"{WORKER}loading_a_case_forgets_the_memory_of_the_last_one",),
    ),
    Mutant(
        "no rest between the engines",
        "perf/worker.py",
        "        seconds = self._seconds()\n        _rest()\n",
        "        seconds = self._seconds()\n",
        (f"{WORKER}the_seconds_of_a_call_are_those_of_the_repetition_by_its_calls",),
    ),
    Mutant(
        "no rest behind the loading",
        "perf/worker.py",
        "self._count_calls()\n        _rest()\n",
        "self._count_calls()\n",
        (f"{WORKER}a_long_call_is_a_repetition",),
    ),
    Mutant(
        "busy threads are at rest",
        "perf/worker.py",
        "if time.process_time() - used < 0.1 * _QUIET:",
        "if True:",
        (f"{WORKER}threads_are_waited_for_until_they_rest",),
    ),
    Mutant(
        "threads and caches are cold",
        "perf/worker.py",
        "self.subject.run()  # brings threads and caches back",
        "pass",
        (f"{WORKER}the_seconds_of_a_call_are_those_of_the_repetition_by_its_calls",),
    ),
    Mutant(
        "the clock stops before the work is done",
        "perf/worker.py",
        "        finish()\n        seconds",
        "        seconds",
        (f"{WORKER}a_repetition_ends_when_its_work_is_done",),
    ),
    Mutant(
        "the results of the first call are compared",
        "perf/worker.py",
        "        subject.run()\n        # On",
        "        # On",
        (f"{WORKER}results_of_the_second_call_are_compared",),
    ),
    Mutant(
        "a worker's engine has one thread",
        "perf/worker.py",
        "self.threads, self.device)",
        "1, self.device)",
        (f"{WORKER}a_long_call_is_a_repetition",),
    ),
    Mutant(
        "a worker's process has one thread",
        "perf/timing.py",
        "str(threads)",
        "str(1)",
        (f"{WORKER}a_process_starts_with_its_number_of_threads",),
    ),
    Mutant(
        "the seconds of repetitions are those of calls",
        "perf/timing.py",
        "append(per_call)",
        "append(total)",
        (f"{WORKER}engines_take_turns_and_the_seconds_of_a_call_are_kept",),
    ),
    Mutant(
        "the time that is spent is that of single calls",
        "perf/timing.py",
        "spent += total",
        "spent += per_call",
        (f"{WORKER}rounds_end_when_the_seconds_of_whole_repetitions_are_spent",),
    ),
    Mutant(
        "a ratio is upside down",
        "perf/timing.py",
        "other / own for",
        "own / other for",
        (f"{WORKER}ratios_are_taken_pair_by_pair",),
    ),
)

_RUN = (
    Mutant(
        "one step is compared before all are timed",
        "perf/run.py",
        "max(1, case.shortest or 1, min(case.seq_len, steps))",
        "1",
        (f"{PERF}a_case_is_shortened_no_more_than_needed",),
    ),
    Mutant(
        "a part is timed as the whole",
        "perf/run.py",
        '"load", case, pass_name',
        '"load", part, pass_name',
        (f"{PERF}a_part_is_compared_and_the_whole_is_timed",),
    ),
    Mutant(
        "a wrong engine is timed",
        "perf/run.py",
        "if row[engine] == report.OK]",
        "]",
        (f"{PERF}a_wrong_competitor_is_not_timed", f"{PERF}a_wrong_case_is_not_timed"),
    ),
    Mutant(
        "the quickest repetition stands for all",
        "perf/run.py",
        "own = median(times[RNNKIT])",
        "own = min(times[RNNKIT])",
        (f"{PERF}figures_of_a_right_pair",),
    ),
    Mutant(
        "a bound is ten times as wide",
        "perf/check.py",
        '"float32": 3e-5',
        '"float32": 3e-4',
        (f"{PERF}a_result_is_right_up_to_its_bound",),
    ),
    Mutant(
        "NaN is right",
        "perf/check.py",
        "if not error <= bound:",
        "if error > bound:",
        (f"{PERF}deviations_are_found",),
    ),
    Mutant(
        "a row is seen late",
        "perf/run.py",
        "print(_line(row), flush=True)",
        "print(_line(row))",
        (f"{PERF}every_row_is_measured_and_seen_at_once",),
    ),
    Mutant(
        "a run with wrong results succeeds",
        "perf/__main__.py",
        "for row in rows) else 1",
        "for row in rows) else 0",
        (f"{COMMANDS}a_run_with_a_wrong_result_fails",),
    ),
    Mutant(
        "every command succeeds",
        "perf/__main__.py",
        "    sys.exit(main())",
        "    main()",
        (f"{COMMANDS}an_unknown_case_is_an_error",),
    ),
    Mutant(
        "cold and warm are swapped",
        "perf/startup.py",
        "cold cache {cold}, warm cache {warm}",
        "cold cache {warm}, warm cache {cold}",
        (f"{COMMANDS}a_cache_is_cold_once_and_each_figure_has_its_own",),
    ),
    Mutant(
        "a cold cache is everyone's",
        "perf/startup.py",
        '{"NUMBA_CACHE_DIR": cache} if cache else {}',
        "{}",
        (f"{COMMANDS}a_fresh_process_has_the_cache_and_the_arguments_that_it_is_given",),
    ),
    Mutant(
        "a process that failed gives a figure",
        "perf/startup.py",
        "check=True",
        "check=False",
        (f"{COMMANDS}a_process_that_fails_gives_no_figure",),
    ),
)

_REPORT = (
    Mutant(
        "a row is written late",
        "perf/report.py",
        "        self._file.flush()\n",
        "",
        (f"{REPORT}a_row_is_in_the_file_when_it_was_written",),
    ),
    Mutant(
        "changes on top of a commit are hidden",
        "perf/report.py",
        '"--dirty", ',
        "",
        (f"{REPORT}a_commit_with_changes_on_top_is_called_dirty",),
    ),
    Mutant(
        "a table shows microseconds",
        "perf/compare.py",
        "* 1e3:",
        "* 1e6:",
        (f"{REPORT}tables_show_milliseconds_and_shares",),
    ),
    Mutant(
        "differences of the headers are hidden",
        "perf/compare.py",
        "and pair[0] != pair[1]}",
        "and pair[0] == pair[1]}",
        (f"{REPORT}compare_tells_what_else_differs",),
    ),
    Mutant(
        "what the older header alone says is hidden",
        "perf/compare.py",
        "(*new.header, *old.header)",
        "new.header",
        (f"{REPORT}compare_tells_what_else_differs",),
    ),
    Mutant(
        "slower is faster",
        "perf/compare.py",
        'float(known[key]["seconds"]) / float(row["seconds"])',
        'float(row["seconds"]) / float(known[key]["seconds"])',
        (f"{REPORT}compare_divides_the_old_seconds_by_the_new_ones",),
    ),
    Mutant(
        "a curve shows microseconds",
        "perf/plot.py",
        "[1e3 * time for time in seconds]",
        "[1e6 * time for time in seconds]",
        (f"{REPORT}growth_is_drawn_in_milliseconds",),
    ),
    Mutant(
        "the time at the peak is above the time",
        "perf/plot.py",
        'time * float(row["share_of_peak"])',
        'time / float(row["share_of_peak"])',
        (f"{REPORT}growth_is_drawn_in_milliseconds",),
    ),
    Mutant(
        "shares stand in the rows of others",
        "perf/plot.py",
        "places = [names.index(_case(row)) for row in own]",
        "places = list(range(len(own)))",
        (f"{REPORT}shares_of_the_peak_are_drawn",),
    ),
)

_ENGINES = (
    Mutant(
        "PyTorch has one thread",
        "perf/baselines.py",
        "torch.set_num_threads(threads)",
        "torch.set_num_threads(1)",
        (f"{ENGINES}pytorch_has_its_number_of_threads",),
    ),
    Mutant(
        "PyTorch records an inference for its gradients",
        "perf/baselines.py",
        "with torch.inference_mode():\n            return",
        "with torch.enable_grad():\n            return",
        (f"{ENGINES}pytorch_records_nothing_where_nothing_is_trained",),
    ),
    Mutant(
        "ONNX Runtime's threads go on when a call is over",
        "perf/baselines.py",
        '"session.force_spinning_stop", "1"',
        '"session.force_spinning_stop", "0"',
        (f"{ENGINES}onnx_runtime_has_its_number_of_threads",),
    ),
    Mutant(
        "ONNX Runtime has one thread",
        "perf/baselines.py",
        "inter_op_num_threads = threads, 1",
        "inter_op_num_threads = 1, 1",
        (f"{ENGINES}onnx_runtime_has_its_number_of_threads",),
    ),
    Mutant(
        "PyTorch takes a mode that is not known for its RNN",
        "perf/baselines.py",
        'of_mode(desc.mode, "network", "torch")',
        '("RNN", {})',
        (f"{ENGINES}a_mode_that_an_engine_does_not_know_is_an_error[torch]",),
    ),
    Mutant(
        "the reference leaves options out",
        "perf/unfused.py",
        "if desc != plain:",
        "if False:",
        (f"{ENGINES}the_reference_refuses_what_it_does_not_compute",),
    ),
    Mutant(
        "two gates of ONNX's GRU are swapped",
        "kernels/cells/modes.py",
        '("GRU", "z r n"',
        '("GRU", "r z n"',
        (f"{ENGINES}every_engine_has_the_twins_results[onnxruntime-gru-deep-infer]",),
    ),
    Mutant(
        "ONNX's GRU has the other formula",
        "kernels/cells/modes.py",
        '"linear_before_reset": 1',
        '"linear_before_reset": 0',
        (f"{ENGINES}every_engine_has_the_twins_results[onnxruntime-gru-plain-infer]",),
    ),
    Mutant(
        "the reference goes on beyond the end of a sequence",
        "perf/unfused.py",
        "h = h_next if active is None else np.where(active, h_next, h)",
        "h = h_next",
        (f"{ENGINES}the_non_fused_network_has_the_twins_results[gru-lengths-float64-states]",),
    ),
    Mutant(
        "the reference's reset gate has half of its gradient",
        "kernels/cells/gru.py",
        "dr * (r * (1 - r)), dz * (z",
        "dr * r, dz * (z",
        (f"{ENGINES}the_non_fused_network_has_the_twins_gradients[gru-full]",),
    ),
    Mutant(
        "the parent imports a competitor",
        "perf/compare.py",
        "from math import exp, log\n",
        "from math import exp, log\n\nimport onnx\n",
        (f"{WORKER}the_parent_imports_no_competitor",),
    ),
)

MUTANTS = (*_PEAKS, *_TIMING, *_RUN, *_REPORT, *_ENGINES)
