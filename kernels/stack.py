"""One time step of a whole stack of layers of one direction in one call: what streaming asks for."""

from .loop import States, project_inputs, step
from .machine.formats import storage
from .machine.gemm import vectors_of
from .machine.jit import kernel
from .machine.matrix import Matrix, Range, flat
from .machine.partition import next_block, num_claims
from .machine.sync import barrier, join, post_call
from .products import Sizes, weights_of


@kernel
def step_stack(cell, sizes, offsets, packed, zeros, grain, threads, arrays, rank, size, sync):
    """hy and cy (layers, N, ...) of x (N, I), hx and cx.

    No more than so many `threads` take part. `arrays` are x, hx, cx, hy, cy, room for one layer's gates, and the row numbers 0..N-1. `post_call` finds rank, size
    and sync by their names: they stay flat.
    """
    post_call(sync, rank, size)
    team = join(sync, rank, min(size, threads))
    x, hx, cx, hy, cy, gates, numbers = arrays
    batch_size, width = x.shape[0], cy.shape[2]
    pre_activations = Matrix(gates, numbers, 0, gates.size // max(batch_size, 1))
    inputs, rows = Matrix(flat(x), numbers, 0, x.shape[1]), Range(0, batch_size)
    for layer in range(offsets.shape[0]):
        own = Sizes(sizes.hidden, sizes.output, sizes.input if layer == 0 else sizes.output)
        weights, at = weights_of(cell, own, packed, offsets[layer], zeros, team.rank), layer * batch_size
        outputs = Matrix(flat(hy), numbers, at * sizes.output, sizes.output)
        states = States(
            Matrix(flat(hx), numbers, at * sizes.output, sizes.output), outputs,
            Matrix(flat(cx), numbers, at * width, width), Matrix(flat(cy), numbers, at * width, width)
        )
        count = vectors_of(storage(packed), sizes.hidden)
        for claim in range(num_claims(count, grain, team)):
            vectors = next_block(claim, count, grain, team)
            project_inputs(cell, own, weights, inputs, pre_activations, rows, vectors)
        if grain > 0:
            barrier(team)
        step(cell, own, weights, pre_activations, states, rows, grain, team)
        inputs = outputs
        if layer + 1 < offsets.shape[0]:
            barrier(team)
    barrier(team)
