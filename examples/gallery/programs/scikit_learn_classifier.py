"""
Which sequences a scikit-learn estimator confuses
=================================================

`RNNClassifier` learns four kinds of movement from sequences of different
lengths. Cross-validation gives the confusion matrix.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import ConfusionMatrixDisplay, accuracy_score
from sklearn.model_selection import cross_val_predict

from rnnkit.sklearn import RNNClassifier

KINDS = ["circle", "eight", "line", "walk"]
rng = np.random.default_rng(0)


def movement(kind):
    """Noisy steps in the plane (T_i, 2)."""
    steps = rng.integers(15, 40)
    angle = rng.uniform(0, 6) + rng.uniform(0.2, 0.4) * np.arange(steps)
    if kind == "circle":
        place = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    elif kind == "eight":
        place = np.stack([np.cos(angle), np.sin(2 * angle)], axis=1)
    elif kind == "line":
        place = np.stack([np.cos(angle), 0.5 * np.cos(angle)], axis=1)
    else:
        place = rng.normal(0, 0.4, (steps, 2)).cumsum(axis=0)
    return place + rng.normal(0, 0.35, place.shape)


kinds = rng.choice(KINDS, 400)
sequences = [movement(kind) for kind in kinds]
model = RNNClassifier(hidden_size=16, epochs=25, random_state=0)
predicted = cross_val_predict(model, sequences, kinds, cv=4)
print(f"accuracy: {accuracy_score(kinds, predicted):.2f}")

# %%
figure, (paths, matrix) = plt.subplots(1, 2, figsize=(8, 3.7))
for number, kind in enumerate(KINDS):
    path = sequences[np.flatnonzero(kinds == kind)[0]]
    paths.plot(*(path - path.mean(axis=0) + [4 * number, 0]).T)
paths.set(xticks=[0, 4, 8, 12], xticklabels=KINDS, yticks=[])
ConfusionMatrixDisplay.from_predictions(
    kinds, predicted, ax=matrix, colorbar=False, cmap="Blues"
)
plt.tight_layout()
plt.show()
