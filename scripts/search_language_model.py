"""Train the language model with each choice of settings, and write the results to a CSV file:
`python scripts/search_language_model.py FILE... --seconds 60 --try "batch=8 seq_len=32" --try "lr=0.01" --out runs.csv`

Every choice trains on every file; settings that it does not name have their defaults. It gets the number of steps that
an idle machine with two cores would do in the given seconds. This is estimated from the CPU time of its step on one
thread, relative to a network whose step takes `--reference-ms` on that machine, so a search may run on a busy machine:
start it with NUMBA_NUM_THREADS=1 there. The weights do not depend on the number of threads.

Choose by `validation_bits`; look at the bits of the held-out part only once, at the end.
"""

import argparse
import csv
import time
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path

import numpy as np

from rnnkit.language_model import corpus, scoring
from rnnkit.language_model.model import TextModel
from rnnkit.language_model.settings import Settings
from rnnkit.language_model.training import Run, optimizer_of

REFERENCE = {"batch": 16, "seq_len": 64, "hidden": 256, "embedding": 64, "layers": 1, "mode": "lstm"}
TIMED = 60  # steps of each of the two, in turn


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path)
    parser.add_argument("--try", dest="choices", action="append", metavar="'NAME=VALUE ...'", default=[])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--steps", type=int, help="instead of --seconds")
    parser.add_argument("--reference-ms", type=float, default=14.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", type=Path, help="folder to write the models to")
    args = parser.parse_args()
    for text in args.choices or [""]:
        given = parsed(text)
        steps = args.steps or int(args.seconds / (args.reference_ms / 1e3 * relative_time(given)))
        for path in args.files:
            row = trained(path, given | {"steps": steps}, args.models)
            write(args.out, row | {"choice": text or "the defaults"})


def parsed(text):
    """Settings from 'name=value name=value', each of its own type."""
    known = {one.name: one for one in fields(Settings)}
    pairs = (word.split("=") for word in text.split())
    return {name: known[name].metadata["type"](value) for name, value in pairs}


def started(text, given):
    settings = Settings.of(given)
    model = TextModel.random(settings.desc, settings.seed, corpus.alphabet(text))
    return Run(model, optimizer_of(model, settings), text, settings)


def relative_time(given):
    """Processor time of a step, in steps of the reference; on the source of the standard library."""
    text = corpus.library_source(1 << 20)
    runs = [started(text, choice | {"steps": TIMED}) for choice in (REFERENCE, given)]
    times = np.zeros((TIMED, 2))
    for row in times:
        for i, run in enumerate(runs):
            begin = time.process_time()
            run.advance()
            row[i] = time.process_time() - begin
    reference, own = np.percentile(times[5:], 25, axis=0)
    return own / reference


def trained(path, given, models):
    parts = corpus.split(path.read_bytes())
    run = started(parts.training, given)
    begin, cpu = time.perf_counter(), time.process_time()
    bits = [step.bits for step in islice(iter(run.advance, None), given["steps"])]
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    before = parts.training
    if models:
        run.model.save(models / f"{path.name}.npz")
    row = {
        "file": path.name,
        "bytes": sum(map(len, parts)),
        "steps": run.step,
        "read_bytes": run.step * run.step_bytes,
        "parameters": run.model.parameters.flat.size,
        "training_bits": np.mean(bits[-max(1, len(bits) // 50) :]),
        "validation_bits": scoring.bits_per_byte(run.model, parts.validation, before),
        "held_out_bits": scoring.bits_per_byte(run.model, parts.held_out, before + parts.validation),
        "adaptive_bits": scoring.adaptive_bits_per_byte(run.model, parts.held_out, before + parts.validation),
        "zlib_bits": corpus.zlib_bits(parts.held_out),
        "lzma_bits": corpus.lzma_bits(parts.held_out, before + parts.validation),
        "wall_seconds": seconds,
        "cpu_seconds": cpu,
    }
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
    return rounded | {"settings": " ".join(f"{name}={value}" for name, value in asdict(run.settings).items())}


def write(path, row):
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row)
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(*(f"{name}={value}" for name, value in row.items() if name != "settings"), flush=True)


if __name__ == "__main__":
    main()
