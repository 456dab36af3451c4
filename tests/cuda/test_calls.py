"""The same problems on the GPU as on the host: on the stand-ins everywhere, and on a device where there is one."""

import sys
from itertools import product

import gpu as on_gpu
import numpy as np
import pytest
from combinations import nightly, pairs
from gpu import BOUNDS, CELLS, LENGTHS, assert_as_on_the_host, fetched, inside, moved
from messages import says
from problems import Problem, smooth
from tolerances import GRADIENTS, OUTPUTS, assert_close_on_gpu, assert_gradient_close_on_gpu, assert_same_results

import rnnkit

TWO_LAYERS = Problem(mode="lstm", num_layers=2, bidirectional=True, lengths=(2, 0, 4))
MODES = "rnn_relu", "rnn_tanh", "lstm", "gru"
ON_BOUNDS = [((0.0, 1.0), 0.0, False), ((0.0, 1.0), 0.5, True), ((-1.0, 0.0), 0.0, False), ((-1.0, 0.0), -0.5, True)]
EACH_MODE = pairs([nightly("rnn_relu"), "rnn_tanh", "lstm", "gru"], ["float32", "float64"])
# Sizes around those of tiles, where float32 takes the algorithm for small layers too; skipped input; extreme sizes.
TILES = product(("rnn_tanh", "lstm", "gru"), (1, 15, 16, 17, 33, 65), ("float32", "float64"))
EXTREMES = product(("lstm", "gru"), (dict(seq_len=0), dict(batch_size=0), dict(seq_len=1, batch_size=1)))
SIZES = [
    *(dict(mode=mode, hidden_size=size, input_size=size, dtype=dtype, seq_len=9) for mode, size, dtype in TILES),
    *(dict(mode=mode, input_mode="skip", input_size=4, bidirectional=both) for mode in MODES for both in (False, True)),
    *(dict(mode=mode) | sizes for mode, sizes in EXTREMES),
]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_equals_the_host(gpu, cell, directions, lengths):
    options = dict(num_layers=2, bidirectional=directions == 2, lengths=LENGTHS[lengths])
    assert_as_on_the_host(inside(smooth(Problem(**CELLS[cell], **options))))


@pytest.mark.parametrize("lengths", [None, (2, 0, 4)])
def test_initial_cells_are_clipped_first(gpu, lengths):
    """cuDNN clips them first, and their gradient passes where they were inside."""
    problem = Problem(mode="lstm", num_layers=2, cell_clip=BOUNDS, lengths=lengths)
    w, x, hx, cx = problem.inputs
    runs = np.array(problem.lengths or [4] * 3) > 0  # a sequence without steps keeps its cells as they are
    clipped = np.where(runs[:, None], np.clip(cx, *BOUNDS), cx)
    expected = rnnkit.forward(problem.desc, w, x, hx, clipped, lengths=lengths)
    gradients = rnnkit.backward(problem.desc, w, expected.workspace, *problem.cotangents)
    found, found_gradients, _ = on_gpu.step(problem)
    on_gpu.assert_outputs_as_on_the_host(found, expected, "float64")
    passes = (cx == clipped) & ~np.isin(clipped, BOUNDS)
    assert_gradient_close_on_gpu("dcx", found_gradients.dcx, gradients.dcx * passes, "float64")
    assert_gradient_close_on_gpu("dw", found_gradients.dw, gradients.dw, "float64")


def test_bounds_of_a_clip_are_float32(gpu):
    """As cuDNN has them in every dtype: a bound that no float32 number is becomes the nearest one."""
    low, high = -0.1, 0.3
    problem = Problem(mode="lstm", cell_clip=(low, high), seq_len=1)
    for result in (on_gpu.step(problem)[0], on_gpu.infer(problem)):
        assert (result.cy.min(), result.cy.max()) == (np.float32(low), np.float32(high))


