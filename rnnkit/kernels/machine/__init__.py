"""The machine that the kernels run on.

`registers` vector registers and `tile` the micro-kernel on them, which `tiles` compiles and calls; `matrix`,
`transpose` and `gemm` rows, packing and products; `activations` logistic and tanh; `team`, `sync` and `partition` the
threads, `forks` what a forked child forgets of them; `jit` the decorators, `arguments` what kernels are given, `cache`
where machine code is kept between processes.
"""
