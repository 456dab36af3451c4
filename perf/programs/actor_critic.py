"""PPO with an LSTM, as in single-file implementations: the agent steps its `nn.LSTM` one step at a time.

The state is multiplied by `1 - done` before each step, in the rollout and again in each update. The environment is
generated: in each the agent is shown a signal, and some steps later has to say which.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from perf.programs.program import Program

_ENVS, _STEPS, _SIGNALS, _DELAY, _HIDDEN = 8, 64, 4, 6, 64
_EPOCHS, _MINIBATCHES = 2, 2


class Rollout(NamedTuple):
    """What the agent saw and did, by step and environment."""

    x: Any  # (T, N, I)
    done: Any  # (T, N), whether an episode starts at this step
    action: Any  # (T, N)
    log_prob: Any  # (T, N)
    reward: Any  # (T, N)
    value: Any  # (T + 1, N)


def _agent() -> Any:
    import torch
    from torch import nn

    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(_SIGNALS + 1, _HIDDEN), nn.ReLU())
            self.lstm = nn.LSTM(_HIDDEN, _HIDDEN)
            self.actor, self.critic = nn.Linear(_HIDDEN, _SIGNALS), nn.Linear(_HIDDEN, 1)

        def forward(self, x: Any, done: Any, state: Any) -> tuple[Any, Any, Any]:
            """Logits (T, N, A), values (T, N) and the last state, from inputs (T, N, I)."""
            outputs = []
            for features, ended in zip(self.encoder(x), done, strict=True):
                keep = (1.0 - ended).view(1, -1, 1)
                y, state = self.lstm(features.unsqueeze(0), (keep * state[0], keep * state[1]))
                outputs.append(y)
            y = torch.cat(outputs)
            return self.actor(y), self.critic(y).squeeze(-1), state

    return Agent()


def _observe(step: int, signals: Any) -> tuple[Any, Any]:
    """Inputs (1, N, I) and whether an episode starts (1, N): the signal is shown then, and asked for at its end."""
    import torch

    phase = (step + torch.arange(len(signals))) % _DELAY
    x = torch.zeros(1, len(signals), _SIGNALS + 1)
    x[0, :, :_SIGNALS] = torch.nn.functional.one_hot(signals, _SIGNALS) * (phase == 0).unsqueeze(1)
    x[0, :, _SIGNALS] = phase == _DELAY - 1
    return x, (phase == 0).float().unsqueeze(0)


def _zeros(count: int) -> tuple[Any, Any]:
    import torch

    return torch.zeros(1, count, _HIDDEN), torch.zeros(1, count, _HIDDEN)


def _roll_out(agent: Any, signals: Any, state: Any) -> tuple[Rollout, Any]:
    import torch

    seen = []
    with torch.no_grad():
        for step in range(_STEPS):
            x, done = _observe(step, signals)
            signals = torch.where(done[0] > 0, torch.randint(_SIGNALS, signals.shape), signals)
            x, _ = _observe(step, signals)
            logits, value, state = agent(x, done, state)
            choice = torch.distributions.Categorical(logits=logits)
            action = choice.sample()
            reward = x[..., _SIGNALS] * (action == signals)
            seen.append((x, done, action, choice.log_prob(action), reward, value))
        _, value, _ = agent(*_observe(_STEPS, signals), state)
    *rest, values = (torch.cat(column) for column in zip(*seen, strict=True))
    return Rollout(*rest, torch.cat([values, value])), state


def _advantages(seen: Rollout, discount: float = 0.95, decay: float = 0.9) -> Any:
    import torch

    advantages, later = torch.zeros_like(seen.reward), torch.zeros(_ENVS)
    for step in reversed(range(_STEPS)):
        ended = seen.done[step + 1] if step + 1 < _STEPS else torch.zeros(_ENVS)
        error = seen.reward[step] + discount * (1 - ended) * seen.value[step + 1] - seen.value[step]
        advantages[step] = later = error + discount * decay * (1 - ended) * later
    return advantages


def _loss(agent: Any, seen: Rollout, advantages: Any, rows: Any, state: Any) -> Any:
    import torch

    logits, value, _ = agent(seen.x[:, rows], seen.done[:, rows], tuple(one[:, rows] for one in state))
    choice = torch.distributions.Categorical(logits=logits)
    ratio = (choice.log_prob(seen.action[:, rows]) - seen.log_prob[:, rows]).exp()
    gain = torch.min(ratio * advantages[:, rows], ratio.clamp(0.8, 1.2) * advantages[:, rows]).mean()
    target = (advantages + seen.value[:-1])[:, rows]
    return 0.5 * (value - target).square().mean() - gain - 0.01 * choice.entropy().mean()


def _fit(updates: int) -> Any:
    import torch

    agent, state = _agent(), _zeros(_ENVS)
    optimizer = torch.optim.Adam(agent.parameters(), 2.5e-3, eps=1e-5)
    signals = torch.zeros(_ENVS, dtype=torch.int64)
    for _ in range(updates):
        seen, after = _roll_out(agent, signals, state)
        advantages = _advantages(seen)
        for _ in range(_EPOCHS):
            for rows in torch.randperm(_ENVS).chunk(_MINIBATCHES):
                optimizer.zero_grad()
                _loss(agent, seen, advantages, rows, state).backward()
                torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        state = after
    return agent


def _predict(agent: Any) -> Any:
    import torch

    seen, _ = _roll_out(agent, torch.zeros(1, dtype=torch.int64), _zeros(1))
    return seen.value.numpy()


def _parameters() -> Any:
    return {name: value.numpy() for name, value in _fit(updates=2).state_dict().items()}


PROGRAMS = (Program("own/ppo-lstm", ("torch",), partial(_fit, 10), _predict, _parameters),)
