"""Words to sounds: g2p-fa, an encoder and a decoder in PyTorch, and g2pM, a BiLSTM in NumPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from perf.programs.converted import Converted

_WORDS = "سلام", "کتاب", "دانشگاه", "ایران", "زندگی", "خورشید", "مهربان", "آسمان"
_SENTENCES = (
    "然而，他红了20年以后，他竟退出了大家的视线。",
    "银行的行长在行走时发现这一行字写得很重要。",
    "他长得很高，还想重新调查那个音乐会的门票。",
    "为了得到觉得好的结果，我们都要还他的钱。",
    "朝阳区的人朝着大厦跑去。",
)


def _farsi() -> Any:
    from g2p_fa import G2P_Fa

    from rnnkit.torch import accelerate

    package, own = G2P_Fa(), G2P_Fa()
    for g2p in (package, own):
        g2p.model.eval()  # the package leaves dropout on, and answers differ from call to call
    accelerate(own.model)
    return partial(_spoken, package), partial(_spoken, own)


def _spoken(g2p: Any) -> list[np.ndarray]:
    """Logits of each word: those that the package's call makes a text of."""
    found: list[np.ndarray] = []
    with g2p.model.register_forward_hook(lambda model, given, logits: found.append(logits.detach().numpy())):
        for word in _WORDS:
            g2p(word)
    return found


def _mandarin() -> Any:
    from g2pM import G2pM

    from rnnkit.interop import from_torch

    class Own(G2pM):
        def load_variable(self, weights: dict[str, np.ndarray]) -> None:
            super().load_variable(weights)
            self.plan = from_torch(weights, "lstm").prepare()

        def predict(self, ids: np.ndarray, places: list[int]) -> np.ndarray:
            y = self.plan.infer(self.embeddings[ids[0], np.newaxis]).y  # (T, 1, 2 * H)
            return self.fc_layer(y[places, 0]).argmax(1)

    return partial(_read, G2pM()), partial(_read, Own())


def _read(g2p: Any) -> list[np.ndarray]:
    """Logits of each sentence's polyphones."""
    found: list[np.ndarray] = []
    layer = type(g2p).fc_layer
    g2p.fc_layer = lambda hidden: found.append(layer(g2p, hidden)) or found[-1]
    for sentence in _SENTENCES * 20:
        g2p(sentence)
    return found


PROGRAMS = (
    Converted("g2p-fa/seq2seq", ("g2p_fa",), _farsi),
    Converted("g2pM/bilstm", ("g2pM",), _mandarin),
)
