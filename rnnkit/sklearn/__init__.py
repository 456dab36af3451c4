"""Recurrent networks as scikit-learn estimators, on sequences of any lengths; needs scikit-learn (extra `sklearn`).

>>> import numpy as np
>>> from rnnkit.sklearn import RNNClassifier
>>> rng = np.random.default_rng(0)
>>> X = [rng.normal(size=(rng.integers(3, 9), 2)) for _ in range(60)]
>>> y = ["up" if sequence[:, 0].sum() > 0 else "down" for sequence in X]
>>> model = RNNClassifier(hidden_size=16, pooling="mean", epochs=50, random_state=0).fit(X, y)
>>> model.predict([np.ones((5, 2)), -np.ones((20, 2))]).tolist()
['up', 'down']
"""

from rnnkit.sklearn.classifier import RNNClassifier
from rnnkit.sklearn.regressor import RNNRegressor

__all__ = ["RNNClassifier", "RNNRegressor"]
