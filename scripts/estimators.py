"""Compare RNNClassifier with the same network in PyTorch and the most similar classifiers of aeon and sktime.

Data: JapaneseVowels (from aeon; 270 sequences of 7 to 29 steps, 12 features) and scikit-learn's digits (8 steps of 8
features). Each run is a separate process; the classifiers run in turn. The time is that of `fit`, without imports and
after a fit of one epoch on some of the data. Prints the median accuracy over the seeds and the ratios of the times,
pair by pair (min, median, max). Needs scikit-learn, aeon and PyTorch, sktime for one row: python scripts/estimators.py
"""

import argparse
import json
import os
import subprocess
import sys
from statistics import median
from time import perf_counter

import numpy as np

EPOCHS, HIDDEN, BATCH, RATE, CLIP = 50, 64, 32, 0.003, 1.0
THREADS = "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"
DATASETS = "JapaneseVowels", "digits"
RUNS = {
    "rnnkit": "RNNClassifier, GRU",
    "torch": "PyTorch, GRU",
    "rnnkit-bi": "RNNClassifier, GRU in both directions",
    "torch-bi": "PyTorch, GRU in both directions",
    "sktime": "sktime GRUClassifier",
    "aeon-knn": "aeon KNeighborsTimeSeries (DTW)",
    "aeon-rdst": "aeon RDST",
}
REFERENCE = {run: "rnnkit-bi" if run == "torch-bi" else "rnnkit" for run in RUNS if not run.startswith("rnnkit")}


def data(name):
    """Return lists of (T, I) arrays and labels: of training, and of the test."""
    if name == "JapaneseVowels":
        from aeon.datasets import load_japanese_vowels

        for part in "train", "test":
            X, y = load_japanese_vowels(split=part)
            yield [np.ascontiguousarray(sequence.T, np.float32) for sequence in X], y.astype(int)
        return
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    found = load_digits()
    parts = train_test_split(found.images.astype(np.float32), found.target, random_state=0, stratify=found.target)
    yield list(parts[0]), parts[2]
    yield list(parts[1]), parts[3]


class TorchClassifier:
    """The network, the loss, the optimizer and the batches of RNNClassifier, as PyTorch's users write them."""

    def __init__(self, bidirectional, seed, epochs):
        self.bidirectional, self.seed, self.epochs = bidirectional, seed, epochs

    def fit(self, X, y):
        import torch
        from torch import nn

        from rnnkit.training import bucket_batches

        torch.manual_seed(self.seed)
        steps, self.torch = np.concatenate(X), torch
        self.mean, self.scale = steps.mean(axis=0), steps.std(axis=0)
        self.scale[self.scale == 0] = 1
        X, self.classes = self._tensors(X), np.unique(y)
        targets = torch.from_numpy(np.searchsorted(self.classes, y))
        self.rnn = nn.GRU(X[0].shape[1], HIDDEN, bidirectional=self.bidirectional)
        self.readout = nn.Linear(HIDDEN * (1 + self.bidirectional), len(self.classes))
        parameters = [*self.rnn.parameters(), *self.readout.parameters()]
        optimizer = torch.optim.AdamW(parameters, RATE, weight_decay=0)
        lengths = [len(sequence) for sequence in X]
        for epoch in range(self.epochs):
            for batch in bucket_batches(lengths, BATCH, seed=epoch, window=8):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self._scores([X[i] for i in batch]), targets[batch])
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, CLIP)
                optimizer.step()
        return self

    def _tensors(self, X):
        return [self.torch.from_numpy((sequence - self.mean) / self.scale) for sequence in X]

    def _scores(self, X):
        if len({len(sequence) for sequence in X}) == 1:
            hy = self.rnn(self.torch.stack(X, 1))[1]
        else:
            hy = self.rnn(self.torch.nn.utils.rnn.pack_sequence(X, enforce_sorted=False))[1]
        return self.readout(hy.movedim(0, 1).flatten(1))

    def predict(self, X):
        with self.torch.no_grad():
            return self.classes[self._scores(self._tensors(X)).argmax(1).numpy()]


