"""The compiled kernels of the CPU engine.

The letters: T seq_len, N batch_size, I input_size, H hidden_size, P proj_size (H without a projection), G gates; x the
input, h the hidden state, c the cell, W and R the input's and the recurrent weights; `d...` is the gradient of the loss
by what follows. `start, stop` is a range as Python has it.

The contract, which holds for every kernel:

- Arrays are one-dimensional, C-contiguous and of one floating dtype; where a row starts in them is arithmetic on row
  numbers (`machine.matrix.Matrix`), so that one compiled kernel serves every layout. Row numbers are int64.
- A kernel trusts its caller: it never allocates, checks, raises or prints, and takes all memory from outside.
- A kernel that ends in the arguments `(thread_id, size, sync)` is run by every thread of a team at once, and by
  `team.run` alone. It begins by `sync.post_call` and `sync.join`, which say what is to be run and who takes part; the
  threads share out rows or units among themselves or split into teams (`partition`), meet at `sync.barrier`, and meet
  all together at the end.
- Arguments that stay the same from call to call may come as one, `bound` (`team.bound`), which `bound.values_of` reads.
- A value does not depend on how the work was shared out: every element of a product is one chain of fused
  multiply-adds, k ascending, in every shape of tile (`machine.tile`), and no loop is compiled with fastmath.

Where to find what: `cells` the mathematics, `machine` what it runs on; between them `operands` names what a pass reads
and writes, `stages` runs a cell's equations over rows of numbers, `phases` makes of a cell's list of phases what a
kernel calls, `products` packs its weights, `loop` is the time loop, `stack` steps of all layers, `loop_gradient` and
`weight_gradient` the way back, `rows` lists rows, `dropout` is what stands between layers.
"""
