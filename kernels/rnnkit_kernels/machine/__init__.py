"""The runtime of the kernels: matrix products, threads, and the compiler.

Products: `registers` describes the vector registers, `tile` emits the micro-kernel on them, and `tiles` compiles and
calls it; `matrix` addresses rows, `transpose` and `gemm` pack and multiply. Quantized weights: `formats`, `rounding`,
`bfloat16_tile`, and `amx`, `amx_tile` and `amx_product` for the tile registers of x86 CPUs. `activations` has exp,
logistic and tanh.
Threads: `thread_pool` runs them, `sync` synchronises them, `partition` splits the work, `forks` resets them in a forked
child, `imports` lets forks and signals wait for the end of an import.
Compiler: `jit` has the decorators, `arguments` the types of arguments, `cache` keeps machine code between processes.
"""
