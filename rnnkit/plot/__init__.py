"""Pictures of networks, calls and training runs with Matplotlib (extra `plot`).

Each function returns a `matplotlib.figure.Figure` on a white ground, which a notebook shows and `savefig` writes. None
of them uses pyplot, so no figure stays open.

>>> import numpy as np, rnnkit, rnnkit.plot
>>> net = rnnkit.LSTM(3, 16, seed=0)
>>> result = net.forward(np.ones((20, 1, 3), np.float32))
>>> figure = rnnkit.plot.gates(result.workspace)
>>> [axes.get_title("left") for axes in figure.axes[:4]]
['i', 'f', 'g', 'o']
"""

from rnnkit.plot.curves import training
from rnnkit.plot.heat_maps import gates, states
from rnnkit.plot.timeline import explanation

__all__ = ["explanation", "gates", "states", "training"]
