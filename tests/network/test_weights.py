"""The flat buffer: its layout written out by hand, and views, packing and initialisation that follow from it."""

import itertools
from math import sqrt

import numpy as np
import pytest
from messages import raises
from optional import needs
from traced import traced_bytes

from rnnkit import RNNDescriptor, init_weights, num_weights, pack_weights, weight_layout, weight_views
from rnnkit.descriptor import weights

TWO_LAYERS = RNNDescriptor("lstm", 3, 5, num_layers=2, bidirectional=True)


def every_layout():
    """Descriptors for all that decides the layout: mode, depth, directions, biases, input mode and projection."""
    modes, depths = ("rnn_relu", "rnn_tanh", "lstm", "gru"), (1, 3)
    biases, input_modes = ("both", "input", "recurrent", "none"), ("linear", "skip")
    for mode, depth, both, bias, input_mode in itertools.product(modes, depths, (False, True), biases, input_modes):
        for proj_size in (None, 2) if mode == "lstm" else (None,):
            input_size = 5 if input_mode == "skip" else 3
            options = dict(bias=bias, input_mode=input_mode, proj_size=proj_size)
            yield RNNDescriptor(mode, input_size, 5, depth, both, **options)


ALL = list(every_layout())
PYTORCH_HAS = [desc for desc in ALL if desc.input_mode == "linear" and desc.bias in ("both", "none")]


SKIP = RNNDescriptor("gru", 5, 5, num_layers=2, bidirectional=True, input_mode="skip", bias="input")
BY_HAND = [  # descriptor, size, and of each block its name, shape and start
    (
        TWO_LAYERS,
        1080,
        "weight_ih_l0 (20,3) 0 | weight_hh_l0 (20,5) 60"
        " | weight_ih_l0_reverse (20,3) 160 | weight_hh_l0_reverse (20,5) 220"
        " | weight_ih_l1 (20,10) 320 | weight_hh_l1 (20,5) 520"
        " | weight_ih_l1_reverse (20,10) 620 | weight_hh_l1_reverse (20,5) 820"
        " | bias_ih_l0 (20,) 920 | bias_hh_l0 (20,) 940 | bias_ih_l0_reverse (20,) 960 | bias_hh_l0_reverse (20,) 980"
        " | bias_ih_l1 (20,) 1000 | bias_hh_l1 (20,) 1020 | bias_ih_l1_reverse (20,) 1040"
        " | bias_hh_l1_reverse (20,) 1060",
    ),
    (
        RNNDescriptor("lstm", 3, 5, num_layers=2, proj_size=2, bias="recurrent"),
        240,
        "weight_ih_l0 (20,3) 0 | weight_hh_l0 (20,2) 60 | weight_hr_l0 (2,5) 100"
        " | weight_ih_l1 (20,2) 110 | weight_hh_l1 (20,2) 150 | weight_hr_l1 (2,5) 190"
        " | bias_hh_l0 (20,) 200 | bias_hh_l1 (20,) 220",
    ),
    (
        SKIP,
        660,
        "weight_hh_l0 (15,5) 0 | weight_hh_l0_reverse (15,5) 75 | weight_ih_l1 (15,10) 150 | weight_hh_l1 (15,5) 300"
        " | weight_ih_l1_reverse (15,10) 375 | weight_hh_l1_reverse (15,5) 525"
        " | bias_ih_l0 (15,) 600 | bias_ih_l0_reverse (15,) 615 | bias_ih_l1 (15,) 630 | bias_ih_l1_reverse (15,) 645",
    ),
    (RNNDescriptor("rnn_tanh", 3, 5, bias="none"), 40, "weight_ih_l0 (5,3) 0 | weight_hh_l0 (5,5) 15"),
]


@pytest.mark.parametrize(("desc", "size", "blocks"), BY_HAND, ids=["two layers", "projection", "skip", "no bias"])
def test_layout_is_that_written_by_hand(desc, size, blocks):
    found = [f"{block.name} {block.shape} {block.start}".replace(", ", ",") for block in weight_layout(desc)]
    assert found == blocks.split(" | ") and num_weights(desc) == size


@pytest.mark.parametrize("desc", ALL, ids=repr)
def test_views_tile_the_buffer_and_pack_fills_it(desc):
    w = np.arange(num_weights(desc), dtype=desc.dtype)
    views = weight_views(desc, w)
    assert list(views) == [block.name for block in weight_layout(desc)] and len(set(views)) == len(views)
    np.testing.assert_array_equal(np.concatenate([view.ravel() for view in views.values()]), w)
    for block in weight_layout(desc):
        view = views[block.name]
        assert view.shape == block.shape and view.flat[0] == block.start
        assert view.base is not None and np.shares_memory(view, w)
    np.testing.assert_array_equal(pack_weights(desc, dict(reversed(views.items()))), w, strict=True)


