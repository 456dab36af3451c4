"""A cell's forward equations in NumPy loops, from its declaration and the named weights alone: what the engine, its
products and the derivation of gradients are compared with. Everything is float64; gradients are central differences."""

import numpy as np

from rnnkit.cells import mean

STEP = 1e-5


def forward(net, x, hx, states, lengths=None, resets=None, inputs=None, noises=None):
    """y, hy and the final states, (L*D, N, H) each, of a network; `states` is a list of arrays like hx, `noises` has of
    each pseudo-layer what is drawn, (T, N, H) by name."""
    given = {name: np.broadcast_to(one, (*x.shape[:2], net.desc.hidden_size)) for name, one in (inputs or {}).items()}
    desc, views = net.desc, net.views
    seq_len, batch_size, _ = x.shape
    lengths = [seq_len] * batch_size if lengths is None else lengths
    hy, final = hx.copy(), [state.copy() for state in states]
    layer_input = x
    for layer in range(desc.num_layers):
        y = np.zeros((seq_len, batch_size, desc.num_directions * desc.hidden_size))
        for direction in range(desc.num_directions):
            index, suffix = layer * desc.num_directions + direction, f"_l{layer}" + "_reverse" * direction
            weights = {name.removesuffix(suffix): view for name, view in views.items() if name.endswith(suffix)}
            columns = slice(direction * desc.hidden_size, (direction + 1) * desc.hidden_size)
            for n in range(batch_size):
                own = hy[index, n], [state[index, n] for state in final]
                steps = range(lengths[n])
                for t in reversed(steps) if direction else steps:
                    if resets is not None and _anew(resets, t, n, direction, lengths[n]):
                        own = np.zeros_like(own[0]), [np.zeros_like(one) for one in own[1]]
                    drawn = noises[index] if noises else {}
                    beside = {name: one[t, n] for name, one in (given | drawn).items()}
                    own = step(desc.cell, weights | beside, layer_input[t, n], *own)
                    y[t, n, columns] = own[0]
                hy[index, n] = own[0]
                for state, value in zip(final, own[1], strict=True):
                    state[index, n] = value
        layer_input = y
    return layer_input, hy, final


def _anew(resets, t, n, reverse, length):
    """Whether the state is zero before step t: the reverse direction resets where it crosses from t + 1 to t."""
    if reverse:
        return t + 1 < length and bool(resets[t + 1, n])
    return bool(resets[t, n])


def step(cell, weights, x, h, states):
    """One step of one layer for one row, whose side inputs and noises stand with the weights: h and the states after.

    A gate is computed when a stage asks for it.
    """
    said, size = cell.declaration, h.size
    values = {"h_prev": h} | {f"{name}_prev": value for name, value in zip(said.states, states, strict=True)}
    values |= {one.name: weights[one.name] for one in said.given()}
    inputs = [gate.name for gate in said.gates if gate.input]
    recurrent = [gate.name for gate in said.gates if gate.multiplies is not None]

    def product(of, gate, names, vector):
        rows = slice(names.index(gate.name) * size, (names.index(gate.name) + 1) * size)
        bias = weights.get(f"bias_{of}")
        matrix, heads = weights[f"weight_{of}"][rows], gate.heads if of == "hh" else 1
        parts = zip(np.split(matrix, heads), np.split(vector, heads), strict=True)
        return np.concatenate([one @ own for one, own in parts]) + (bias[rows] if bias is not None else 0)

    def asked(name):
        if name not in values:
            gate = next(gate for gate in said.gates if name in (gate.name, gate.apart))
            of_x, of_r = 0.0, 0.0
            if gate.multiplies is not None and name == (gate.apart or gate.name):
                of_r = product("hh", gate, recurrent, values["h_prev" if gate.multiplies == "h" else gate.multiplies])
            if gate.input and name == gate.name:
                of_x = product("ih", gate, inputs, x)
            values[name] = of_x + of_r
        return values[name]

    for stage in said.equations:
        if stage.is_gradient:
            continue
        rows = zip(*(np.broadcast_to(asked(name), (size,)) for name in stage.reads), strict=True)
        found = results(stage.function, cell, list(rows))
        columns = [found] if len(stage.writes) == 1 else list(zip(*found, strict=True))
        values |= {name: np.array(column, float) for name, column in zip(stage.writes, columns, strict=True)}
    return values["h"], [values[name] for name in said.states]


def results(function, cell, rows):
    """What a stage returns for each unit of a row. A mean needs those of all: one more of them is known each time."""
    space, known = function.__globals__, []
    if space.get("mean") is not mean:
        return [function(cell, *map(float, row)) for row in rows]
    while True:
        terms = []

        def averaged(x, terms=terms):
            terms[-1].append(x)
            return known[len(terms[-1]) - 1] if len(terms[-1]) <= len(known) else 0.0

        space["mean"], found = averaged, []
        try:
            for row in rows:
                terms.append([])
                found.append(function(cell, *map(float, row)))
        finally:
            space["mean"] = mean
        if len(terms[0]) == len(known):
            return found
        known.append(sum(own[len(known)] for own in terms) / len(rows))


def differences(net, x, hx, states, cotangents, rng, **options):
    """By each of x, hx, the states and every block of the weights: a unit direction, and the slope in it."""
    dy, dhy, dstates = cotangents

    def loss():
        y, hy, final = forward(net, x, hx, states, **options)
        return (y * dy).sum() + (hy * dhy).sum() + sum((one * d).sum() for one, d in zip(final, dstates, strict=True))

    arrays = {"x": x, "hx": hx} | {f"state{number}": one for number, one in enumerate(states)} | dict(net.views)
    arrays |= options.get("inputs") or {}
    found = {}
    for name, array in arrays.items():
        direction = rng.choice([-1.0, 1.0], array.shape) * rng.uniform(0.5, 1.5, array.shape)
        direction /= np.sqrt((direction**2).sum())
        before, losses = array.copy(), []
        for sign in (1, -1, 2, -2):
            array[...] = before + sign * STEP * direction
            losses.append(loss())
        array[...] = before
        slope, wide = (losses[0] - losses[1]) / (2 * STEP), (losses[2] - losses[3]) / (4 * STEP)
        found[name] = direction, slope, abs(slope - wide)
    return found
