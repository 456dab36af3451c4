"""RNNClassifier: sequence classification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets

from rnnkit import training
from rnnkit.errors import message
from rnnkit.sklearn.base import RecurrentEstimator
from rnnkit.training import arguments


@dataclass(kw_only=True, eq=False, repr=False)
class RNNClassifier(ClassifierMixin, RecurrentEstimator):
    """Classify sequences with a recurrent network.

    A stack of recurrent layers reads each sequence; its outputs are pooled to one vector, and a linear readout gives a
    score for each class. Trained with Adam on softmax cross-entropy, in batches of sequences of similar length.

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
        restores the best parameters. The split is stratified.
    validation_fraction : float
        Fraction of the samples in the validation set.
    n_iter_no_change : int
        Epochs without improvement before stopping, see `early_stopping`.
    standardize : bool
        Whether to scale each feature to mean 0 and standard deviation 1 over all steps of the training sequences, in
        `partial_fit` those of the first call.
    dtype : {"float32", "float64"}
        Floating-point type of the network.
    random_state : int, RandomState or None
        Seed; with an int, results are bit-identical in each run, for any number of threads.
    verbose : bool
        Whether `fit` shows a progress bar (needs the package tqdm).
    class_weight : None, "balanced" or dict
        Weight of each class in the loss; "balanced" is num_samples / (num_classes * samples of the class). Classes that
        are not in a dict have weight 1.

    Attributes
    ----------
    classes_ : ndarray (num_classes,)
        The classes, sorted.
    network_ : LSTM, GRU or RNN
        The trained rnnkit network. It expects standardized features.
    readout_ : ndarray
        Flat buffer of the readout, as :func:`rnnkit.training.dense` takes it.
    feature_mean_, feature_scale_ : ndarray (num_features,)
        Mean and scale that standardize each feature; 0 and 1 without `standardize`.
    loss_curve_ : list of float
        Mean training loss of each epoch.
    validation_curve_ : list of float
        Mean validation loss after each epoch; only with `early_stopping`.
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
    >>> from rnnkit.sklearn import RNNClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = [rng.normal(size=(length, 2)).cumsum(axis=0) for length in rng.integers(5, 15, 100)]
    >>> y = [int(sequence[-1, 0] > sequence[0, 0]) for sequence in X]
    >>> model = RNNClassifier(hidden_size=16, epochs=30, random_state=0).fit(X[:80], y[:80])
    >>> model.score(X[80:], y[80:]) > 0.8
    True
    >>> model.predict_proba(X[80:83]).shape
    (3, 2)
    """

    class_weight: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a new network.

        Parameters
        ----------
        X : list of ndarray (T_i, num_features), ndarray (N, T, num_features) or table (N, T)
            The sequences, each of at least one step; finite.
        y : array_like (N,)
            Class of each sequence.
        sample_weight : array_like (N,), optional
            Weight of each sequence's loss, at least 0. Weights, including class weights, are normalised to mean 1.
            Sequences of weight 0 are ignored.

        Returns
        -------
        RNNClassifier
            The estimator itself.

        Raises
        ------
        TypeError, ValueError
            A setting or an argument is invalid, or the gradient is not finite.
        """
        return self._fit(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train the existing network for one epoch; the first call sets up a new one.

        The optimizer resumes from the last call of `partial_fit`; after `fit` its state is reset.

        Parameters
        ----------
        X : list of ndarray (T_i, num_features), ndarray (N, T, num_features) or table (N, T)
            The sequences, each of at least one step; finite.
        y : array_like (N,)
            Class of each sequence.
        classes : array_like (num_classes,), optional
            All classes of all calls; required in the first call.
        sample_weight : array_like (N,), optional
            Weight of each sequence's loss, at least 0; not normalised.

        Returns
        -------
        RNNClassifier
            The estimator itself.

        Raises
        ------
        TypeError, ValueError
            A setting or an argument is invalid, or the gradient is not finite.
        """
        if self.class_weight == "balanced":
            cure = "pass a dict, or sample_weight"
            raise ValueError(message("partial_fit", "class_weight", "be None or a dict", '"balanced"', cure))
        known = self.classes_ if hasattr(self, "n_iter_") else None
        if classes is not None:
            given = np.unique(classes)
            if known is not None and not np.array_equal(given, known):
                expected = f"be those of the first call, {known.tolist()}"
                raise ValueError(message("partial_fit", "classes", expected, given.tolist()))
            self.classes_ = given
        elif known is None:
            cure = "pass all classes, for example numpy.unique(y) of all data"
            raise ValueError(message("partial_fit", "classes", "be given in the first call", "None", cure))
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each sequence.

        Parameters
        ----------
        X : list of ndarray (T_i, num_features), ndarray (N, T, num_features) or table (N, T)
            The sequences.

        Returns
        -------
        ndarray (N,)
            Classes, in the dtype of `classes_`.

        Raises
        ------
        NotFittedError, TypeError, ValueError
            Not fitted, or X is invalid.
        """
        scores = self._scores("predict", X)
        return self.classes_[scores.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class.

        Parameters
        ----------
        X : list of ndarray (T_i, num_features), ndarray (N, T, num_features) or table (N, T)
            The sequences.

        Returns
        -------
        ndarray (N, num_classes), float64
            In the order of `classes_`.

        Raises
        ------
        NotFittedError, TypeError, ValueError
            Not fitted, or X is invalid.
        """
        return softmax(self._scores("predict_proba", X), axis=1)

    def _targets(self, function: str, y: Any) -> np.ndarray:
        """Return class indices into `classes_`, which `fit` sets."""
        y = column_or_1d(check_array(y, ensure_2d=False, dtype=None, input_name="y"), warn=True)
        check_classification_targets(y)
        if function == "fit":
            self.classes_ = np.unique(y)
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            expected = f"hold only classes of {self.classes_.tolist()}"
            raise ValueError(message(function, "y", expected, repr(unknown[:1].tolist()[0])))
        return np.searchsorted(self.classes_, y)

    def _num_outputs(self, targets: np.ndarray) -> int:
        return len(self.classes_)

    def _class_weights(self, targets: np.ndarray) -> np.ndarray:
        """Return the weight of the class of each target."""
        if self.class_weight not in (None, "balanced") and not isinstance(self.class_weight, dict):
            expected = 'be None, "balanced" or a dict'
            raise ValueError(message("RNNClassifier", "class_weight", expected, repr(self.class_weight)))
        for label, weight in self.class_weight.items() if isinstance(self.class_weight, dict) else ():
            name = f"class_weight[{label!r}]"
            if label not in self.classes_:
                expected = f"name a class of {self.classes_.tolist()}"
                raise ValueError(message("RNNClassifier", name, expected, "an unknown class"))
            arguments.finite("RNNClassifier", name, weight)
        return compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_[targets])[targets]

    def _loss(self, scores: np.ndarray, targets: np.ndarray) -> training.Loss:
        return training.softmax_cross_entropy(scores, targets, out=scores)
