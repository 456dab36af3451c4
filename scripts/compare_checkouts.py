"""Time the suite `calls` in two checkouts: `python scripts/compare_checkouts.py OLD NEW --threads 1 --out FILE.csv`.

Each checkout has a process of its own, with a kernel cache of its own; they time the same call in turn, in windows of
2 ms. For each case the file has the median over the pairs of windows of new / old, and that of the two least times: a
case is slower only if both say so, and in another run too.

`python scripts/compare_checkouts.py FILE.csv...` prints geometric means, and the cases that all files have above 1.10.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from collections import defaultdict
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter, sleep

WINDOW = 2e-3  # seconds
REST = 5e-3  # the threads of the other process spin for a while after its last call
LEAST_PAIRS = 5
SLOWER = 1.10
COLUMNS = "name", "new", "old", "median", "least"  # microseconds, and ratios new / old


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="two checkouts, or files to read")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of each process (default: 1)")
    parser.add_argument("--seconds", type=float, default=0.2, metavar="S", help="for each case (default: 0.2)")
    parser.add_argument("--cases", default="*", metavar="GLOB", help="as in perf run --suite calls (default: all)")
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help="file to write")
    args = parser.parse_args()
    if all(path.is_dir() for path in args.paths):
        if len(args.paths) != 2 or args.out is None:
            parser.error("two checkouts and --out, or files to read")
        measure(*args.paths, args.threads, args.seconds, args.cases, args.out)
        args.paths = [args.out]
    show(args.paths)


def measure(old, new, threads, seconds, pattern, out):
    """Write a row for each case whose name matches one of the patterns."""
    from perf.call_suite import CASES

    workers = [start(checkout, threads, f"{out}.cache-{name}") for checkout, name in ((new, "new"), (old, "old"))]
    with out.open("w") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for case in CASES:
            if any(fnmatchcase(case.name, one) for one in pattern.split(",")):
                pairs = pairs_of(workers, case._asdict(), seconds)
                own, others = (min(times) for times in zip(*pairs, strict=True))
                middle = median(one / other for one, other in pairs)
                rows.writerow([case.name, *(f"{one:.4g}" for one in (own * 1e6, others * 1e6, middle, own / others))])
                file.flush()


def start(checkout, threads, cache):
    """Start the process of a checkout."""
    names = "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"
    path = os.pathsep.join(str(one.resolve()) for one in (checkout, checkout / "kernels"))
    environ = os.environ | dict.fromkeys(names, str(threads)) | {"PYTHONPATH": path, "NUMBA_CACHE_DIR": cache}
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.append({str(Path(__file__).parent)!r})\n"]
    command[-1] += f"from compare_checkouts import serve\nserve({threads})"
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)


def ask(worker, line):
    worker.stdin.write(line + "\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def pairs_of(workers, case, seconds):
    """Return seconds of a call, (new, old), one pair after another, each first in turn."""
    for worker in workers:
        ask(worker, json.dumps(case))
    pairs, end = [], perf_counter() + seconds
    while len(pairs) < LEAST_PAIRS or perf_counter() < end:
        pair = [ask(worker, "time") for worker in workers[:: 1 if len(pairs) % 2 else -1]]
        pairs.append(pair[:: 1 if len(pairs) % 2 else -1])
    return pairs


def serve(threads):
    """Prepare the cases that come as JSON, and time the last one for each other line: the process of a checkout."""
    import torch

    torch.set_num_threads(threads)
    if threads > 1:  # starts the other threads, which may run on any core
        prepared(torch, "LSTM", 20, 32, 128, "1", "train")()
    if hasattr(os, "sched_setaffinity"):  # this thread in both processes: what slows a core of a shared machine
        os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    step, count = None, 1
    for line in sys.stdin:
        if line.startswith("{"):
            step = prepared(torch, **json.loads(line))
            step()
            count = max(1, int(WINDOW / min(window(step, 1) for _ in range(3))))
            print(count, flush=True)
        else:
            if threads > 1:
                sleep(REST)
            step()  # bring its code and data back into the caches
            print(window(step, count) / count, flush=True)


def window(step, count):
    start = perf_counter()
    for _ in range(count):
        step()
    return perf_counter() - start


def prepared(torch, mode, seq_len, batch_size, hidden_size, layers, pass_name):
    """Return a function without arguments that runs the case."""
    from rnnkit.torch import accelerate

    torch.manual_seed(0)
    options = {"1": {}, "2": {"num_layers": 2}, "bi": {"bidirectional": True}}[layers]
    module = getattr(torch.nn, mode)(hidden_size, hidden_size, **options)
    accelerate(module)
    x = torch.randn(seq_len, batch_size, hidden_size)

    def infer():
        with torch.no_grad():
            return module(x)[0]

    def train():
        module(x)[0].sum().backward()

    return infer if pass_name == "infer" else train


def show(paths):
    slower = []
    for path in paths:
        with path.open() as file:
            rows = list(csv.DictReader(file))
        groups = defaultdict(list)
        for row in rows:
            groups["all"].append(row)
            groups[row["name"].partition("/")[2]].append(row)
        for group, members in groups.items():
            means = (geometric_mean(float(row[column]) for row in members) for column in ("median", "least"))
            print(f"{path.name}: {group}, {len(members)} cases: {' '.join(f'{mean:.3f}' for mean in means)}")
        slower.append({row["name"]: row for row in rows if min(float(row["median"]), float(row["least"])) > SLOWER})
    common = set.intersection(*map(set, slower))
    print(f"above {SLOWER:.2f}: {', '.join(str(len(one)) for one in slower)}; in all files {len(common)}")
    for name in sorted(common, key=lambda name: slower[0][name]["median"], reverse=True):
        print(f"{name:28}", *("/".join(one[name][column] for column in COLUMNS[1:]) for one in slower))


if __name__ == "__main__":
    main()
