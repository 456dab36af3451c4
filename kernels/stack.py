"""One time step of a whole stack of layers of one direction in one call: what streaming asks for."""

from .loop import Sizes, States, project_inputs, step
from .machine.barrier import gather, meet, publish
from .machine.gemm import vectors_of
from .machine.jit import kernel
from .machine.matrix import Matrix, flat, part
from .machine.partition import claim, turns
from .products import BIAS, END, panels_of


@kernel
def step_stack(cell, sizes, table, packed, zeros, piece, x, hx, cx, hy, cy, gates, rows, member, members, sync):
    """hy and cy (layers, N, ...) of x (N, I), hx and cx; `gates` has room for one layer's, `rows` are 0..N-1."""
    publish(sync, member, members)
    members = gather(sync, member, members)
    batch_size = x.shape[0]
    stride = gates.size // max(batch_size, 1)
    pre_activations = Matrix(gates, rows, 0, stride)
    inputs = Matrix(flat(x), rows, 0, x.shape[1])
    for layer in range(table.shape[0]):
        places = table[layer]
        panels, bias = panels_of(packed, places), part(packed, places[BIAS], places[END])
        at = layer * batch_size
        hidden = Matrix(flat(hx), rows, at * sizes.output, sizes.output)
        outputs = Matrix(flat(hy), rows, at * sizes.output, sizes.output)
        cells = Matrix(flat(cx), rows, at * cy.shape[2], cy.shape[2])
        next_cells = Matrix(flat(cy), rows, at * cy.shape[2], cy.shape[2])
        own = Sizes(sizes.hidden, sizes.output, sizes.input if layer == 0 else sizes.output)
        for turn in range(turns(vectors_of(packed, sizes.hidden), piece, members)):
            first, last = claim(turn, vectors_of(packed, sizes.hidden), piece, member, members, sync)
            project_inputs(cell, own, inputs, panels, bias, pre_activations, 0, batch_size, first, last)
        if piece > 0:
            meet(sync, members)
        step(
            cell, own, panels, bias, zeros, pre_activations, States(hidden, outputs, cells, next_cells), 0,
            batch_size, piece, member, members, sync
        )
        inputs = outputs
        if layer + 1 < table.shape[0]:
            meet(sync, members)
    meet(sync, members)
