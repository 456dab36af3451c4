"""RNNClassifier: the scores of a network are those of classes."""

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
    """A recurrent network that tells the class of a sequence.

    A stack of recurrent layers reads each sequence; its outputs are pooled to one vector, and a linear readout gives a
    score for each class. Trained with Adam on softmax cross-entropy, in batches of sequences of similar length.

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
        epochs, and goes back to the parameters with which it was least. Each class has about the same share in it.
    validation_fraction : float
        The share of that part.
    n_iter_no_change : int
        Epochs to wait, see `early_stopping`.
    standardize : bool
        Whether each feature is brought to mean 0 and standard deviation 1, as found over all steps of the sequences
        that are trained on; with `partial_fit` those of the first call.
    dtype : {"float32", "float64"}
        What is computed in.
    random_state : int, RandomState or None
        An int gives the same bits each time, on any number of threads.
    verbose : bool
        Whether `fit` shows a bar, which needs the package tqdm.
    class_weight : None, "balanced" or dict
        What the losses of a class are multiplied by; "balanced" is num_samples / (num_classes * samples of the class).
        Classes that a dict leaves out have 1.

    Attributes
    ----------
    classes_ : ndarray (num_classes,)
        The classes, sorted.
    network_ : LSTM, GRU or RNN
        The network of rnnkit itself. It expects standardized features.
    readout_ : ndarray
        Flat buffer of the readout, as :func:`rnnkit.training.dense` takes it.
    feature_mean_, feature_scale_ : ndarray (num_features,)
        What each feature is standardized with; 0 and 1 without `standardize`.
    loss_curve_ : list of float
        Mean loss of the training part in each epoch.
    validation_curve_ : list of float
        Mean loss of the validation part after each epoch; only with `early_stopping`.
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
            The class of each.
        sample_weight : array_like (N,), optional
            What the loss of each sequence is multiplied by, at least 0. Weights, those of the classes included, are
            divided by their mean. A sequence of weight 0 is as if it were not there.

        Returns
        -------
        RNNClassifier
            The estimator itself.

        Raises
        ------
        TypeError, ValueError
            A setting or an argument is wrong, or the gradient has become infinite.
        """
        return self._fit(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch, on the network that is there; the first call sets up a new one.

        The optimizer goes on where the last call of `partial_fit` left it; after `fit` it begins anew.

        Parameters
        ----------
        X : list of ndarray (T_i, num_features), ndarray (N, T, num_features) or table (N, T)
            The sequences, each of at least one step; finite.
        y : array_like (N,)
            The class of each.
        classes : array_like (num_classes,), optional
            All classes that will come; needed in the first call.
        sample_weight : array_like (N,), optional
            What the loss of each sequence is multiplied by, at least 0; as they are.

        Returns
        -------
        RNNClassifier
            The estimator itself.

        Raises
        ------
        TypeError, ValueError
            A setting or an argument is wrong, or the gradient has become infinite.
        """
        if self.class_weight == "balanced":
            cure = "give a dict, or sample_weight"
            raise ValueError(message("partial_fit", "class_weight", "be None or a dict", '"balanced"', cure))
        known = self.classes_ if hasattr(self, "n_iter_") else None
        if classes is not None:
            given = np.unique(classes)
            if known is not None and not np.array_equal(given, known):
                expected = f"be those of the first call, {known.tolist()}"
                raise ValueError(message("partial_fit", "classes", expected, given.tolist()))
            self.classes_ = given
        elif known is None:
            cure = "give all that will come, as numpy.unique(y) of all data"
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
            Of the dtype of `classes_`.

        Raises
        ------
        NotFittedError, TypeError, ValueError
            There was no `fit`, or X is wrong.
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
            There was no `fit`, or X is wrong.
        """
        return softmax(self._scores("predict_proba", X), axis=1)

    def _take_targets(self, function: str, y: Any) -> np.ndarray:
        """Return the place of each class in `classes_`, which `fit` sets."""
        y = column_or_1d(check_array(y, ensure_2d=False, dtype=None, input_name="y"), warn=True)
        check_classification_targets(y)
        if function == "fit":
            self.classes_ = np.unique(y)
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            expected = f"hold classes of {self.classes_.tolist()}"
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
                raise ValueError(message("RNNClassifier", name, f"be of {self.classes_.tolist()}", "another class"))
            arguments.finite("RNNClassifier", name, weight)
        return compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_[targets])[targets]

    def _loss(self, scores: np.ndarray, targets: np.ndarray) -> training.Loss:
        return training.softmax_cross_entropy(scores, targets, out=scores)
