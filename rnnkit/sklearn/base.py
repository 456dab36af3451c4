"""Base class of the estimators: settings, input conversion, training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from rnnkit import training
from rnnkit.common.arrays import not_an_array
from rnnkit.descriptor.descriptor import HOST_DTYPES, RNNDescriptor
from rnnkit.descriptor.weights import init_weights
from rnnkit.errors import message, wrong_type
from rnnkit.network.networks import network_of
from rnnkit.sklearn import sequences as readers
from rnnkit.sklearn.fitting import Loop, run_epoch, run_epochs, split
from rnnkit.sklearn.model import Model, Objective
from rnnkit.sklearn.pooling import POOLINGS
from rnnkit.sklearn.sequences import Sequences
from rnnkit.training import Adam, arguments


@dataclass(kw_only=True, eq=False, repr=False)
class RecurrentEstimator(BaseEstimator):
    """A recurrent network, pooled over the steps, with a linear readout; subclasses define targets and loss."""

    mode: Any = "gru"
    hidden_size: int = 64
    num_layers: int = 1
    bidirectional: bool = False
    dropout: float = 0.0
    pooling: str = "last"
    epochs: int = 100
    batch_size: int = 32
    learning_rate: float = 0.003
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    standardize: bool = True
    dtype: str = "float32"
    random_state: Any = None
    verbose: bool = False

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    # Hooks for subclasses.

    def _targets(self, function: str, y: Any) -> np.ndarray:
        """Convert y to targets (N, ...)."""
        raise NotImplementedError

    def _class_weights(self, targets: np.ndarray) -> np.ndarray:
        """Return the class weight of each target."""
        return np.ones(len(targets))

    def _num_outputs(self, targets: np.ndarray) -> int:
        raise NotImplementedError

    def _set_scale(self, function: str, targets: np.ndarray) -> None:
        """Store statistics of the training targets."""

    def _loss(self, scores: np.ndarray, targets: np.ndarray) -> training.Loss:
        """Return the loss of scores; its gradient overwrites them."""
        raise NotImplementedError

    # Training.

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """Train a new network."""
        self._check_settings()
        sequences, targets, weights = self._validated("fit", X, y, sample_weight, True)
        chosen = np.flatnonzero(weights)
        weights = (weights / weights[chosen].mean()).astype(self.dtype)
        self._seed = self._new_seed()
        chosen, held_out = self._split(targets, chosen)
        self._begin("fit", sequences.part(chosen), targets[chosen])
        sequences = self._scaled("fit", sequences)
        loop = self._loop("fit", sequences.part(chosen), self._objective(targets[chosen], weights[chosen]))

        def validation_loss() -> float:
            objective = self._objective(targets[held_out], weights[held_out])
            return objective(loop.model.scores(sequences.part(held_out)), slice(None))[0]

        validate = validation_loss if len(held_out) else None
        curves = run_epochs(loop, self.epochs, self.n_iter_no_change, validate, self.verbose)
        vars(self).pop("validation_curve_", None)
        if len(held_out):
            self.validation_curve_ = curves.validation
        self.loss_curve_, self._moments, self.n_iter_ = curves.training, None, len(curves.training)
        return self

    def _split(self, targets: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Split the chosen samples into training and validation samples."""
        if not self.early_stopping:
            return chosen, chosen[:0]
        if len(chosen) < 2:
            cure = "give more samples, or early_stopping=False"
            raise ValueError(message("fit", "X", "hold at least 2 samples for early_stopping", len(chosen), cure))
        classes = targets[chosen] if targets.dtype.kind == "i" else np.zeros(len(chosen), np.int64)
        train, held_out = split(classes, self.validation_fraction, np.random.default_rng((self._seed, 0)))
        return chosen[train], chosen[held_out]

    def _objective(self, targets: np.ndarray, weights: np.ndarray) -> Objective:
        """Return the weighted loss of samples as an `Objective`."""

        def objective(scores: np.ndarray, numbers: np.ndarray | slice) -> tuple[float, np.ndarray]:
            (_, gradient, losses), factors = self._loss(scores, targets[numbers]), weights[numbers]
            gradient *= factors[:, np.newaxis]
            return float((losses.reshape(len(factors), -1).mean(axis=1) * factors).mean()), gradient

        return objective

    def _new_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """Train the existing network, or a new one, for one epoch."""
        function, epoch = "partial_fit", getattr(self, "n_iter_", 0) + 1
        self._check_settings()
        if self.early_stopping:
            cure = "evaluate the model yourself between the calls"
            raise ValueError(message(function, "early_stopping", "be False", self.early_stopping, cure))
        sequences, targets, weights = self._validated(function, X, y, sample_weight, epoch == 1)
        if epoch == 1:
            self._seed = self._new_seed()
            self._begin(function, sequences, targets)
        objective = self._objective(targets, weights.astype(self.dtype))
        loop = self._loop(function, self._scaled(function, sequences), objective)
        if epoch > 1 and self._moments:
            loop.optimizer.restore(self._moments)
        loss = run_epoch(loop, epoch)
        before = self.loss_curve_ if epoch > 1 else []
        self.loss_curve_, self._moments, self.n_iter_ = [*before, loss], loop.optimizer.state, epoch
        return self

    def _validated(self, function: str, X: Any, y: Any, sample_weight: Any, reset: bool) -> tuple:
        """Check and return the sequences, the targets and the weights."""
        if y is None:
            owner = type(self).__name__
            cure = f"{owner} requires y to be passed, but the target y is None"
            raise ValueError(message(function, "y", "hold a target for each sequence", "None", cure))
        sequences = self._read(function, X, reset)
        targets = self._targets(function, y)
        num_samples = len(sequences.lengths)
        if len(targets) != num_samples:
            raise ValueError(message(function, "y", f"hold num_samples={num_samples} targets", len(targets)))
        weights = _weights(function, sample_weight, num_samples) * self._class_weights(targets)
        if not weights.any():
            raise ValueError(f"{function}: sample_weight is all zero; at least one weight must be above 0")
        return sequences, targets, weights

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_iter_")  # set last, so a failed fit leaves the estimator unfitted

    def _begin(self, function: str, sequences: Sequences, targets: np.ndarray) -> None:
        """Set up a new network, and the standardization of features and targets."""
        vars(self).pop("n_iter_", None)
        steps = sequences.valid()
        num_features = steps.shape[1]
        self.feature_mean_, self.feature_scale_ = self._mean_and_scale(function, "X", steps)
        self._set_scale(function, targets)
        desc = RNNDescriptor(
            self.mode,
            num_features,
            self.hidden_size,
            self.num_layers,
            bool(self.bidirectional),
            dropout=float(self.dropout),
            dtype=self.dtype,
        )
        seeds = np.random.SeedSequence(self._seed).generate_state(2, np.uint64)
        self.network_ = network_of(desc, init_weights(desc, int(seeds[0])))
        width, num_outputs = desc.num_directions * desc.output_size, self._num_outputs(targets)
        self.readout_ = training.init_dense(width, num_outputs, int(seeds[1]), self.dtype)

    def _mean_and_scale(self, function: str, name: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of each column, in float64; a constant column gets its value and 1.

        Without `standardize` they are 0 and 1.
        """
        if not self.standardize:
            return np.zeros(values.shape[1]), np.ones(values.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            mean, scale = values.mean(axis=0, dtype=np.float64), values.std(axis=0, dtype=np.float64)
        if not np.isfinite(scale).all():
            raise ValueError(message(function, name, "have a finite standard deviation", scale[~np.isfinite(scale)][0]))
        constant = values.min(axis=0) == values.max(axis=0)
        return np.where(constant, values[0], mean), np.where(constant, 1, scale)

    def _model(self, dropout: float = 0.0) -> Model:
        return Model(self.network_, self.readout_, self.pooling, float(dropout))

    def _loop(self, function: str, sequences: Sequences, objective: Objective) -> Loop:
        model = self._model(self.dropout)
        optimizer = Adam(model.parameters, weight_decay=float(self.weight_decay))
        clip_norm, rate = math.inf if self.clip_norm is None else float(self.clip_norm), float(self.learning_rate)
        return Loop(function, model, optimizer, sequences, objective, self.batch_size, rate, clip_norm, self._seed)

    # Input conversion.

    def _scores(self, function: str, X: Any) -> np.ndarray:
        """Return the scores (N, num_outputs) of a fitted estimator."""
        check_is_fitted(self)
        sequences = self._scaled(function, self._read(function, X, False))
        return self._model().scores(sequences)

    def _read(self, function: str, X: Any, reset: bool) -> Sequences:
        """Return the sequences of X; store the number of features if `reset`, else check it."""
        if isinstance(X, np.ma.MaskedArray):
            raise not_an_array(function, "X", "a plain array", X)
        is_list = readers.is_list(X)
        is_table = not is_list and getattr(X, "ndim", None) != 3
        if is_table and not reset and not self._reads_table:
            size = self.n_features_in_
            expected = f"be a list of (seq_len, num_features={size}) arrays, or of 3 dimensions, as in fit"
            cure = "for one sequence pass [X]"
            raise ValueError(message(function, "X", expected, f"a table of shape {np.shape(X)}", cure))
        if is_table:
            table = validate_data(self, X, reset=reset, dtype=(np.float64, np.float32))
            sequences = readers.from_table(table)
        else:
            sequences = readers.from_list(function, X) if is_list else readers.from_array(function, X)
        num_features = sequences.steps.shape[1]
        if not reset and num_features != self.network_.desc.input_size:
            size = self.network_.desc.input_size
            got = f"sequences of {num_features}"
            raise ValueError(message(function, "X", f"have num_features={size} as in fit", got))
        if reset:
            self._reads_table = is_table
            if not is_table:
                self.n_features_in_ = num_features
                vars(self).pop("feature_names_in_", None)
        return sequences

    def _scaled(self, function: str, sequences: Sequences) -> Sequences:
        """Standardize the features, in the network's dtype."""
        with np.errstate(over="ignore"):
            steps = ((sequences.steps - self.feature_mean_) / self.feature_scale_).astype(self.network_.desc.dtype)
        if not np.isfinite(steps).all():
            largest = np.abs(sequences.steps).max()
            raise ValueError(message(function, "X", f"fit into {self.dtype}", largest, 'use dtype="float64"'))
        return sequences._replace(steps=steps)

    def _check_settings(self) -> None:
        """Check the constructor's arguments; scikit-learn validates them in fit."""
        name = type(self).__name__
        for setting in ("hidden_size", "num_layers", "epochs", "batch_size", "n_iter_no_change"):
            arguments.integer(name, setting, getattr(self, setting), 1)
        for setting in ("bidirectional", "early_stopping", "standardize"):
            if not isinstance(getattr(self, setting), (bool, np.bool_)):
                raise wrong_type(name, setting, "a bool", getattr(self, setting))
        if not isinstance(self.verbose, (bool, np.bool_, int)):
            raise wrong_type(name, "verbose", "a bool or an int", self.verbose)
        for setting, choices in (("pooling", POOLINGS), ("dtype", HOST_DTYPES)):
            if getattr(self, setting) not in choices:
                expected = "be " + " or ".join(f'"{choice}"' for choice in choices)
                raise ValueError(message(name, setting, expected, repr(getattr(self, setting))))
        arguments.number(name, "dropout", self.dropout, "be in 0 <= dropout < 1", lambda value: 0 <= value < 1)
        inside = "be in 0 < validation_fraction < 1"
        arguments.number(name, "validation_fraction", self.validation_fraction, inside, lambda value: 0 < value < 1)
        for setting in ("learning_rate", "weight_decay"):
            arguments.finite(name, setting, getattr(self, setting))
        if self.clip_norm is not None:
            arguments.number(name, "clip_norm", self.clip_norm, "be None or above 0", lambda value: value > 0)


def _weights(function: str, value: Any, num_samples: int) -> np.ndarray:
    if value is None:
        return np.ones(num_samples)
    try:
        weights = np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(message(function, "sample_weight", "hold numbers", f"a non-numeric value ({error})")) from None
    if weights.shape != (num_samples,):
        raise ValueError(message(function, "sample_weight", f"have shape (num_samples={num_samples},)", weights.shape))
    wrong = ~((weights >= 0) & (weights < math.inf))
    if wrong.any():
        expected = "hold finite numbers of at least 0"
        raise ValueError(message(function, "sample_weight", expected, weights[wrong][0]))
    return weights
