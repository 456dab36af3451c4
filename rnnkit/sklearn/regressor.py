"""RNNRegressor: sequence regression."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import Tags, check_array

from rnnkit import training
from rnnkit.errors import message
from rnnkit.sklearn.base import RecurrentEstimator


class RNNRegressor(RegressorMixin, RecurrentEstimator):
    """Predict one or more numbers per sequence with a recurrent network.

    A stack of recurrent layers reads each sequence; its outputs are pooled to one vector, and a linear readout gives
    the numbers. Trained with Adam on squared error, in batches of sequences of similar length.

    Parameters
    ----------
    mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"} or cell
        A mode; or a cell of :mod:`rnnkit.cells`, for example ``LayerNormGRU(recurrent_dropout=0.1)``, or your own.
    hidden_size : int
        Units of each layer and direction.
    num_layers : int
        Number of stacked layers.
    bidirectional : bool
        Whether each layer also reads the sequence in reverse.
    dropout : float
        Dropout rate in training, after every layer, including the last.
    pooling : {"last", "mean", "max"}
        Input of the readout: the last state (of both directions), or the mean or the maximum of the outputs over all
        valid steps.
    epochs : int
        Maximum number of epochs of `fit`.
    batch_size : int
        Sequences per batch.
    learning_rate : float
        Learning rate of Adam, constant.
    weight_decay : float
        Decoupled weight decay: each step multiplies the parameters by 1 - learning_rate * weight_decay.
    clip_norm : float or None
        Maximum norm of the gradient; a longer one is scaled down. None is no limit.
    early_stopping : bool
        Whether `fit` holds out a validation set, stops when its loss has not fallen for `n_iter_no_change` epochs, and
        restores the best parameters.
    validation_fraction : float
        Fraction of the samples in the validation set.
    n_iter_no_change : int
        Epochs without improvement before stopping, see `early_stopping`.
    standardize : bool
        Whether to scale each feature to mean 0 and standard deviation 1 over all steps of the training sequences, in
        `partial_fit` those of the first call, and each target likewise.
    dtype : {"float32", "float64"}
        Floating-point type of the network.
    random_state : int, RandomState or None
        Seed; with an int, results are bit-identical in each run, for any number of threads.
    verbose : bool
        Whether `fit` shows a progress bar (needs the package tqdm).

    Attributes
    ----------
    network_ : LSTM, GRU or RNN
        The trained rnnkit network. It expects standardized features.
    readout_ : ndarray
        Flat buffer of the readout, as :func:`rnnkit.training.dense` takes it. It returns standardized targets.
    feature_mean_, feature_scale_ : ndarray (num_features,)
        Mean and scale that standardize each feature; 0 and 1 without `standardize`.
    target_mean_, target_scale_ : ndarray (num_targets,)
        Mean and scale that standardize each target.
    loss_curve_ : list of float
        Mean squared error of standardized targets, of each epoch.
    validation_curve_ : list of float
        The same of the validation set, after each epoch; only with `early_stopping`.
    n_iter_ : int
        Number of epochs trained.
    n_features_in_ : int
        Features of a step; for a table, the number of columns.

    Notes
    -----
    X is a list of arrays (T_i, num_features) of any lengths, or an array (num_samples, seq_len, num_features). In a
    table (num_samples, seq_len), the input of scikit-learn's other estimators, each row is a sequence with one feature,
    and all tables must have the same number of columns.

    Examples
    --------
    >>> import numpy as np
    >>> from rnnkit.sklearn import RNNRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = [rng.normal(size=(length, 2)) for length in rng.integers(5, 15, 200)]
    >>> y = [sequence[:, 0].mean() for sequence in X]
    >>> model = RNNRegressor(hidden_size=16, pooling="mean", epochs=30, random_state=0).fit(X[:160], y[:160])
    >>> model.score(X[160:], y[160:]) > 0.8
    True
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a new network.

        Parameters
        ----------
        X : list of ndarray (T_i, num_features), ndarray (N, T, num_features) or table (N, T)
            The sequences, each of at least one step; finite.
        y : array_like (N,) or (N, num_targets)
            Targets.
        sample_weight : array_like (N,), optional
            Weight of each sequence's loss, at least 0. Weights are normalised to mean 1. Sequences of weight 0 are
            ignored.

        Returns
        -------
        RNNRegressor
            The estimator itself.

        Raises
        ------
        TypeError, ValueError
            A setting or an argument is invalid, or the gradient is not finite.
        """
        return self._fit(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the existing network for one epoch; the first call sets up a new one.

        The optimizer resumes from the last call of `partial_fit`; after `fit` its state is reset.

        Parameters
        ----------
        X : list of ndarray (T_i, num_features), ndarray (N, T, num_features) or table (N, T)
            The sequences, each of at least one step; finite.
        y : array_like (N,) or (N, num_targets)
            Targets, with the same num_targets in each call.
        sample_weight : array_like (N,), optional
            Weight of each sequence's loss, at least 0; not normalised.

        Returns
        -------
        RNNRegressor
            The estimator itself.

        Raises
        ------
        TypeError, ValueError
            A setting or an argument is invalid, or the gradient is not finite.
        """
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted targets of each sequence.

        Parameters
        ----------
        X : list of ndarray (T_i, num_features), ndarray (N, T, num_features) or table (N, T)
            The sequences.

        Returns
        -------
        ndarray (N,) or (N, num_targets), float64
            The shape of y in `fit`.

        Raises
        ------
        NotFittedError, TypeError, ValueError
            Not fitted, or X is invalid.
        """
        targets = self._scores("predict", X) * self.target_scale_ + self.target_mean_
        return targets[:, 0] if self._is_flat else targets

    def _targets(self, function: str, y: Any) -> np.ndarray:
        """Return the targets (N, num_targets)."""
        targets = check_array(y, ensure_2d=False, allow_nd=True, dtype=np.float64, input_name="y")
        if targets.ndim > 2:
            expected = "have shape (num_samples,) or (num_samples, num_targets)"
            raise ValueError(message(function, "y", expected, targets.shape))
        is_flat, targets = targets.ndim == 1, targets.reshape(len(targets), -1)
        if function == "partial_fit" and hasattr(self, "n_iter_"):
            if targets.shape[1] != len(self.target_mean_):
                expected = f"have num_targets={len(self.target_mean_)} as in the first call"
                raise ValueError(message(function, "y", expected, targets.shape[1]))
        else:
            self._is_flat = is_flat
        return targets

    def _num_outputs(self, targets: np.ndarray) -> int:
        return targets.shape[1]

    def _set_scale(self, function: str, targets: np.ndarray) -> None:
        self.target_mean_, self.target_scale_ = self._mean_and_scale(function, "y", targets)

    def _loss(self, scores: np.ndarray, targets: np.ndarray) -> training.Loss:
        scaled = (targets - self.target_mean_) / self.target_scale_
        return training.squared_error(scores, scaled.astype(scores.dtype), out=scores)
