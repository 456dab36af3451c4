"""The compiled kernels of the CPU engine.

Letters: T seq_len, N batch_size, I input_size, H hidden_size, P proj_size (H without a projection), G gates; x the
input, h the hidden state, c the cell state, W the input weights, R the recurrent weights; `d...` is the gradient of the
loss with respect to what follows. `start, stop` is a half-open range, as in Python.

The contract of every kernel:

- Arrays are one-dimensional, C-contiguous and of one floating dtype. Rows are addressed by lists of int64 row numbers
  (`machine.matrix.Matrix`), so that one compiled kernel serves every layout.
- A kernel trusts its caller: it never allocates, checks, raises or prints, and takes all memory from outside.
- A kernel whose last parameters are `(thread_id, size, sync)` runs on every thread of a team at once, and is called
  only through `thread_pool.run` or `thread_pool.bound`. It begins with `sync.post_call` and `sync.join`, which publish
  the call and determine who takes part. The threads split rows or units among themselves, or split into teams
  (`partition`), synchronise at `sync.barrier`, and all synchronise once more at the end.
- Arguments that stay the same from call to call may come as one, `bound` (`thread_pool.bound`); `bound.values_of`
  unpacks it.
- Results are deterministic: they do not depend on how the work is split. In full precision every element of a product
  is one chain of fused multiply-adds, k ascending, in every shape of tile (`machine.tile`), and no loop is compiled
  with fastmath.

Where to find what: `cells` has the mathematics, `machine` the runtime of the kernels. Between them, `operands` names
what a pass reads and writes, `stages` runs a cell's equations over rows of numbers (`stage_compiler` compiles them),
`phases` compiles a cell's list of phases, `products` packs its weights, `loop` is the time loop, `stack` runs steps of
all layers, `loop_gradient` and `weight_gradient` are the backward pass, `rows` lists packed rows, `dropout` runs
between layers, `handles` lets a user's compiled code run steps.
"""
