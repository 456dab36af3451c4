"""rnnkit beside PyTorch on the same cuDNN, in turn on one stream: times by CUDA's events, and of the host."""

from __future__ import annotations

import csv
from statistics import median
from typing import Any

import rnnkit
from gpu_run.here import Here, alternate, deviation, host_seconds
from perf import baselines
from perf.cases import Case, flops

# Name, T, N, I = H, L; the largest last
SIZES = (
    ("tiny", 10, 1, 16, 1),
    ("small", 50, 8, 128, 1),
    ("lm", 25, 64, 512, 1),
    ("ds2", 300, 20, 800, 1),
    ("wide", 100, 128, 1024, 2),
    ("large", 100, 256, 2048, 1),
)
ARITHMETIC = {"float32": {}, "tf32": {"allow_tf32": True}, "float16": {"dtype": "float16"}}
ENGINES = baselines.RNNKIT, "torch"


def run(here: Here) -> None:
    limits = next((line for line in here.lines("versions") if line["name"] == "limits" and "copy" in line), None)
    rows = []
    for name, steps, batch, hidden, layers in SIZES[:2] if here.stand_in else SIZES:
        for arithmetic, options in ARITHMETIC.items():
            for mode in ("lstm", "gru"):
                size = here.smaller(hidden)
                desc = rnnkit.RNNDescriptor(mode, size, size, num_layers=layers, **options)
                case = Case(name, desc, here.smaller(steps), here.smaller(batch) if batch > 1 else 1)
                for action in ("infer", "train"):
                    with here.trying(f"{case.name}/{action}/{arithmetic}"):
                        rows.append(_row(here, case, action, arithmetic, limits))
                        here.add(rows[-1]["case"], **rows[-1])
                        _write(here, rows)


def _row(here: Here, case: Case, action: str, arithmetic: str, limits: dict[str, float] | None) -> dict[str, Any]:
    gpu = {"rnnkit": "cuda", "torch": here.device}
    subjects = {engine: baselines.prepare(engine, case, action, 1, gpu[engine]) for engine in ENGINES}
    results = {engine: subject.results(subject.run()) for engine, subject in subjects.items()}
    runs = {engine: subject.run for engine, subject in subjects.items()}
    times = alternate(runs)
    own, other = (median(times[engine]) for engine in ENGINES)
    ratios = sorted(b / a for a, b in zip(times["rnnkit"], times["torch"], strict=True))
    row = {"case": f"{case.name}/{action}/{arithmetic}", "T": case.seq_len, "N": case.batch_size}
    row |= {"H": case.desc.hidden_size, "L": case.desc.num_layers, "rnnkit_us": own * 1e6, "torch_us": other * 1e6}
    row |= {"ratio": median(ratios), "ratio_low": ratios[0], "ratio_high": ratios[-1]}
    row |= {f"{engine}_host_us": host_seconds(runs[engine]) * 1e6 for engine in ENGINES}
    shared = results["rnnkit"].keys() & results["torch"].keys()
    pairs = [(results["rnnkit"][name], results["torch"][name]) for name in shared]
    row["deviation"] = max(deviation(*pair) for pair in pairs if pair[0] is not None)
    row["tflops"] = flops(case, action) / own / 1e12
    row["share_of_limit"] = _least_seconds(case, action, limits[arithmetic], limits["copy"]) / own if limits else ""
    return row


def _least_seconds(case: Case, action: str, peak: float, copy: float) -> float:
    """The time of the products at the measured peak, or of one pass over x, y and the weights."""
    desc, rows = case.desc, case.seq_len * case.batch_size
    moved = rows * (desc.input_size + desc.output_size) + rnnkit.num_weights(desc)
    return max(flops(case, action) / peak, moved * desc.np_dtype.itemsize / copy)


def _write(here: Here, rows: list[dict[str, Any]]) -> None:
    with open(here.out / "bench.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
