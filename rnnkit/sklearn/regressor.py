"""RNNRegressor: the scores of a network are numbers."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import Tags, check_array

from rnnkit import training
from rnnkit.errors import message
from rnnkit.sklearn.base import RecurrentEstimator


class RNNRegressor(RegressorMixin, RecurrentEstimator):
    """A recurrent network that tells one number, or several, for a sequence.

    A stack of recurrent layers reads each sequence; its outputs are pooled to one vector, and a linear readout gives
    the numbers. Trained with Adam on squared error, in batches of sequences of similar length.

    Parameters
    ----------
    mode : {"lstm", "gru", "rnn_tanh", "rnn_relu"} or cell
        The cell; one of :mod:`rnnkit.cells`, ``LayerNormGRU(recurrent_dropout=0.1)`` say, or of your own.
    hidden_size : int
        Units of each layer and direction.
    num_layers : int
        Layers, one on the other.
    bidirectional : bool
        Whether each layer also reads the sequence from its end.
    dropout : float
        Share of the outputs of each layer, those that the readout takes among them, that is dropped in training.
    pooling : {"last", "mean", "max"}
        What the readout takes: the last state, both directions', or the mean or the largest of the outputs of all
        valid steps.
    epochs : int
        How often `fit` goes through the data, at most.
    batch_size : int
        Sequences a step.
    learning_rate : float
        Of Adam, the same in all steps.
    weight_decay : float
        Share of the parameters, times the learning rate, that each step takes off.
    clip_norm : float or None
        What the gradient is scaled down to where it is longer.
    early_stopping : bool
        Whether `fit` holds out a part of the data, ends when the loss on it has not fallen for `n_iter_no_change`
        epochs, and goes back to the parameters with which it was least.
    validation_fraction : float
        The share of that part.
    n_iter_no_change : int
        Epochs to wait, see `early_stopping`.
    standardize : bool
        Whether each feature is brought to mean 0 and standard deviation 1, as found over all steps of the sequences
        that are trained on, and each target likewise; with `partial_fit` those of the first call.
    dtype : {"float32", "float64"}
        What is computed in.
    random_state : int, RandomState or None
        An int gives the same bits each time, on any number of threads.
    verbose : bool
        Whether `fit` shows a bar, which needs the package tqdm.

    Attributes
    ----------
    network_ : LSTM, GRU or RNN
        The network of rnnkit itself. It expects standardized features.
    readout_ : ndarray
        Flat buffer of the readout, as :func:`rnnkit.training.dense` takes it. It gives standardized targets.
    feature_mean_, feature_scale_ : ndarray (num_features,)
        What each feature is standardized with; 0 and 1 without `standardize`.
    target_mean_, target_scale_ : ndarray (num_targets,)
        What each target is standardized with.
    loss_curve_ : list of float
        Mean squared error of standardized targets in each epoch.
    validation_curve_ : list of float
        That of the validation part after each epoch; only with `early_stopping`.
    n_iter_ : int
        Epochs done.
    n_features_in_ : int
        Features of a step; of a table the number of its columns.

    Notes
    -----
    X is a list of arrays (T_i, num_features) of any lengths, or an array (num_samples, seq_len, num_features). In a
    table (num_samples, seq_len), as scikit-learn's other estimators take it, a row is a sequence of single features,
    and all tables must have as many columns as the first.

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
            The number of each, or several.
        sample_weight : array_like (N,), optional
            What the loss of each sequence is multiplied by, at least 0; divided by their mean. A sequence of weight 0
            is as if it were not there.

        Returns
        -------
        RNNRegressor
            The estimator itself.

        Raises
        ------
        TypeError, ValueError
            A setting or an argument is wrong, or the gradient has become infinite.
        """
        return self._fit(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one epoch, on the network that is there; the first call sets up a new one.

        The optimizer goes on where the last call of `partial_fit` left it; after `fit` it begins anew.

        Parameters
        ----------
        X : list of ndarray (T_i, num_features), ndarray (N, T, num_features) or table (N, T)
            The sequences, each of at least one step; finite.
        y : array_like (N,) or (N, num_targets)
            The number of each, or several: as many as in the first call.
        sample_weight : array_like (N,), optional
            What the loss of each sequence is multiplied by, at least 0; as they are.

        Returns
        -------
        RNNRegressor
            The estimator itself.

        Raises
        ------
        TypeError, ValueError
            A setting or an argument is wrong, or the gradient has become infinite.
        """
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        """Return the number of each sequence, or several.

        Parameters
        ----------
        X : list of ndarray (T_i, num_features), ndarray (N, T, num_features) or table (N, T)
            The sequences.

        Returns
        -------
        ndarray (N,) or (N, num_targets), float64
            As y had them.

        Raises
        ------
        NotFittedError, TypeError, ValueError
            There was no `fit`, or X is wrong.
        """
        found = self._scores("predict", X) * self.target_scale_ + self.target_mean_
        return found[:, 0] if self._is_flat else found

    def _take_targets(self, function: str, y: Any) -> np.ndarray:
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