@pytest.mark.parametrize(("bounds", "cell", "passes"), ON_BOUNDS)
def test_gradient_passes_strictly_inside_the_clip(gpu, bounds, cell, passes):
    """Without weights a cell is half of the one before."""
    desc = rnnkit.RNNDescriptor("lstm", 3, 4, cell_clip=bounds, dtype="float64")
    w, x, cells = np.zeros(rnnkit.num_weights(desc)), np.ones((1, 2, 3)), np.ones((1, 2, 4))
    w, x, cx, dcy = moved(w, x, cell * cells, cells)
    workspace = rnnkit.forward(desc, w, x, None, cx).workspace
    assert rnnkit.backward(desc, w, workspace, dcy=dcy).dw.get().any() == passes


@pytest.mark.parametrize("bias", ["both", "input", "recurrent", "none"])
@pytest.mark.parametrize(("mode", "dtype"), EACH_MODE)
def test_every_bias_equals_the_host(gpu, mode, bias, dtype):
    assert_as_on_the_host(smooth(Problem(mode=mode, num_layers=2, bias=bias, dtype=dtype, lengths=(4, 1, 3))))


@pytest.mark.parametrize("options", SIZES, ids=str)
def test_sizes_and_skipped_input_equal_the_host(gpu, options):
    problem = Problem(num_layers=2, **options)
    assert_as_on_the_host(smooth(problem) if problem.mode == "rnn_relu" else problem)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_missing_states_and_gradients_are_zeros(gpu, lengths):
    problem = Problem(mode="lstm", num_layers=2, states=False, lengths=LENGTHS[lengths])
    assert_as_on_the_host(problem)
    expected = problem.forward().workspace
    workspace = on_gpu.forward(problem).workspace
    dhy = np.zeros_like(problem.dhy)
    found = fetched(rnnkit.backward(problem.desc, *moved(problem.w), workspace, dhy=moved(dhy)[0]))
    for name, zeros in rnnkit.backward(problem.desc, problem.w, expected, dhy=dhy)._asdict().items():
        assert np.array_equal(getattr(found, name), zeros), name


@pytest.mark.parametrize("kind", ["tf32", "float16", "bfloat16"])
@pytest.mark.parametrize("lengths", [None, (2, 0, 4)])
def test_coarser_arithmetic_stays_near_float32(gpu, kind, lengths):
    problem = Problem(mode="lstm", dtype="float32", lengths=lengths)
    desc = rnnkit.RNNDescriptor("lstm", 3, 4, **(dict(allow_tf32=True) if kind == "tf32" else dict(dtype=kind)))
    w, x, hx, cx, dy = moved(*(array.astype(desc.np_dtype) for array in (*problem.inputs, problem.dy)))
    found = rnnkit.forward(desc, w, x, hx, cx, lengths=lengths)
    gradients = rnnkit.backward(desc, w, found.workspace, dy)
    assert {array.dtype for array in (*found[:3], *gradients)} == {desc.np_dtype}
    expected = problem.forward()
    on_gpu.assert_outputs_as_on_the_host(fetched(found), expected, kind)
    expected = rnnkit.backward(problem.desc, problem.w, expected.workspace, problem.dy)
    on_gpu.assert_gradients_as_on_the_host(fetched(gradients), expected, kind)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_clip_in_half_precision_stays_near_float32(gpu, dtype):
    problem = Problem(mode="lstm", dtype="float32", cell_clip=BOUNDS)
    desc = rnnkit.RNNDescriptor("lstm", 3, 4, cell_clip=BOUNDS, dtype=dtype)
    w, x, dcy = moved(*(array.astype(desc.np_dtype) for array in (problem.w, problem.x, problem.dcy)))
    found = rnnkit.forward(desc, w, x)
    gradients = rnnkit.backward(desc, w, found.workspace, dcy=dcy)
    expected = rnnkit.forward(problem.desc, problem.w, problem.x)
    assert_close_on_gpu("cy", found.cy.get(), expected.cy, dtype)
    assert gradients.dw.dtype == desc.np_dtype
    assert (dcy.get() == problem.dcy.astype(desc.np_dtype)).all(), "dcy has been changed"


