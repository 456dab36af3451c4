"""What `rnnkit.explain` says is what calls do."""

import numpy as np
import pytest
from messages import raises

import rnnkit
from rnnkit.commands import command_line
from rnnkit.cpu import engine, stack
from rnnkit.cpu.scheduler import Scheduler
from rnnkit_kernels.machine import thread_pool

NETWORKS = [
    dict(kind="GRU"),
    dict(kind="LSTM", bidirectional=True),
    dict(kind="RNN", num_layers=3),
    dict(kind="LSTM", num_layers=2, proj_size=5),
]


def network(kind, hidden_size=24, **options):
    return getattr(rnnkit, kind)(16, hidden_size, seed=0, **options)


@pytest.mark.parametrize("options", NETWORKS)
@pytest.mark.parametrize(("seq_len", "batch_size"), [(1, 1), (3, 2), (40, 3), (300, 70)])
def test_explain_says_what_calls_do(monkeypatch, options, seq_len, batch_size):
    net, made, stepwise = network(**options), [], []
    init, run = Scheduler.__init__, stack.PreparedStepwiseCall.run_dense

    def noted(scheduler, *given, **more):
        init(scheduler, *given, **more)
        made.append("in place" if scheduler.in_place else "packed")

    monkeypatch.setattr(Scheduler, "__init__", noted)
    monkeypatch.setattr(
        stack.PreparedStepwiseCall, "run_dense", lambda self, *given: stepwise.append(self) or run(self, *given)
    )
    explained, x = rnnkit.explain(net, seq_len, batch_size), np.ones((seq_len, batch_size, 16), np.float32)
    made.clear()
    result = net.forward(x)
    assert made == [explained.forward.weights]
    assert explained.forward.nbytes >= rnnkit.workspace_nbytes(net.desc, seq_len, batch_size)
    made.clear()
    net.backward(result.workspace, result.y)
    assert made == [explained.backward.weights]
    made.clear()
    net.infer(x)
    assert explained.infer.kind == ("stepwise" if stepwise else "by layer")
    assert bool(made) != bool(stepwise) and all(weights == explained.infer.weights for weights in made)


def test_kernel_calls_are_counted(monkeypatch):
    net, calls, bound = network("LSTM", 400, num_layers=4), [], thread_pool.bound

    def counting(kernel, *given, **more):
        call = bound(kernel, *given, **more)
        return lambda last: (calls.append(kernel), call(last))[1]

    monkeypatch.setattr(thread_pool, "bound", counting)
    explained = rnnkit.explain(net, 300, 32)
    result = net.forward(np.ones((300, 32, 16), np.float32))
    assert calls.count(engine.prepare_training.__globals__["forward"]) == explained.forward.kernel_calls
    net.backward(result.workspace, result.y)
    names = [kernel.__name__ for kernel in calls]
    assert names.count("backward") == explained.backward.kernel_calls
    assert explained.backward.flops == 2 * explained.forward.flops


def test_calls_without_steps_are_nothing():
    explained = rnnkit.explain(network("GRU"), 0, 3)
    assert explained.forward.kind == explained.backward.kind == explained.infer.kind == "nothing"


def test_compiled_kernels_are_listed():
    net = network("GRU", 8)
    net.forward(np.ones((4, 2, 16), np.float32))
    assert "forward" in rnnkit.explain(net, 4, 2).compiled
    text = str(rnnkit.explain(net.desc, 4, 2))
    assert all(f"\n{name}" in text for name in ("forward", "backward", "infer", "compiled"))


GIVEN = {"net": network("GRU"), "half": rnnkit.RNNDescriptor("gru", 3, 4, dtype="float16")}
REFUSED = [
    ((3, 4, 5), TypeError, "net | int"),
    (("net", 1.0, 5), TypeError, "T | float"),
    (("net", True, 5), TypeError, "T | bool"),
    (("net", 4, -1), ValueError, "N | -1"),
    (("half", 4, 1), ValueError, "net | float16"),
]


@pytest.mark.parametrize(("arguments", "error", "facts"), REFUSED)
def test_wrong_arguments_of_explain_are_refused(arguments, error, facts):
    with raises(error, f"explain: | {facts}"):
        rnnkit.explain(*(GIVEN.get(one, one) for one in arguments))


def test_command_prints_the_explanation(capsys):
    assert command_line.main(["explain", "lstm", "16", "24", "5", "3", "--layers", "2", "--bidirectional"]) == 0
    desc = rnnkit.RNNDescriptor("lstm", 16, 24, 2, True)
    assert capsys.readouterr().out == f"{rnnkit.explain(desc, 5, 3)}\n"
    with pytest.raises(SystemExit):
        command_line.main(["explain", "lstm", "16", "0", "5", "3"])
    assert "HIDDEN_SIZE: must be at least 1, got 0" in capsys.readouterr().err
