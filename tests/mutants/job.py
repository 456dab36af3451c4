"""Faults in the main job: runs and their files, signals, configuration, logs, ranks."""

from mutants.mutant import faults_in

RUN, COMMAND = "tests/test_train_run.py::test_", "tests/test_train_command.py::test_"
TOGETHER, PICTURE = "tests/test_train_ranks.py::test_", "tests/test_score_and_plot.py::test_"
SAME_BITS, KEPT = f"{RUN}a_run_goes_on_to_the_same_bits", f"{RUN}files_that_are_kept"
CTRL_C = f"{COMMAND}ctrl_c_saves_a_run_that_goes_on_to_the_same_bits"
CONFIGURED = f"{COMMAND}a_configuration_gives_options"
LOG_GOES_ON, RANKS = f"{COMMAND}a_log_goes_on_where_the_run_does", f"{TOGETHER}ranks_train_one_model"
AGAIN, REFUSED = f"{COMMAND}settings_of_a_run_may_be_given_again_but_no_others", f"{RUN}load_refuses_another_file"
BAD_CONFIGURATION = f"{COMMAND}bad_configurations_are_one_line"

MUTANTS = (
    *faults_in(
        "rnnkit/language_model/training.py",
        (
            "a run that goes on reads its text from the start",
            "self.step, self.seconds, self.first_seconds = step,",
            "self.step, self.seconds, self.first_seconds = 0 * step,",
            (SAME_BITS,),
        ),
        (
            "a run that goes on has lost its states",
            "None if array is None else array[:, part].copy()",
            "None",
            (SAME_BITS,),
        ),
        (
            "a part has the states of another",
            "array[:, part].copy() for array in state",
            "array[:, : part.stop - part.start].copy() for array in state",
            (SAME_BITS,),
        ),
        (
            "masks of dropout do not depend on the step",
            "(settings.seed, self.step, part.start)",
            "(settings.seed, part.start)",
            (f"{RUN}each_step_has_its_rate_and_each_part_a_mask_of_its_own",),
        ),
        (
            "masks of dropout do not depend on the part",
            "(settings.seed, self.step, part.start)",
            "(settings.seed, self.step)",
            (f"{RUN}each_step_has_its_rate_and_each_part_a_mask_of_its_own",),
        ),
        (
            "the gradient of the last step is not cleared",
            "        gradient.buffer.fill(0)\n",
            "",
            (f"{RUN}the_loss_and_the_norm_are_those_of_the_step",),
        ),
        ("weights do not decay", "settings.weight_decay * acts", "0.0 * acts", (f"{RUN}weights_decay_but_for_biases",)),
        (
            "biases decay",
            "settings.weight_decay * acts",
            "settings.weight_decay",
            (f"{RUN}weights_decay_but_for_biases",),
        ),
        (
            "compiling counts as training",
            "(self.seconds - self.first_seconds) / whole",
            "self.seconds / whole",
            (f"{RUN}budgets",),
        ),
        ("an epoch is a step less", "round(amount * corpus", "int(amount * corpus", (f"{RUN}budgets",)),
        (
            "the gradients of ranks are not summed",
            "        distributed.allreduce_gradients(gradient.buffer, self.comm)\n",
            "",
            (RANKS,),
        ),
        (
            "all ranks train on the same rows",
            "distributed.shard(settings.batch, comm)",
            "distributed.shard(settings.batch, None)",
            (RANKS,),
        ),
        (
            "states are saved in another order of ranks",
            "zip(*ranks, strict=True)",
            "zip(*ranks[::-1], strict=True)",
            (f"{TOGETHER}ranks_go_on_to_the_same_bits",),
        ),
        ("a signal on another rank is not heard", "stops > 0", "stop", (f"{TOGETHER}a_signal_on_one_rank_ends_all",)),
        (
            "the gradient is not clipped",
            "clip_gradient_norm(gradient.flat, settings.clip)",
            "clip_gradient_norm(gradient.flat.copy(), settings.clip)",
            (f"{RUN}the_loss_and_the_norm_are_those_of_the_step",),
        ),
    ),
    *faults_in(
        "rnnkit/language_model/checkpoint.py",
        ("the optimizer begins anew", "        optimizer.restore(", "        dict(", (SAME_BITS,)),
        (
            "older files are not removed",
            "        for step in set(before) - set(record.kept):",
            "        for step in ():",
            (KEPT,),
        ),
        (
            "an older file is kept under the newest's name",
            'self._link(self._beside(f"step{run.step}"))',
            "self._link(self.out)",
            (KEPT,),
        ),
        (
            "a record may hold anything",
            "if not isinstance(found[one.name], CHECKS[one.type]):",
            "if False:",
            (REFUSED,),
        ),
        ("a run may be of another network", "        if desc != model.desc:", "        if False:", (REFUSED,)),
    ),
    *faults_in(
        "rnnkit/language_model/job.py",
        ("a run goes on with other settings", "        if value != has:", "        if False:", (AGAIN,)),
        (
            "a run goes on with another text",
            "    if expected not in (None, digest):",
            "    if False:",
            (f"{COMMAND}a_run_goes_on_with_its_own_text",),
        ),
        (
            "a refusal of one rank leaves the others waiting",
            "    refusals = comm.allgather(refusal)\n",
            "    refusals = [refusal]\n",
            (f"{TOGETHER}a_text_that_only_one_rank_lacks_is_named_with_it",),
        ),
        (
            "ranks may read other texts",
            "        if others:\n",
            "        if False:\n",
            (f"{TOGETHER}a_text_that_differs_between_ranks_is_refused",),
        ),
    ),
    *faults_in(
        "rnnkit/language_model/train_command.py",
        (
            "a signal does not save",
            "            if run.progress < 1 and step.stop:\n                _save(job)\n",
            "            if run.progress < 1 and step.stop:\n",
            (CTRL_C,),
        ),
        (
            "a finished run still is one",
            "    model.save(out)\n",
            "    _save(job)\n",
            (f"{COMMAND}a_finished_run_cannot_go_on",),
        ),
        (
            "every model is the best one",
            "bits < job.record.best_bits",
            "True",
            (f"{COMMAND}the_best_by_validation_is_kept",),
        ),
    ),
    *faults_in(
        "rnnkit/language_model/configuration.py",
        (
            "the configuration goes before the command line",
            "defaults | config | given",
            "defaults | given | config",
            (CONFIGURED,),
        ),
        (
            "a budget of the configuration stays beside another",
            "    if any(name in given for name in BUDGETS):",
            "    if False:",
            (f"{COMMAND}a_budget_on_the_command_line_goes_before_another_in_the_configuration",),
        ),
        ("keys are taken as they come", "        if action is None:", "        if False:", (BAD_CONFIGURATION,)),
    ),
    *faults_in(
        "rnnkit/language_model/report.py",
        ("rows of lost steps stay in the log", ' if int(row["step"]) <= step]', "]", (LOG_GOES_ON,)),
        (
            "a row has the bits of its last step",
            "sum(self._bits) / len(self._bits)",
            "self._bits[-1]",
            (f"{COMMAND}a_row_of_the_log_is_the_mean_of_its_steps",),
        ),
        (
            "a log replaces whatever stands there",
            "found = read_log(path) if os.path.exists(path) and os.path.getsize(path) else []",
            "found = []",
            (f"{COMMAND}a_log_that_is_none_is_refused",),
        ),
        (
            "a row may be anything",
            "        if not _is_row(row):",
            "        if False:",
            (f"{PICTURE}plot_refuses_what_is_no_log",),
        ),
    ),
    *faults_in(
        "rnnkit/language_model/every.py",
        (
            "intervals count from the start of all",
            "self._count = self._number(run)\n        return self",
            "return self",
            (f"{RUN}every",),
        ),
        (
            "an interval that has ended goes on ending",
            "before, self._count = self._count, self._number(run)",
            "before = self._count",
            (f"{RUN}every",),
        ),
    ),
    *faults_in(
        "rnnkit/language_model/console.py",
        (
            "a second signal waits as the first one",
            "        restore()\n\n    def",
            "\n    def",
            (f"{COMMAND}signals_act_at_once_the_second_time",),
        ),
    ),
    *faults_in(
        "rnnkit/language_model/plot.py",
        ("time is drawn in seconds", '("seconds", 60,', '("seconds", 1,', (f"{PICTURE}curves_are_those_of_the_logs",)),
    ),
)
