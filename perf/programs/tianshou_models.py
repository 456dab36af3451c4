"""tianshou: a DQN whose network has an LSTM, which sees the last four observations in training."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from perf.programs.program import Program


def _fit(steps: int) -> Any:
    import gymnasium
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Recurrent

    envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4)
    envs.seed(0)
    space = envs.action_space[0]
    space.seed(0)
    net = Recurrent(layer_num=1, state_shape=4, action_shape=2, hidden_layer_size=64)
    policy = DiscreteQLearningPolicy(model=net, action_space=space, eps_training=0.1)
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(1e-3), n_step_return_horizon=3, target_update_freq=100)
    buffer = VectorReplayBuffer(2000, buffer_num=4, stack_num=4, ignore_obs_next=True)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=128)
    algorithm.run_training(OffPolicyTrainerParams(
        training_collector=collector, test_collector=None, max_epochs=1, epoch_num_steps=steps, batch_size=64,
        collection_step_num_env_steps=16, update_step_num_gradient_steps_per_sample=0.5, show_progress=False,
    ))  # fmt: skip
    return algorithm


def _predict(algorithm: Any) -> Any:
    import torch
    from tianshou.data import Batch

    observations = np.random.default_rng(0).standard_normal((200, 4, 4)).astype(np.float32)
    state, logits = None, []
    for one in observations:  # of four environments
        with torch.no_grad():
            result = algorithm.policy(Batch(obs=one, info={}), state)
        state = result.state
        logits.append(result.logits.numpy())
    return np.stack(logits)


def _parameters() -> Any:
    return {name: value.numpy() for name, value in _fit(16).policy.state_dict().items()}


PROGRAMS = (Program("tianshou/dqn-lstm", ("tianshou", "gymnasium"), partial(_fit, 640), _predict, _parameters),)