def test_padding_is_never_read(gpu):
    expected, padded = on_gpu.step(TWO_LAYERS), TWO_LAYERS.twin()
    padded.x[~padded.valid] = padded.dy[~padded.valid] = np.nan
    found = on_gpu.step(padded)
    assert_same_results(found[0], expected[0], OUTPUTS)
    assert_same_results(found[1], expected[1], GRADIENTS)


def test_strided_and_shifted_arrays_give_the_same_bits(gpu):
    problem = Problem(mode="lstm", num_layers=2)
    expected = on_gpu.step(problem)
    cupy = sys.modules["cupy"]

    def shifted(array):
        room = cupy.zeros(array.size + 1, array.dtype)
        room[1:] = cupy.asarray(array.reshape(-1))
        return room[1:].reshape(array.shape)

    w, hx, cx, dhy, dcy = map(shifted, (problem.w, problem.hx, problem.cx, problem.dhy, problem.dcy))
    x, dy = (cupy.asarray(a.swapaxes(0, 1).copy()).swapaxes(0, 1) for a in (problem.x, problem.dy))
    assert not x.flags.c_contiguous
    forward = rnnkit.forward(problem.desc, w, x, hx, cx)
    dw = shifted(np.ones_like(problem.w))
    gradients = rnnkit.backward(problem.desc, w, forward.workspace, dy, dhy, dcy, dw=dw)
    assert_same_results(fetched(forward), expected[0], OUTPUTS)
    assert_same_results(fetched(gradients), expected[1], GRADIENTS[:3])
    assert gradients.dw is dw
    assert_gradient_close_on_gpu("dw", dw.get(), expected[1].dw + 1, "float64")


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("lengths", [None, (2, 0, 4)])
def test_backward_may_run_any_number_of_times(gpu, dropout, lengths):
    problem = TWO_LAYERS.twin(dropout=dropout, lengths=lengths)
    _, first, workspace = on_gpu.step(problem)
    for _ in range(2):
        assert_same_results(on_gpu.backward(problem, workspace), first, GRADIENTS)
    (dw,) = moved(np.ones_like(problem.w))
    for _ in range(2):
        on_gpu.backward(problem, workspace, dw=dw)
    assert_gradient_close_on_gpu("dw", dw.get(), 2 * first.dw + 1, "float64")


def test_inputs_are_not_changed(gpu):
    problem = TWO_LAYERS
    w, x, hx, cx, dy, dhy, dcy = arrays = moved(*problem.inputs, *problem.cotangents)
    workspace = rnnkit.forward(problem.desc, w, x, hx, cx, lengths=problem.lengths).workspace
    rnnkit.backward(problem.desc, w, workspace, dy, dhy, dcy)
    for found, expected in zip(arrays, (*problem.inputs, *problem.cotangents), strict=True):
        assert found.get().tobytes() == expected.tobytes()


# A ReLU network that shows what dropout does: a layer of ones, and one that passes on what it gets.
SHOWN = Problem(mode="rnn_relu", hidden_size=64, num_layers=2, bias="input", seq_len=50, batch_size=8, states=False)


def shown(dropout, seed):
    desc = SHOWN.twin(dropout=dropout).desc
    w = np.zeros_like(SHOWN.w)
    views = rnnkit.weight_views(desc, w)
    views["bias_ih_l0"][:] = 1
    views["weight_ih_l1"][:] = np.eye(SHOWN.hidden_size)
    w, x = moved(w, SHOWN.x)
    result = rnnkit.forward(desc, w, x, seed=seed)
    return result, rnnkit.backward(desc, w, result.workspace, *moved(np.ones_like(result.y.get()))), views