@pytest.mark.parametrize("desc", PYTORCH_HAS, ids=repr)
def test_names_and_shapes_are_those_of_pytorch(desc):
    torch = needs("torch")
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(desc.mode, torch.nn.RNN)
    options = {"bias": desc.bias == "both", "bidirectional": desc.bidirectional}
    options |= {"proj_size": desc.proj_size} if desc.projected else {}
    theirs = kind(desc.input_size, desc.hidden_size, desc.num_layers, **options).state_dict()
    assert {block.name: block.shape for block in weight_layout(desc)} == {k: tuple(v.shape) for k, v in theirs.items()}
    views = weight_views(desc, pack_weights(desc, theirs))
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(views[name], tensor.numpy())


def test_size_is_computed_without_the_layout():
    """2**31 - 1 units do not fit anywhere, and 10,000 layers have 80,000 blocks; both are arithmetic."""
    desc = RNNDescriptor("lstm", 2**31 - 1, 2**31 - 1, 10_000, bias="none")
    before = weights._layout.cache_info().misses
    assert num_weights(desc) == 10_000 * 2 * 4 * (2**31 - 1) ** 2
    assert weights._layout.cache_info().misses == before


def test_cache_of_many_layouts_is_bounded():
    for hidden_size in range(1, 701):
        weight_layout(RNNDescriptor("gru", 3, hidden_size))
    assert weights._layout.cache_info().currsize < 100


def test_weights_beyond_the_address_space_are_refused():
    desc = RNNDescriptor("rnn_tanh", 1, 2**31 - 1, 3, bias="none")
    size = 4 * ((2**31 - 1) + 5 * (2**31 - 1) ** 2)
    with raises(MemoryError, f"init_weights: desc | {2**63 - 1} | bytes | {size}"):
        init_weights(desc)
    with pytest.raises(MemoryError, match="Unable to allocate 1.00 EiB"):
        init_weights(RNNDescriptor("rnn_tanh", 1, 2**29, bias="none"))


def test_init_takes_the_memory_of_the_buffer_alone():
    desc = RNNDescriptor("gru", 500, 500)
    _, peak = traced_bytes(lambda: init_weights(desc, seed=0))
    w = init_weights(desc, seed=0)
    assert w.nbytes < peak < w.nbytes + (1 << 20)  # 6 MB, and a block of 0.5 MB in float64
    np.testing.assert_array_equal(w, np.random.default_rng(0).uniform(-(500**-0.5), 500**-0.5, w.size).astype("f4"))


@pytest.mark.parametrize("proj_size", [None, 7])
def test_init_is_uniform_up_to_the_bound(proj_size):
    mode = "gru" if proj_size is None else "lstm"
    desc = RNNDescriptor(mode, 30 if proj_size is None else 60, 40, proj_size=proj_size)
    w, bound = init_weights(desc, seed=3)[:8640], 1 / sqrt(40)
    assert w.dtype == np.float32 and w.flags.c_contiguous and w.flags.writeable
    assert np.abs(w).max() <= np.float32(bound)
    # 8640 draws: each tenth of the range holds 864 of them on average, with a standard deviation of 28.
    counts, _ = np.histogram(w, bins=10, range=(-bound, bound))
    assert counts.sum() >= 8638 and counts.min() > 700 and counts.max() < 1030


@pytest.mark.parametrize(("seed", "error"), [("a", TypeError), (1.5, TypeError), (-1, ValueError)])
def test_seed_that_numpy_refuses_is_refused(seed, error):
    with raises(error, "init_weights: seed | numpy.random.default_rng"):
        init_weights(RNNDescriptor("gru", 3, 5), seed)


def test_init_depends_on_the_seed_alone():
    single, double = (RNNDescriptor("gru", 3, 5, dtype=dtype) for dtype in ("float32", "float64"))
    np.testing.assert_array_equal(init_weights(single, seed=7), init_weights(single, seed=7))
    np.testing.assert_array_equal(init_weights(single, seed=7), init_weights(double, seed=7).astype("float32"))
    assert (init_weights(single, seed=7) != init_weights(single, seed=8)).all()
    assert (init_weights(single) != init_weights(single)).any()
    generator = np.random.default_rng(7)
    np.testing.assert_array_equal(init_weights(single, seed=generator), init_weights(single, seed=7))


def test_pack_copies_and_takes_array_likes():
    desc = RNNDescriptor("rnn_tanh", 1, 2, bias="none", dtype="float64")
    hidden = np.asfortranarray([[3.0, 4.0], [5.0, 6.0]])
    w = pack_weights(desc, {"weight_ih_l0": [[1.0], [2.0]], "weight_hh_l0": hidden})
    assert w.tolist() == [1, 2, 3, 4, 5, 6]
    hidden[:] = 0
    assert w.tolist() == [1, 2, 3, 4, 5, 6]


