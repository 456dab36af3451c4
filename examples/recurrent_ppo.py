"""Recurrent PPO, compiled as one JAX program.

The agent must name the card shown two steps before.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax import lax

import rnnkit.jax
from rnnkit.cells import unrolled

GAMES, STEPS, HIDDEN, CARDS, BACK, EPOCHS = 16, 64, 64, 4, 2, 4
NET, OPTIMIZER = rnnkit.GRU(CARDS, HIDDEN, seed=0), optax.adam(2e-3)
LAYERS = {
    "lax.scan": unrolled(NET.desc, "jax"),
    "rnnkit": partial(rnnkit.jax.rnn, NET),
}


# cards (T, N): log-probabilities, values, and the state
def policy(layer, params, cards, h, resets):
    x = jax.nn.one_hot(cards, CARDS)
    y, h, *_ = layer(params["w"], x, h, resets=resets)
    found = y @ params["heads"]
    return jax.nn.log_softmax(found[..., :-1]), found[..., -1], h


def chosen(logs, actions):
    return jnp.take_along_axis(logs, actions[..., None], -1)[..., 0]


def play(layer, params, now, key):  # one step of all games
    cards, h, reset = now  # the newest card first
    logs, values, h = policy(layer, params, cards[:1], h, reset[None])
    keys = jax.random.split(key, 3)
    actions = jax.random.categorical(keys[0], logs[0])
    # the next card is the first one of another game
    ends = jax.random.bernoulli(keys[1], 0.05, (GAMES,))
    new = jax.random.randint(keys[2], (1, GAMES), 0, CARDS)
    following = jnp.concatenate([new, jnp.where(ends, -1, cards[:-1])])
    before, right = chosen(logs[0], actions), actions == cards[-1]
    step = cards[0], reset, actions, before, values[0], right, ends
    return (following, h, ends), step


def loss(layer, params, h, cards, resets, actions, before, gains, returns):
    logs, values, _ = policy(layer, params, cards, h, resets)
    ratio = jnp.exp(chosen(logs, actions) - before)
    gain = jnp.minimum(ratio * gains, jnp.clip(ratio, 0.8, 1.2) * gains)
    error = ((values - returns) ** 2).mean()
    entropy = -(jnp.exp(logs) * logs).sum(-1).mean()
    return -gain.mean() + 0.5 * error - 0.01 * entropy


@partial(jax.jit, static_argnums=0)
def update(layer, params, optimizer, now, key):
    h = now[1]
    keys = jax.random.split(key, STEPS)
    now, played = lax.scan(partial(play, layer, params), now, keys)
    cards, resets, actions, before, values, right, ends = played

    def back(carry, step):  # generalised advantage estimation
        advantage, following = carry
        value, reward, end = step
        future = jnp.where(end, 0, following + 0.9 * advantage)
        advantage = reward + 0.9 * future - value
        return (advantage, value), advantage

    last, steps = (
        (jnp.zeros(GAMES), values[-1]),
        (values, right * 1.0, ends),
    )
    _, advantages = lax.scan(back, last, steps, reverse=True)
    gains = (advantages - advantages.mean()) / advantages.std()
    returns = advantages + values
    given = h, cards, resets, actions, before, gains, returns

    def learn(carry, _):
        params, optimizer = carry
        gradients = jax.grad(partial(loss, layer))(params, *given)
        changes, optimizer = OPTIMIZER.update(gradients, optimizer)
        return (optax.apply_updates(params, changes), optimizer), None

    start = params, optimizer
    (params, optimizer), _ = lax.scan(learn, start, length=EPOCHS)
    return params, optimizer, now, right.mean()


for name, layer in LAYERS.items():
    heads = 0.1 * jax.random.normal(jax.random.key(1), (HIDDEN, CARDS + 1))
    params = {"w": jnp.asarray(NET.weights), "heads": heads}
    cards = jnp.full((BACK + 1, GAMES), -1).at[0].set(0)
    first = cards, jnp.zeros((1, GAMES, HIDDEN)), jnp.ones(GAMES, bool)
    state = params, OPTIMIZER.init(params), first
    *state, _ = update(layer, *state, jax.random.key(0))  # compiles
    start = time.perf_counter()
    for number in range(1, 200):
        *state, right = update(layer, *state, jax.random.key(number))
    milliseconds = (time.perf_counter() - start) / 199 * 1e3
    print(
        f"{name:8} right answers after 200 updates: {right:.2f}   "
        f"{milliseconds:.1f} ms an update"
    )
