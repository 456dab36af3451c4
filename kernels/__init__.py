"""The compiled kernels of the CPU engine.

The contract, which holds for every kernel:

- Arrays are one-dimensional, C-contiguous and of one floating dtype; where a row starts in them is an integer
  argument, so that one compiled kernel serves every layout. Row numbers are int64.
- A kernel trusts its caller: it never allocates, checks, raises or prints, and takes all memory from outside. Before
  one that multiplies runs, `tile.provide` must have brought the micro-kernel for its numbers of gates.
- A kernel that ends in the arguments `(member, members, sync)` is run by every member of a team at once
  (`team.run`). It begins by `barrier.publish` and `barrier.gather`, which say what is to be run and who takes part;
  these share out rows or units among themselves or divide into crews (`sharing`), meet at `barrier.meet`, and meet all
  together at the end. `team.run` takes its machine code by a key, the `kind`: arguments of one kind always have the
  same types.
- A value does not depend on how the work was shared out: every element of a product is one chain of fused
  multiply-adds, k ascending, in every shape of tile (`tile`), and no loop is compiled with fastmath.

Where to find what: `simd` vector registers, `tile` the micro-kernel, `matrix` and `transpose`, `gemm` packing and
products, `products` which of them a cell asks for, `activations` logistic and tanh, `loop` the time loop, `stack` one
step of all layers, `loop_gradient` and `weight_gradient` the way back, `cell` what the loops ask of a cell, `vanilla`,
`lstm`, `gru` the cells, `dropout` between layers, `team`, `barrier` and `sharing` the threads, `jit` the decorators,
`cache` where machine code is kept between processes.
"""
