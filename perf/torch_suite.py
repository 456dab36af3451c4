"""Time whole training steps of a PyTorch model, with and without `rnnkit.torch.accelerate`.

Both models run in one process, on PyTorch's threads, and train in turn. A step clears the gradients, runs one recurrent
module and a linear readout, computes the loss, runs backward and updates the weights with Adam. GF/s and share of the
peak count only the products of the recurrent module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from perf import cases, report
from perf.baselines import RNNKIT, torch_module
from perf.cases import Case, problem, row_name
from perf.check import deviation
from perf.run import beside, speed
from perf.subject import Subject
from perf.timing import Worker, WorkerError, alternate
from perf.worker import Bench
from rnnkit import RNNDescriptor

PASS = "fit"
MODELS = (RNNKIT, "torch")  # with `accelerate`, and without
_READOUT = 16  # outputs of the linear layer


def subject(case: Case, model_name: str, threads: int, learning_rate: float = 1e-3) -> Subject:
    """Return the training step of a model; its results are the loss and the gradient of every parameter."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    given = problem(case, "train")
    width = given.desc.num_directions * given.desc.output_size
    model = nn.ModuleDict({"rnn": torch_module(torch, given), "readout": nn.Linear(width, _READOUT)})
    if model_name == RNNKIT:
        _accelerate(model)
    x = torch.from_numpy(given.x)
    if given.lengths is not None:
        x = nn.utils.rnn.pack_padded_sequence(x, torch.from_numpy(given.lengths), enforce_sorted=False)
    target = torch.randn(*(given.x.shape[:2] if given.lengths is None else x.data.shape[:1]), _READOUT)
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)

    def run() -> Any:
        optimizer.zero_grad()
        y, _ = model["rnn"](x)
        loss = nn.functional.mse_loss(model["readout"](y if given.lengths is None else y.data), target)
        loss.backward()
        optimizer.step()
        return loss

    def results(loss: Any) -> dict:
        gradients = {f"d{name}": parameter.grad.numpy() for name, parameter in model.named_parameters()}
        return {"loss": loss.detach().numpy()} | gradients

    return Subject(run, results)


def _accelerate(model: Any) -> None:
    from rnnkit.torch import accelerate

    done = accelerate(model)
    if done.changed != ("rnn",):
        raise RuntimeError(f"accelerate left the model as it was: {done.left}")


class Models:
    """What `worker.Bench` is for one engine, for both models in one process."""

    def __init__(self, engine: str, threads: int, device: str = "cpu") -> None:
        self.threads = threads
        self._benches = {name: _Model(name, threads, device) for name in MODELS}

    def load(self, case: Case) -> str | None:
        """Make both ready and warm; return what is wrong with the accelerated one, which then is not, or None."""
        wrong = deviation(*(self._second_results(case, name) for name in MODELS), case.desc)
        if wrong is None:
            for bench in self._benches.values():
                bench.load(case, PASS)
        return wrong

    def _second_results(self, case: Case, name: str) -> dict:
        # The second step reuses memory. The first has learning rate 0, so both models still have the same weights.
        model = subject(case, name, self.threads, learning_rate=0.0)
        model.run()
        return model.results(model.run())

    def time(self, name: str) -> tuple[float, float]:
        """Return the seconds of a step of one model, and of a repetition."""
        return self._benches[name].time()


class _Model(Bench):
    def _prepare(self, case: Case, pass_name: str) -> Subject:
        return subject(case, self.engine, self.threads)


class _Turn(NamedTuple):
    """One of the models, with the interface of a worker for `alternate`."""

    worker: Worker
    name: str

    def call(self, method: str) -> Any:
        return self.worker.call(method, self.name)


def measure(
    case: Case, pass_name: str, engines: Any, against: list[str], peak: float, seconds: float
) -> dict[str, Any]:
    """Return the row of a case, from a process of its own: in place of `run.measure`, at the same number of threads."""
    row = report.facts(case, "train", engines.threads) | {"name": row_name(case, pass_name)}
    worker = Worker("torch", engines.threads, kind=Models)
    try:
        verdict = worker.call("load", case) or report.OK
        figures = dict.fromkeys(MODELS, verdict)
        if verdict == report.OK:
            times = alternate({name: _Turn(worker, name) for name in MODELS}, seconds)
            figures |= speed(case, "train", times, peak) | beside("torch", times)
    except WorkerError as error:
        figures = dict.fromkeys(MODELS, f"failed: {error}")
    finally:
        worker.close()
    return row | figures


def _with_lengths(case: Case) -> Case:
    """Return the same case with lengths, which PyTorch gets as a PackedSequence."""
    return case._replace(family=f"{case.family}-lengths", shortest=case.seq_len // 4)


def _known() -> Iterator[Case]:
    """Those of the other engines that look like a user's model, in all modes that a user trains."""
    names = [f"{family}/{mode}" for family in ("small", "lm", "odd") for mode in ("gru", "lstm", "rnn_tanh")]
    return (case._replace(passes=(PASS,)) for name in names for case in cases.CASES if case.name == name)


def _gru(family: str, hidden: int, num_layers: int = 1) -> Case:
    desc = RNNDescriptor("gru", hidden, hidden, num_layers)
    return Case(family, desc, seq_len=50, batch_size=16, passes=(PASS,))


CASES = (
    *(each for case in _known() for each in (case, _with_lengths(case))),
    _gru("h64", 64),
    _gru("h128-l2", 128, 2),
    _with_lengths(_gru("h128-l2", 128, 2)),
    _with_lengths(_gru("h256", 256)),
)
