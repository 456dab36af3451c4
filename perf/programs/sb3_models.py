"""sb3-contrib: PPO with an LSTM."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from perf.programs.program import Program

_PREDICTED = 200  # steps


def _fit(steps: int) -> Any:
    from sb3_contrib import RecurrentPPO

    sizes = {"lstm_hidden_size": 64}
    model = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", n_steps=256, policy_kwargs=sizes, seed=0, device="cpu")
    return model.learn(steps)


def _predict(model: Any) -> Any:
    env = model.get_env()
    env.seed(0)
    observation, state, starts, actions = env.reset(), None, np.ones(1, bool), []
    for _ in range(_PREDICTED):
        action, state = model.predict(observation, state, starts, deterministic=True)
        observation, _, starts, _ = env.step(action)
        actions.append(action)
    return np.stack(actions)


def _parameters() -> Any:
    return {name: value.numpy() for name, value in _fit(256).policy.state_dict().items()}


PROGRAMS = (
    Program("sb3-contrib/recurrent-ppo", ("sb3_contrib", "gymnasium"), partial(_fit, 512), _predict, _parameters),
)
