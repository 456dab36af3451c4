"""Suites refuse options that they lack; those that time two ways of one thing compare their results first."""

import numpy as np
import pytest
from combinations import nightly
from installed import needs_installed
from messages import one_line_says

from perf import (
    __main__,
    call_suite,
    cases,
    derivative_suite,
    episode_suite,
    jax_suite,
    keras_suite,
    mask_suite,
    native_suite,
    norm_suite,
    subnormal_suite,
    torch_suite,
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
from perf.subnormal_suite import Network, Optimizer
from rnnkit.torch import fallback

pytestmark = pytest.mark.usefixtures("torch_threads_as_before")

SUITES = {
    "derivatives": derivative_suite, "episodes": episode_suite, "jax": jax_suite, "keras": keras_suite,
    "masks": mask_suite, "native": native_suite, "norms": norm_suite, "subnormals": subnormal_suite,
}  # fmt: skip
ADAM, MOMENTUM = Optimizer("adam"), Optimizer("momentum")
OTHERS = "--tf32 --against torch --passes infer"
GRADIENTS = fallback.gradients
LOOP, DROPOUT_LOOP = episode_suite._loop, norm_suite._dropout_lstm


def run(suite, *options):
    return __main__.main(["run", "--suite", suite, "--threads", "1", "--seconds", "0", *options])


@pytest.mark.parametrize(
    ("suite", "cases"),
    [
        ("episodes", [Episodes(2, 16, 5), Episodes(1, 16, 20)]),
        ("masks", [Masked("gru", 6, 3, 16, "left", "train"), Masked("gru", 6, 3, 16, "holes", "infer")]),
        ("derivatives", [Derivative(one, "GRU", 3, 2, 16) for one in ("penalty", "samples", "private")]),
        ("jax", [Recurrent("steps", "gru", 4, 2, 16), Recurrent("train", "lstm", 5, 2, 16)]),
        nightly(
            "jax", [Recurrent("infer", "gru", 4, 2, 16, "lengths"), Recurrent("train", "lstm", 5, 2, 16, "resets")]
        ),
        nightly("keras", [Step("torch", one, "GRU", 5, 2, 16) for one in ("train", "predict")]),
        ("subnormals", [Network("GRU", 5, 2, 16), ADAM, MOMENTUM]),
        ("native", [native_suite.Network("gru", 16)]),
        ("norms", [Norms("dropout-lstm", 4, 2, 16)]),
        *(nightly("norms", [Norms(kind, 4, 2, 16)]) for kind in KINDS if kind != "dropout-lstm"),
    ],
)
def test_cases_are_timed(suite, cases, monkeypatch, capsys):
    needs_installed(*["cc"] * (suite == "native"))
    monkeypatch.setattr(SUITES[suite], "CASES", tuple(cases))
    monkeypatch.setattr(subnormal_suite, "_WEIGHTS", 100)
    assert run(suite, "--cases", "*-h16*,adam,mom*") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [case.name for case in cases]


@pytest.mark.parametrize("suite", [cases, call_suite, torch_suite, *SUITES.values()])
def test_case_names_are_unique(suite):
    assert len({case.name for case in suite.CASES}) == len(suite.CASES) >= 8


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
        ("episodes", "--out a.csv", ["--suite episodes", "--out"]),
        ("native", "--cases gru-h8 --threads 2", ["--suite native", "--threads", "[2]"]),
        ("programs", f"--device cuda {OTHERS}", ["--suite programs", "--device, --tf32, --against, --passes"]),
        ("torch", "--passes train --tf32", ["--suite torch", "--tf32, --passes"]),
    ],
)
def test_options_a_suite_lacks_are_refused(suite, options, facts, capsys):
    assert run(suite, "--cases", "nothing", *options.split()) == 2
    out, err = capsys.readouterr()
    assert out in ("", "0 of 0 below 1.0\n") and one_line_says(err, f"perf: {facts[0]}", *facts[1:])


def test_suites_have_their_own_cases(monkeypatch):
    asked = []
    monkeypatch.setattr(perf_run, "run", lambda pairs, *_: asked.extend(row_name(*pair) for pair in pairs) or [])
    assert run("cells", "--cases", "small/*GRU/*", "--passes", "train") == 0
    assert run("reduced", "--cases", "lm-int8/*") == 0
    expected = [f"lm-int8/{mode}/infer" for mode in ("rnn_relu", "rnn_tanh", "lstm", "gru")]
    assert asked == ["small/MinGRU/train", "small/LiGRU/train", *expected]


def test_wrong_results_of_jax_are_not_timed():
    """Those of its own process."""
    right = np.float32(2), (None, np.ones(3))
    jax_suite.check_close(right, right, 1e-5)
    for y, last in ((2.1, 1), (2, 1.1), (np.nan, 1)):
        with pytest.raises(AssertionError, match="not close"):
            jax_suite.check_close((np.float32(y), (None, np.array([1, 1, last]))), right, 1e-5)