def test_pack_takes_the_parameters_of_a_module():
    """They require a gradient, and a tensor that does refuses to become an array."""
    torch = needs("torch")
    module = torch.nn.LSTM(3, 5, 2, bidirectional=True)
    named = dict(module.named_parameters())
    assert all(parameter.requires_grad for parameter in named.values())
    w = pack_weights(TWO_LAYERS, named)
    np.testing.assert_array_equal(w, pack_weights(TWO_LAYERS, module.state_dict()))
    assert all(parameter.requires_grad for parameter in named.values())


GRU = RNNDescriptor("gru", 3, 2)


class Unwilling:
    """Refuses to become an array as CuPy's arrays and PyTorch's tensors do."""

    def __init__(self, error):
        self.error = error

    def __array__(self, dtype=None, copy=None):
        raise self.error


def blocks(**changed):
    named = {name: np.zeros(shape, np.float32) for name, shape, _ in weight_layout(GRU)}
    return {name: array for name, array in (named | changed).items() if array is not None}


BIAS, CAST = 'named["bias_ih_l0"]', 'float32 | float64 | named["bias_ih_l0"].astype("float32")'
ON_GPU, CONJUGATE = (
    "can't convert cuda:0 device type tensor",
    "Can't call numpy() on Tensor that has conjugate bit set",
)
WRONG_SHAPES = blocks(weight_ih_l0=np.zeros((3, 6), "f4"), bias_ih_l0=np.zeros(5, "f4"))
FOUR = "named | 4 names | weight_layout(desc)"
PACK_REFUSED = [
    ([], TypeError, "named | mapping | list"),
    (blocks(bias_hh_l0=None), ValueError, f"{FOUR} | 3 names | missing: bias_hh_l0"),
    (blocks(bias=1, kernel=2), ValueError, f"{FOUR} | 6 names | unknown: bias, kernel"),
    (
        blocks(weight_ih_l0=None, bias_ih_l0=None, bias=1),
        ValueError,
        f"{FOUR} | 3 names | missing: weight_ih_l0, bias_ih_l0 | unknown: bias",
    ),
    (WRONG_SHAPES, ValueError, "named | weight_layout(desc) | weight_ih_l0 (3, 6) | (6, 3) | bias_ih_l0 (5,) | (6,)"),
    (blocks(bias_ih_l0=np.zeros(6)), TypeError, f"{BIAS} | {CAST}"),
    (blocks(bias_ih_l0=np.ma.zeros(6, "f4")), TypeError, f"{BIAS} | numpy.ma.MaskedArray"),
    (blocks(bias_ih_l0=[0.0] * 6), TypeError, f"{BIAS} | {CAST}"),
    (blocks(bias_ih_l0=Unwilling(TypeError(ON_GPU))), TypeError, f"{BIAS} | host | {ON_GPU}"),
    (blocks(bias_ih_l0=Unwilling(RuntimeError(CONJUGATE))), ValueError, f"{BIAS} | host | {CONJUGATE}"),
    (blocks(bias_ih_l0=[[1.0], [1.0, 2.0]]), ValueError, f"{BIAS} | host | setting an array element"),
]


@pytest.mark.parametrize(("named", "kind", "text"), PACK_REFUSED)
def test_pack_refuses_wrong_blocks(named, kind, text):
    with raises(kind, f"pack_weights: {text}"):
        pack_weights(GRU, named)


VIEWS_REFUSED = [
    ([0.0] * 42, TypeError, "array | list"),
    (np.ma.zeros(42, "f4"), TypeError, "numpy.ma.MaskedArray | w.filled(0)"),
    (np.zeros(42), TypeError, 'float32 | float64 | w.astype("float32")'),
    (np.zeros(41, "f4"), ValueError, "(num_weights=42,) | (41,)"),
    (np.zeros((42, 1), "f4"), ValueError, "(num_weights=42,) | (42, 1)"),
    (np.zeros(84, "f4")[::2], ValueError, "C-contiguous | (8,) | w.copy()"),
]


@pytest.mark.parametrize(("w", "kind", "text"), VIEWS_REFUSED)
def test_views_refuse_a_wrong_buffer(w, kind, text):
    with raises(kind, f"weight_views: w | {text}"):
        weight_views(GRU, w)


@pytest.mark.parametrize("function", [num_weights, weight_layout, weight_views, init_weights, pack_weights])
def test_desc_that_is_no_descriptor_is_refused(function):
    arguments = {weight_views: [np.zeros(1)], pack_weights: [{}]}.get(function, [])
    for desc, name in (("lstm", "str"), ({}, "dict"), (None, "NoneType")):
        with raises(TypeError, f"{function.__name__}: desc | RNNDescriptor | {name}"):
            function(desc, *arguments)