@pytest.mark.parametrize("dropout", [0.3, 0.75])
def test_dropout_drops_and_scales_by_the_seed(gpu, dropout):
    """Outputs are dropped or scaled, the gradient takes the same ones, and the seed decides which."""
    result, gradients, _ = shown(dropout, 1)
    y = result.y.get()
    scale = 1 / (1 - dropout)
    kept = y > 0
    assert_close_on_gpu("y", y, kept * scale, "float32")
    assert abs(kept.mean() - (1 - dropout)) < 5 * np.sqrt(dropout * (1 - dropout) / y.size)  # five standard deviations
    # Each step and row has a mask of its own.
    assert len(np.unique(kept.reshape(-1, kept.shape[2]), axis=0)) == kept[..., 0].size
    bias = rnnkit.weight_views(result.workspace.desc, gradients.dw.get())["bias_ih_l0"]
    assert_gradient_close_on_gpu("dw", bias, scale * kept.sum((0, 1)), "float32")  # as cuDNN takes the probability
    again = shown(dropout, 1)[0]
    assert np.array_equal(again.y.get(), y) and not np.array_equal(shown(dropout, 2)[0].y.get(), y)


def test_drawn_seed_repeats_the_run(gpu):
    first = shown(0.5, None)[0]
    assert np.array_equal(shown(0.5, first.workspace.seed)[0].y.get(), first.y.get())
    assert shown(0.5, None)[0].workspace.seed != first.workspace.seed


def test_inference_drops_nothing(gpu):
    problem = TWO_LAYERS.twin(dropout=0.5)
    assert_same_results(on_gpu.infer(problem), on_gpu.infer(TWO_LAYERS), OUTPUTS)


def test_states_may_change_after_forward(gpu):
    problem = Problem(mode="lstm")
    expected = on_gpu.step(problem)[1]
    w, x, hx, cx = moved(*problem.inputs)
    workspace = rnnkit.forward(problem.desc, w, x, hx, cx).workspace
    hx[...] = 7
    cx[...] = 7
    assert_same_results(on_gpu.backward(problem, workspace), expected, GRADIENTS)


def test_workspace_memory_is_reused(gpu):
    problem = TWO_LAYERS.twin(lengths=None)
    arrays = moved(*problem.inputs)
    first = rnnkit.forward(problem.desc, *arrays)
    reserve, y = first.workspace.record.reserve.data.ptr, first.y.data.ptr
    second = rnnkit.forward(problem.desc, *arrays, workspace=first.workspace)
    assert (second.workspace.record.reserve.data.ptr, second.y.data.ptr) == (reserve, y)
    with pytest.raises(rnnkit.WorkspaceError):
        on_gpu.backward(problem, first.workspace)
    on_gpu.backward(problem, second.workspace)
    wide = problem.twin(input_size=8)
    with pytest.raises(ValueError, match=says("forward: x", "workspace")):
        rnnkit.forward(wide.desc, *moved(wide.w), second.y, workspace=second.workspace)


def test_workspace_holds_its_views_and_no_copies(gpu):
    """Whatever its kind, and through whichever library it came."""
    cupy = sys.modules["cupy"]
    result = on_gpu.forward(Problem(mode="lstm"))
    holds, y, hx = result.workspace.memory.arena.holds, result.y, result.workspace.record.hx
    for view in (y, y[1:2], y[::-1, :, 1::2], y.reshape(-1)[-1:], y.view(np.uint8), y.swapaxes(0, 2), hx, hx[0]):
        assert holds(view)
    assert holds(cupy.from_dlpack(y[1:]))
    others = moved(np.ones(3), np.ones((3, 2))[:, ::2])
    for other in (*others, y.copy(), result.hy, result.cy, y[1:][:, 1:1]):
        assert not holds(other)


