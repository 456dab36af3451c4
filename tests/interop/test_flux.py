"""from_flux and to_flux: the fields of cells, as Flux's documentation has them, run by the reference."""

import numpy as np
import pytest
import reference
from foreign import assert_outputs, assert_same_bits, assert_same_network, net_of, problem_of
from refused import refusals

import rnnkit
from rnnkit.interop import from_flux, to_flux

GATES = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4}


def run_flux(cells, problem):
    """y and the last states: Flux's gates are in the order of the reference, its one bias stands outside of a reset."""
    weights = {}
    for layer, cell in enumerate(cells):
        names = f"weight_ih_l{layer}", f"weight_hh_l{layer}", f"bias_ih_l{layer}"
        weights |= zip(names, (cell["Wi"], cell["Wh"], cell.get("b", cell.get("bias"))), strict=True)
    sizes = dict(hidden_size=problem.hidden_size, num_layers=problem.num_layers)
    found = reference.forward(weights, problem.x, problem.hx, problem.cx, mode=problem.mode, **sizes)
    return found.y, [found.hy, found.cy]


def fields_of(problem):
    """Column-major arrays, as they come from Julia."""
    rng, fields, size, rows = np.random.default_rng(1), [], problem.input_size, GATES[problem.mode] * 5
    for _ in range(problem.num_layers):
        shapes = {"Wi": (rows, size), "Wh": (rows, 5)}
        shapes |= {"b" if problem.mode == "gru" else "bias": (rows,)} if problem.bias == "input" else {}
        fields.append({n: np.asfortranarray(0.5 * rng.standard_normal(s), problem.dtype) for n, s in shapes.items()})
        size = 5
    return fields


@pytest.mark.parametrize("bias", ["input", "none"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", GATES)
def test_cells_become_their_network(mode, dtype, bias):
    problem, activation = problem_of(mode=mode, dtype=dtype, bias=bias), "relu" if mode == "rnn_relu" else None
    cells = fields_of(problem)
    net = from_flux(cells, activation=activation)
    assert net.desc == problem.desc
    assert_outputs(net, problem, *run_flux(cells, problem))
    for cell, again in zip(cells, to_flux(net), strict=True):
        assert cell.keys() == again.keys()
        for name, array in cell.items():
            assert_same_bits(name, again[name], array)
    net = net_of(problem)
    assert_same_network(from_flux(to_flux(net), activation=activation), net)


@pytest.mark.parametrize("bias", ["both", "recurrent"])
@pytest.mark.parametrize("mode", GATES)
def test_two_biases_are_added(mode, bias):
    problem = problem_of(mode=mode, bias=bias)
    for name, view in problem.views.items():
        if mode == "gru" and name.startswith("bias_hh"):
            view[-problem.hidden_size :] = 0
    assert_outputs(net_of(problem), problem, *run_flux(to_flux(net_of(problem)), problem))


def ones(*shape):
    return np.ones(shape, "f4")


def cell_of(drop=(), **changes):
    """The fields of a GRUCell(3 => 2)."""
    fields = {"Wi": ones(6, 3), "Wh": ones(6, 2), "b": ones(6), **changes}
    return {name: array for name, array in fields.items() if name not in drop}


def test_one_cell_is_a_stack_of_one_and_the_bias_has_either_name_or_none():
    net = from_flux(cell_of())
    assert net.desc == rnnkit.RNNDescriptor("gru", 3, 2, bias="input")
    assert_same_network(from_flux([cell_of()]), net)
    assert_same_network(from_flux(cell_of(drop=["b"], bias=ones(6))), net)
    for fields in (cell_of(b=False), cell_of(drop=["b"]), cell_of(b=np.bool_(False))):
        assert from_flux(fields).desc.bias == "none"


def test_weights_are_copies():
    fields = cell_of()
    net = from_flux(fields)
    fields["Wi"][:] = 2
    assert (net.weights == 1).all()
    for array in to_flux(net)[0].values():
        array[:] = 3
    assert (net.weights == 1).all()


def gru_with_bias_inside():
    net = rnnkit.GRU(3, 2, num_layers=2, seed=0)
    net.views["bias_hh_l0"][4:] = 0
    net.views["bias_hh_l1"][4:] = [0, -0.5]
    return net


V3 = cell_of(**{"Wh_h\u0303": ones(2, 2)})
OTHER_GRUS = "rnnkit.GRU | reset_after=True | reset_after=False | Keras | ONNX | r*h | Wh"
VANILLA = cell_of(Wi=ones(2, 3), Wh=ones(2, 2))
FROM_FLUX = [
    (lambda: from_flux(V3), f"cells | RNNCell | GRUCell | LSTMCell | GRUv3Cell | {OTHER_GRUS}"),
    (lambda: from_flux(cell_of(drop=["Wh"])), "cells | 2 | missing: Wh"),
    (lambda: from_flux(cell_of(state0=ones(2))), "cells | 4 | gru | unknown: state0"),
    (lambda: from_flux(cell_of(bias=ones(6))), "cells | one | b | bias"),
    (lambda: from_flux(cell_of(Wi=ones(3, 6))), 'cells["Wi"] | (3*hidden_size=6, input_size=6) | (3, 6)'),
    (lambda: from_flux(cell_of(Wh=ones(2, 6))), 'cells["Wh"] | 6 | 18 | 24 | 1 | 3 | 4 | hidden_size=6 | 2'),
    (lambda: from_flux(cell_of(Wh=ones(6))), 'cells["Wh"] | (gates*hidden_size, hidden_size) | (6,)'),
    (lambda: from_flux(cell_of(b=ones(2))), 'cells["bias"] | (3*hidden_size=6,) | (2,)'),
    (lambda: from_flux(cell_of(b=np.ones(6))), 'TypeError cells["bias"] | float32 | cells["Wi"] | float64'),
    (lambda: from_flux(cell_of(b=np.ones(6, "f2"))), 'TypeError cells["bias"] | float32 | float64 | float16'),
    (lambda: from_flux([cell_of()] * 2), 'cells[1]["Wi"] | (3*hidden_size=6, input_size=2) | (6, 3)'),
    (lambda: from_flux([cell_of(), cell_of(drop=["b"])]), "cells[1] | 2 | gru | missing: bias"),
    (lambda: from_flux(cell_of(), activation="relu"), 'activation | mode="gru" | relu'),
    (lambda: from_flux(VANILLA, activation="elu"), "activation | tanh | relu | elu"),
    (lambda: from_flux([]), "TypeError cells | mapping | list"),
    (lambda: from_flux("Wi"), "TypeError cells | mapping | list | str"),
]
TO_FLUX = [
    (lambda: to_flux(rnnkit.GRU(3, 2, bidirectional=True)), "net.desc.bidirectional | False | True | Flux"),
    (lambda: to_flux(rnnkit.LSTM(3, 2, proj_size=1)), "net.desc.proj_size | None | 1 | Flux"),
    (lambda: to_flux(rnnkit.LSTM(3, 2, cell_clip=(-1, 1))), "net.desc.cell_clip | None | (-1.0, 1.0) | Flux"),
    (lambda: to_flux(rnnkit.GRU(3, 2, reset_after=False)), "net.desc.reset_after | True | False | Flux"),
    (lambda: to_flux(rnnkit.GRU(2, 2, input_mode="skip")), "net.desc.input_mode | linear | skip | Flux"),
    (lambda: to_flux(gru_with_bias_inside()), "net.views | 0 | rows of n | bias_hh | 0.5 | Flux | r"),
]


@refusals(from_flux=FROM_FLUX, to_flux=TO_FLUX)
def test_unfit_cells_and_networks_are_refused(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()
