"""Suites refuse options that they lack; those that time two ways of one thing compare their results first."""

import numpy as np
import pytest
from combinations import nightly
from installed import needs_installed
from messages import one_line_says

from perf import (
    __main__,
    derivative_suite,
    episode_suite,
    jax_suite,
    keras_suite,
    mask_suite,
    native_suite,
    norm_suite,
    subnormal_suite,
)
from perf import run as perf_run
from perf.cases import row_name
from perf.derivative_suite import Derivative
from perf.episode_suite import Episodes
from perf.jax_suite import Recurrent
from perf.keras_suite import Step
from perf.mask_suite import Masked
from perf.norm_suite import KINDS
from perf.norm_suite import Case as Norms
from perf.programs import table
from perf.subnormal_suite import Network, Optimizer
from rnnkit.torch import fallback

pytestmark = pytest.mark.usefixtures("torch_threads_as_before")

SUITES = {
    "derivatives": derivative_suite, "episodes": episode_suite, "jax": jax_suite, "keras": keras_suite,
    "masks": mask_suite, "native": native_suite, "norms": norm_suite, "subnormals": subnormal_suite,
}  # fmt: skip
ADAM, MOMENTUM = Optimizer("adam"), Optimizer("momentum")
MODES = "rnn_relu", "rnn_tanh", "lstm", "gru"
OTHERS = "--tf32 --against torch --passes infer"
GRADIENTS = fallback.gradients
LOOP, DROPOUT_LOOP = episode_suite._loop, norm_suite._dropout_lstm


def run(suite, *options):
    return __main__.main(["run", "--suite", suite, "--threads", "1", "--seconds", "0", *options])


@pytest.mark.parametrize(
    ("suite", "cases"),
    [
        ("episodes", {"lstm-n2-h16-e5": Episodes(2, 16, 5), "lstm-n1-h16-e20": Episodes(1, 16, 20)}),
        (
            "masks",
            {f"gru-t6-n3-h16-{one}": Masked("gru", 6, 3, 16, *one.split("/")) for one in ("left/train", "holes/infer")},
        ),
        (
            "derivatives",
            {f"{one}-gru-t3-n2-h16": Derivative(one, "GRU", 3, 2, 16) for one in ("penalty", "samples", "private")},
        ),
        ("jax", {one.name: one for one in (Recurrent("steps", "gru", 4, 2, 16), Recurrent("train", "lstm", 5, 2, 16))}),
        nightly(
            "jax",
            {
                one.name: one
                for one in (
                    Recurrent("infer", "gru", 4, 2, 16, "lengths"),
                    Recurrent("train", "lstm", 5, 2, 16, "resets"),
                )
            },
        ),
        nightly(
            "keras",
            {one.name: one for one in (Step("torch", *given, "GRU", 5, 2, 16) for given in (["train"], ["predict"]))},
        ),
        ("subnormals", {"gru-t5-n2-h16": Network("GRU", 5, 2, 16), "adam": ADAM, "momentum": MOMENTUM}),
        ("native", {"gru-h16": native_suite.Network("gru", 16)}),
        ("norms", {"dropout-lstm-t4-n2-h16": Norms("dropout-lstm", 4, 2, 16)}),
        *(nightly("norms", {f"{k}-t4-n2-h16": Norms(k, 4, 2, 16)}) for k in KINDS if k != "dropout-lstm"),
    ],
)
def test_cases_are_timed(suite, cases, monkeypatch, capsys):
    needs_installed(*["cc"] * (suite == "native"))
    monkeypatch.setattr(SUITES[suite], "CASES", tuple(cases.values()))
    monkeypatch.setattr(subnormal_suite, "_WEIGHTS", 100)
    assert run(suite, "--cases", "*-h16*,adam,mom*") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*cases]


@pytest.mark.parametrize(
    ("suite", "count"),
    [
        ("episodes", 27),
        ("masks", 56),
        ("native", 18),
        ("norms", 20),
        ("subnormals", 8),
        ("derivatives", 15),
        ("jax", 140),
        ("keras", 204),
    ],
)
def test_case_names_are_unique(suite, count):
    cases = SUITES[suite].CASES
    assert len({case.name for case in cases}) == len(cases) == count


def wrong_dropout_loop(module, x):
    return DROPOUT_LOOP(module, x + 1)


def wrong_gradients(run, tensors, cotangents, wanted):
    found = GRADIENTS(run, tensors, cotangents, wanted)
    return [None if one is None else 2 * one for one in found]