def make(run, seed, epochs):
    """Return a classifier, and a function that converts X for it."""
    if run.startswith("rnnkit"):
        from rnnkit.sklearn import RNNClassifier

        settings = dict(hidden_size=HIDDEN, batch_size=BATCH, learning_rate=RATE, clip_norm=CLIP, epochs=epochs)
        return RNNClassifier(mode="gru", bidirectional=run == "rnnkit-bi", random_state=seed, **settings), list
    if run.startswith("torch"):
        return TorchClassifier(run == "torch-bi", seed, epochs), list
    if run == "sktime":
        from sktime.classification.deep_learning.gru import GRUClassifier

        model = GRUClassifier(
            hidden_dim=HIDDEN,
            n_layers=1,
            batch_first=True,
            num_epochs=epochs,
            batch_size=BATCH,
            lr=RATE,
            random_state=seed,
        )
        return model, padded
    if run == "aeon-knn":
        from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier

        return KNeighborsTimeSeriesClassifier(n_neighbors=1, distance="dtw"), channels_first
    from aeon.classification.shapelet_based import RDSTClassifier

    return RDSTClassifier(random_state=seed), channels_first


def channels_first(X):
    found = [np.ascontiguousarray(sequence.T, np.float64) for sequence in X]
    return np.array(found) if len({sequence.shape for sequence in found}) == 1 else found


def padded(X):
    """Pad with zeros at the end to the longest sequence of JapaneseVowels, for classifiers that need equal lengths."""
    seq_len = 29 if X[0].shape[1] == 12 else 8
    return np.array([np.pad(sequence, ((0, seq_len - len(sequence)), (0, 0))).T for sequence in X])


def time_run(run, dataset, seed):
    (X, y), (X_test, y_test) = data(dataset)
    warm, prepare = make(run, seed, 1)
    some = np.arange(0, len(y), 5)  # of every class, in JapaneseVowels too, where they are in order
    warm.fit(prepare([X[i] for i in some]), y[some])
    model, prepare = make(run, seed, EPOCHS)
    given, start = prepare(X), perf_counter()
    model.fit(given, y)
    fitted = perf_counter()
    accuracy = float((model.predict(prepare(X_test)) == y_test).mean())
    print(json.dumps({"accuracy": accuracy, "fit": fitted - start, "predict": perf_counter() - fitted}))


def measure(run, dataset, seed, threads):
    command = [sys.executable, "-W", "ignore", __file__, "--time", run, dataset, "--seed", str(seed)]
    environment = os.environ | dict.fromkeys(THREADS, str(threads))
    found = json.loads(subprocess.check_output(command, env=environment, text=True).splitlines()[-1])
    print(run, dataset, seed, found, file=sys.stderr, flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--run", action="append", choices=RUNS)
    parser.add_argument("--time", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.time:
        return time_run(*args.time, args.seed)
    print("| data | classifier | accuracy | fit, s | times that of rnnkit | predict, s |\n|---|---|---|---|---|---|")
    for dataset in DATASETS:
        runs = args.run or list(RUNS)
        found = {run: [] for run in runs}
        for seed in range(args.pairs):
            for run in runs:
                found[run].append(measure(run, dataset, seed, args.threads))
        for run, results in found.items():
            middle = {name: median(result[name] for result in results) for name in results[0]}
            others = found.get(REFERENCE.get(run), ())
            ratios = sorted(own["fit"] / other["fit"] for own, other in zip(results, others, strict=False))
            shown = f"{ratios[0]:.1f} {median(ratios):.1f} {ratios[-1]:.1f}" if ratios else ""
            print(
                f"| {dataset} | {RUNS[run]} | {middle['accuracy']:.3f} | {middle['fit']:.2f} | {shown} "
                f"| {middle['predict']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