def test_states_of_the_last_layer_alone_are_readable(gpu):
    expected = TWO_LAYERS.forward().workspace
    workspace = on_gpu.forward(TWO_LAYERS).workspace
    for direction in range(2):
        found = workspace.hidden(1, direction).get()
        assert_close_on_gpu("hidden", found, expected.hidden(1, direction), "float64")
    with pytest.raises(rnnkit.BackendError, match=says("hidden:", "hidden(1)", "hidden_l0", "cuDNN")):
        workspace.hidden(0)
    with pytest.raises(rnnkit.BackendError, match=says("cell:", "cell_2", "cuDNN")):
        workspace.cell(1)


@pytest.mark.parametrize("cell", CELLS)
def test_plan_equals_the_host(gpu, cell):
    problem = inside(smooth(Problem(**CELLS[cell], num_layers=2)))
    w, x, hx, cx = moved(*problem.inputs)
    plan = rnnkit.prepare(problem.desc, w)
    w[...] = 0  # later changes do not reach it
    expected = problem.infer()
    on_gpu.assert_outputs_as_on_the_host(fetched(plan.infer(x, hx, cx)), expected, "float64")
    for t in range(problem.seq_len):
        y, hx, cx = plan.step(x[t], hx, cx)
        assert_close_on_gpu("y", y.get(), expected.y[t], "float64")
    assert_close_on_gpu("hy", hx.get(), expected.hy, "float64")


def test_network_moves_between_devices(gpu, tmp_path):
    net = rnnkit.LSTM(3, 4, num_layers=2, seed=0)
    x = np.ones((5, 2, 3), "float32")
    expected = net.infer(x).y
    net = net.to(sys.modules["cupy"])
    result = net.forward(*moved(x))
    assert_close_on_gpu("y", result.y.get(), expected, "float32")
    net.weights[...] = 0
    net.views["bias_ih_l0"][...] = 1
    assert (net.views["bias_ih_l0"].get() == 1).all()
    net.save(tmp_path / "net")
    assert (rnnkit.load(tmp_path / "net").weights == net.weights.get()).all()
    cupy, net = sys.modules["cupy"], rnnkit.GRU(3, 4, seed=0)
    net.arrays = {"readout": np.ones(3), "words": np.array(["a"])}
    there = net.to(cupy)
    for array in (there.weights, there.arrays["readout"], there.copy().weights, there.astype("float64").weights):
        assert isinstance(array, cupy.ndarray)
    assert type(there.arrays["words"]) is np.ndarray  # a GPU has no text
    assert there == net == there.to(np) and there.to(cupy).weights is there.weights
    back = there.astype("float64").to(np)
    assert type(back.weights) is np.ndarray and back == net.astype("float64")


def test_network_copies_stay_on_its_device(gpu):
    cupy = sys.modules["cupy"]
    if gpu != "stand-in" and cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    there = rnnkit.GRU(3, 4, seed=0).to(cupy)
    with cupy.cuda.Device(1):
        assert there.copy().weights.device.id == there.astype("float64").weights.device.id == there.weights.device.id
        assert there.prepare()._flat.device.id == there.weights.device.id == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_refused_on_the_host(dtype):
    desc = rnnkit.RNNDescriptor("gru", 3, 4, dtype=dtype)
    w, x = rnnkit.init_weights(desc, seed=0), np.ones((2, 1, 3), desc.np_dtype)
    for call, arrays in ((rnnkit.forward, (w, x)), (rnnkit.infer, (w, x)), (rnnkit.prepare, (w,))):
        facts = "float32", "float64", "NumPy", dtype, "GPU"
        with pytest.raises(TypeError, match=says(f"{call.__name__}: desc.dtype", *facts)):
            call(desc, *arrays)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_saved(tmp_path, dtype):
    net = rnnkit.GRU(3, 4, dtype=dtype, seed=0)
    net.save(tmp_path / "net")
    twin = rnnkit.load(tmp_path / "net")
    assert twin == net and twin.weights.dtype == net.weights.dtype == net.desc.np_dtype