@pytest.mark.parametrize(
    ("suite", "case", "patched", "wrong"),
    [
        ("episodes", Episodes(2, 16, 5), "perf.episode_suite._loop", lambda own, x, resets: LOOP(own, x, 0 * resets)),
        (
            "masks",
            Masked("gru", 6, 3, 16, "left", "infer"),
            "rnnkit.cpu.masked.taken",
            lambda desc, mask, x, *_: x[: mask.longest],
        ),
        ("norms", Norms("dropout-lstm", 4, 2, 16), "perf.norm_suite._LOOPS", {"dropout-lstm": wrong_dropout_loop}),
        ("derivatives", Derivative("penalty", "GRU", 3, 2, 16), "rnnkit.torch.fallback.gradients", wrong_gradients),
        ("subnormals", Network("GRU", 5, 2, 16), "rnnkit.torch.accelerate", lambda own: own.weight_hh_l0.data.zero_()),
    ],
)
def test_wrong_results_are_not_timed(suite, case, patched, wrong, monkeypatch):
    monkeypatch.setattr(patched, wrong)
    with pytest.raises(AssertionError, match="not close|not equal"):
        SUITES[suite].measure(case, 1, 0)


@pytest.mark.parametrize(
    ("suite", "options", "facts"),
    [
        ("calls", "--cases nothing/*", ["--cases", "gru-t1-n1-h16-l1/infer", "'nothing/*'"]),
        ("calls", "--out a.csv", ["--suite calls", "--out"]),
        ("cells", "--cases small/gru/*", ["--cases", "lm/OwnLSTM/infer", "'small/gru/*'"]),
        ("episodes", "--cases nothing", ["--cases", "lstm-n1-h64-e5", "'nothing'"]),
        ("episodes", "--out a.csv", ["--suite episodes", "--out"]),
        ("episodes", "--against torch", ["--suite episodes", "--against"]),
        ("masks", "--cases nothing", ["--cases", "lstm-t20-n8-h16-left/infer", "'nothing'"]),
        ("native", "--cases gru-h8 --threads 2", ["--suite native", "--threads", "[2]"]),
        ("norms", "--cases nothing", ["--cases", "layer-norm-lstm-t50-n8-h64", "'nothing'"]),
        ("programs", "--cases nothing/*", ["--cases", table.PROGRAMS[0].name, "'nothing/*'"]),
        ("programs", "--out a.csv", ["--suite programs", "--out"]),
        ("programs", f"--device cuda {OTHERS}", ["--suite programs", "--device, --tf32, --against, --passes"]),
        ("subnormals", "--cases nothing", ["--cases", "rnn-t200-n16-h128", "'nothing'"]),
        ("torch", "--cases ds2/*", ["--cases", "small/gru/fit", "'ds2/*'"]),
        ("torch", "--passes train --tf32", ["--suite torch", "--tf32, --passes"]),
        ("torch", "--against torch", ["--suite torch", "--against"]),
        ("torch", "--device cuda", ["--suite torch", "--device"]),
    ],
)
def test_options_a_suite_lacks_are_refused(suite, options, facts, capsys):
    assert run(suite, "--cases", "nothing", *options.split()) == 2
    out, err = capsys.readouterr()
    assert out in ("", "0 of 0 below 1.0\n") and one_line_says(err, f"perf: {facts[0]}", *facts[1:])


@pytest.mark.parametrize(
    ("suite", "options", "names"),
    [
        ("cells", "--cases small/*GRU/* --passes train", "small/MinGRU/train small/LiGRU/train"),
        ("reduced", "--cases lm-int8/*", " ".join(f"lm-int8/{mode}/infer" for mode in MODES)),
    ],
)
def test_suites_have_their_own_cases(suite, options, names, monkeypatch):
    asked = []
    monkeypatch.setattr(perf_run, "run", lambda pairs, *_: asked.extend(row_name(*pair) for pair in pairs) or [])
    assert run(suite, *options.split()) == 0
    assert " ".join(asked) == names


def test_wrong_results_of_jax_are_not_timed():
    """Those of its own process."""
    right = np.float32(2), (None, np.ones(3))
    jax_suite.check_close(right, right, 1e-5)
    for wrong in (
        (np.float32(2.1), right[1]),
        (right[0], (None, np.array([1, 1, 1.1]))),
        (np.float32("nan"), right[1]),
    ):
        with pytest.raises(AssertionError, match="not close"):
            jax_suite.check_close(wrong, right, 1e-5)


def test_suite_of_jax_needs_flax(monkeypatch, capsys):
    monkeypatch.setattr(__main__, "find_spec", lambda name: None)
    assert run("jax", "--cases", "nothing") == 2
    assert one_line_says(capsys.readouterr()[1], "perf: --suite jax", "Flax", "pip install flax")


@pytest.mark.parametrize("suite", ["cells", "torch"])
def test_suites_need_pytorch(suite, monkeypatch, capsys):
    monkeypatch.setattr(__main__, "find_spec", lambda name: None)
    assert run(suite, "--cases", "nothing") == 2
    out, err = capsys.readouterr()
    assert out == "" and one_line_says(err, f"perf: --suite {suite}", "PyTorch", "pip install 'rnnkit[torch]'")
