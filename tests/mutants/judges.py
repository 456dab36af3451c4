"""Which tests judge a fault: those that name its file or feature, the quickest to notice one first."""

_ADAPTER = {
    "rnnkit/cuda/cudnn.py": "cudnn_library gpu_standin gpu_loading gpu",
    "rnnkit/cuda": "gpu_standin gpu gpu_algorithm gpu_device training_gpu cudnn_library",
    "rnnkit/distributed": "distributed world train_ranks many_machines imports",
    "rnnkit/interop/torch.py": "interop_torch interop_networks torch_modules docstrings",
    "rnnkit/interop/keras.py": "interop_keras interop_networks docstrings",
    "rnnkit/interop/jax.py": "interop_jax interop_networks docstrings",
    "rnnkit/interop/flux.py": "interop_flux interop_networks docstrings",
    "rnnkit/interop/mxnet.py": "interop_mxnet interop_networks docstrings",
    "rnnkit/interop/safetensors.py": "interop_safetensors interop_networks docstrings",
    "rnnkit/interop": "interop_onnx onnx_cells onnx_files onnx_written onnx_node_tests interop_networks interop_keras "
    "interop_jax interop_torch interop_flux interop_mxnet interop_refusals docstrings docs",
    "rnnkit/compression": "range_coder compress docstrings docs",
    "rnnkit/language_model/coding.py": "compress",
    "rnnkit/language_model/container.py": "compress compress_limits compress_command",
    "rnnkit/language_model/files.py": "language_model_model train_run train_record",
    "rnnkit/language_model/compressor.py": "compress_limits compress compress_command",
    "rnnkit/language_model/compress_command.py": "compress_command",
    "rnnkit/language_model/console.py": "command_signals main train_command train_places",
    "rnnkit/language_model/options.py": "main command_signals",
    "rnnkit/language_model": "language_model_model language_model_corpus language_model_sampling "
    "language_model_scoring train_run train_record train_places train_log main score_and_plot train_command "
    "language_model_torch train_ranks training_readout docs",
    "rnnkit/sklearn": "sklearn_pooling sklearn_refusals sklearn_learning sklearn_estimators docs",
    "rnnkit/torch": "torch_operator torch_resets torch_cells torch_small torch_classes torch_plain torch_modules "
    "torch_parameters torch_chains torch_storage torch_autograd torch_acceleration torch torch_gpu docs",
    "rnnkit/training": "training_clipping training_losses training_optimizers training_padding training_readout "
    "training_docstrings training_kernels training_gpu docs",
}
_PUBLIC = {
    "rnnkit/common/archive.py": "archive archive_names network network_objects main",
    "rnnkit/common/extras.py": "extras archive",
    "rnnkit/common/startup.py": "command_signals",
    "rnnkit/network/changing.py": "checked_calls compress",
    "rnnkit/common/arrays.py": "checks errors subclasses aliasing algebra workspace gpu_standin torch_modules "
    "side_inputs",
    "rnnkit/network/base.py": "network network_objects assigned_weights archive docstrings readme types",
    "rnnkit/cell_check.py": "check_cell derived_rules shipped_cells docstrings docs",
    "rnnkit/cells.py": "cell_rules check_cell own_cells shipped_cells onnx_cells archive docstrings",
    "rnnkit/network/classes.py": "mode_tables network interop_networks",
    "rnnkit/call/side_inputs.py": "side_inputs call_options",
    "rnnkit/call/checks.py": "resets checks errors aliasing nonfinite network gpu_standin subclasses stream_errors",
    "rnnkit/call/debugging.py": "debugging workspace readme",
    "rnnkit/descriptor/descriptor.py": "descriptor errors archive network network_objects own_cells shipped_cells "
    "onnx_cells",
    "rnnkit/descriptor/fields.py": "descriptor errors archive network",
    "rnnkit/descriptor/modes.py": "descriptor errors cell_numbers cell_source weights cells own_cells network types "
    "interop_networks",
    "rnnkit/common/numbers.py": "descriptor cell_numbers training_optimizers",
    "rnnkit/call/options.py": "call_options time_checkpoints checks errors gpu reduced_weights stream_errors resets",
    "rnnkit/call/memory.py": "short_calls exclusive workspace fork_locks",
    "rnnkit/call/pool.py": "short_calls torch_small_memory torch_autograd",
    "rnnkit/network/networks.py": "network network_objects archive descriptor errors types",
    "rnnkit/descriptor/saved.py": "archive network network_objects language_model_model",
    "rnnkit/network/stream.py": "resets stream stream_errors network_objects exclusive own_cells docs",
    "rnnkit/descriptor/weights.py": "weights digests descriptor network shipped_cells interop_networks docstrings",
    "rnnkit/descriptor/views.py": "assigned_weights network interop_networks",
    "rnnkit/commands/check.py": "check_command",
    "rnnkit/commands/warmup.py": "warmup",
    "rnnkit/commands": "main command_signals warmup",
    "rnnkit/common/console.py": "command_signals main train_command warmup",
    "rnnkit": "resets checks errors workspace exclusive plan_calls fork_locks debugging aliasing digests forward "
    "backward time_checkpoints checkpoint_memory steps stream stream_errors gpu_standin imports subclasses network "
    "network_objects docstrings readme",
}
_ENGINE = {
    "rnnkit/cpu/checkpoints.py": "time_checkpoints checkpoint_memory resets",
    "rnnkit/cpu/scheduler.py": "digests sharing threads steps plan_calls perf_many_cores time_checkpoints",
    "rnnkit/cpu/infer.py": "short_calls plan_calls digests forward bits exclusive reduced_weights sharing algebra "
    "resets",
    "rnnkit/cpu/prepared.py": "small_call torch_small torch_small_memory torch_storage",
    "rnnkit/cpu/route.py": "short_calls plan_calls explain torch_cells",
    "rnnkit/cpu/explanation.py": "explain",
    "rnnkit/network/explanation.py": "explain",
    "rnnkit/cpu/stack.py": "short_calls plan_calls stream digests bits reduced_weights exclusive sharing",
    "rnnkit/cpu/reduced.py": "reduced_weights perf_reduced",
    "rnnkit/cpu/rows.py": "number_of_steps resets digests steps time_checkpoints plan_calls workspace exclusive",
    "rnnkit/cpu/run.py": "noise resets digests time_checkpoints regularized_cells forward bits",
    "rnnkit/cpu": "resets digests workspace plan_calls steps forward backward bits time_checkpoints checkpoint_memory "
    "threads exclusive sharing stream reduced_weights algebra",
    "kernels/rnnkit_kernels/cells/activations.py": "cells onnx_cells shipped_cells vectorization",
    "kernels/rnnkit_kernels/cells/modes.py": "mode_tables cells descriptor types",
    "kernels/rnnkit_kernels/cells/source.py": "cell_source changed_constants own_cache own_cells archive shipped_cells",
    "kernels/rnnkit_kernels/cells/uses.py": "cell_source own_cache own_cells shipped_cells",
    "kernels/rnnkit_kernels/cells/rules.py": "cell_rules cell_numbers check_cell own_cells",
    "kernels/rnnkit_kernels/cells/running.py": "cell_rules cell_numbers check_cell calls_in_equations",
    "kernels/rnnkit_kernels/cells/derivation.py": "derived_rules derivation cells check_cell vectorization",
    "kernels/rnnkit_kernels/cells/derivatives.py": "derived_rules derivation",
    "kernels/rnnkit_kernels/cells/expressions.py": "derived_rules derivation digests long_equations",
    "kernels/rnnkit_kernels/cells/loops.py": "derived_rules derivation vectorization",
    "kernels/rnnkit_kernels/cells/reading.py": "derived_rules derivation calls_in_equations equations_mean_python",
    "kernels/rnnkit_kernels/cells/expression_reader.py":
        "derived_rules derivation calls_in_equations equations_mean_python "
    "constants_in_equations",
    "kernels/rnnkit_kernels/cells/calls.py": "calls_in_equations equations_mean_python",
    "kernels/rnnkit_kernels/cells/writing.py":
        "derived_rules derivation cell_source long_equations equations_mean_python",
    "kernels/rnnkit_kernels/cells/declaration.py": "cells derived_rules derivation cell_rules descriptor weights",
    "kernels/rnnkit_kernels/cells":
        "cells derived_rules derivation check_cell cell_rules digests shipped_cells slstm_range "
    "own_cells vectorization onnx_cells own_cache descriptor weights",
    "kernels/rnnkit_kernels/machine/activations.py": "exponential digests cells vectorization nonfinite slstm_range",
    "kernels/rnnkit_kernels/machine/arrays.py": "flat_arrays arguments kernels digests",
    "kernels/rnnkit_kernels/machine/arguments.py": "arguments thread_pool",
    "kernels/rnnkit_kernels/machine/cache.py": "cache cache_processes own_cache jit",
    "kernels/rnnkit_kernels/machine/compiler.py": "linking jit arguments",
    "kernels/rnnkit_kernels/machine/float_mode.py": "float_mode",
    "kernels/rnnkit_kernels/machine/small.py": "subnormals kernels exponential",
    "kernels/rnnkit_kernels/machine/forks.py": "fork_locks openmp processes",
    "kernels/rnnkit_kernels/machine/formats.py": "reduced_weights digests perf_reduced bits",
    "kernels/rnnkit_kernels/machine/gemm.py": "short_calls kernels digests bits reduced_weights threads vectorization",
    "kernels/rnnkit_kernels/machine/in_place.py": "short_calls digests guard_pages",
    "kernels/rnnkit_kernels/machine/jit.py": "jit linking thread_pool cache vectorization warmup own_cache fork_locks",
    "kernels/rnnkit_kernels/machine/linking.py": "linking jit cache vectorization",
    "kernels/rnnkit_kernels/machine/openmp.py": "openmp torch_modules",
    "kernels/rnnkit_kernels/machine/operators.py": "linking jit",
    "kernels/rnnkit_kernels/machine/rounding.py": "reduced_weights perf_reduced",
    "kernels/rnnkit_kernels/machine/sync.py": "thread_pool sharing threads exclusive openmp processes",
    "kernels/rnnkit_kernels/machine/thread_pool.py":
        "thread_pool arguments sharing threads exclusive openmp fork_locks processes plan_calls "
    "perf_many_cores",
    "kernels/rnnkit_kernels/machine/partition.py": "kernels thread_pool sharing threads digests perf_many_cores",
    "kernels/rnnkit_kernels/machine/tiles.py": "cache_processes processes kernels reduced_weights digests",
    "kernels/rnnkit_kernels/machine": "digests kernels bits reduced_weights vectorization processes threads linking",
    "kernels/rnnkit_kernels/rows.py": "resets digests steps workspace time_checkpoints algebra exclusive",
    "rnnkit/cpu/dense.py": "training_readout language_model_model digests",
    "rnnkit/cpu/losses.py": "training_losses digests",
    "kernels/rnnkit_kernels/dense.py": "training_readout language_model_model digests",
    "kernels/rnnkit_kernels/losses.py": "training_losses training_kernels digests",
    "kernels/rnnkit_kernels/range_coder.py": "range_coder compress",
    "kernels/rnnkit_kernels/training.py": "training_kernels training_clipping training_optimizers",
    "kernels/rnnkit_kernels/dropout.py": "noise digests bits backward",
    "kernels/rnnkit_kernels/noise.py": "noise digests regularized_cells language_model_model",
    "kernels/rnnkit_kernels/means.py": "regularized_cells derivation digests vectorization",
    "kernels/rnnkit_kernels/stack.py": "stream bits plan_calls forward algebra threads reduced_weights sharing",
    "kernels/rnnkit_kernels":
        "resets digests kernels steps threads forward backward bits time_checkpoints reduced_weights "
    "shipped_cells "
    "algebra stream",
}
_HARNESS = {
    "perf": "perf perf_report perf_peaks perf_cells perf_reduced perf_worker perf_torch perf_engines perf_commands "
    "perf_many_cores perf_gpu perf_programs perf_calls perf_episodes perf_norms",
    "perf/programs": "perf_programs",
    "scripts": "many_machines pictures readme",
}
_BY_PLACE = _ADAPTER | _PUBLIC | _ENGINE | _HARNESS


def judges(path: str) -> tuple[str, ...]:
    """The test files for a fault in the file: those of its longest part that the tables have."""
    place = max((place for place in _BY_PLACE if f"{path}/".startswith(f"{place}/")), key=len)
    return tuple(f"tests/test_{name}.py" for name in _BY_PLACE[place].split())
