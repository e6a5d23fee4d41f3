"""The bandit of Tajwar et al. (2024): the benefit of on-policy samples and negative gradients for distant rewards.

A policy over 100 actions starts as a reference whose mass lies at low actions. The reward is a bump, near the mass of
the reference or far from it. Objectives get the same numbers of samples and gradient steps; samples come from the
reference, all at once, or from the policy itself, round by round.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import struct

from jaxagents.losses.preference import squared_margin
from jaxagents.ops.checks import check_counts
from jaxagents.types import Array, Params

NUM_ACTIONS, STATE_SIZE, NUM_TEST_STATES = 100, 100, 100
BUMPS = {"near": 20.0, "far": 70.0}
BUMP_WIDTH = 10.0
_PRETRAINING_STEPS, _PRETRAINING_RATE = 100, 0.01


@struct.dataclass
class Samples:
    """Actions in S states, M groups of N each; leaves `[S, M, N]`.

    Attributes:
        action: int32.
        reward: float32.
        reference_log_prob: float32, log-probabilities under the reference.
    """

    action: Array
    reward: Array
    reference_log_prob: Array


def reference_log_prob() -> np.ndarray:
    """Computes log-probabilities `[100]`: tanh of a Cauchy variable (location -0.7, scale 0.4) in bins of [-1, 1]."""
    with np.errstate(divide="ignore"):
        edges = np.arctanh(np.linspace(-1.0, 1.0, NUM_ACTIONS + 1))
    return np.log(np.diff(np.arctan((edges + 0.7) / 0.4)) / np.pi).astype(np.float32)


def bump(center: Array | float) -> Array:
    """Computes the rewards `exp(-((a - center) / 10)^2)` of all actions, `[100]`."""
    return jnp.exp(-jnp.square((jnp.arange(NUM_ACTIONS) - center) / BUMP_WIDTH))


def best_of_n(log_prob: Array, samples: Samples, *, negative: Array | float = 0.0) -> Array:
    """Computes `-log pi(best) + negative mean log pi(others)` for every group.

    Args:
        log_prob: `[S, M, N]`, log-probabilities of the actions.
        samples: samples with rewards; the first of equally good actions counts as the best.
        negative: strength of the gradient that lowers the others; 0 is maximum likelihood of the best action.

    Returns:
        `[S, M]`.
    """
    best = jax.nn.one_hot(jnp.argmax(samples.reward, axis=-1), log_prob.shape[-1])
    others = jnp.sum((1.0 - best) * log_prob, axis=-1) / (log_prob.shape[-1] - 1)
    return -jnp.sum(best * log_prob, axis=-1) + negative * others


def reward_weighted(log_prob: Array, samples: Samples, *, temperature: Array | float = 0.5) -> Array:
    """Computes `-exp(reward / temperature) log pi(a)`, reward-weighted regression; `[S, M, N]`."""
    return -jnp.exp(samples.reward / temperature) * log_prob


def reinforce(log_prob: Array, samples: Samples) -> Array:
    """Computes `-A log pi(a)` with rewards standardised within the group, `[S, M, N]`."""
    return -_standardized(samples.reward) * log_prob


def ipo_of_pairs(log_prob: Array, samples: Samples, *, coefficient: Array | float = 0.05) -> Array:
    """Computes the mean of `losses.preference.squared_margin` over all pairs of every group, `[S, M]`."""
    return _mean_over_pairs(partial(squared_margin, coefficient=coefficient), log_prob, samples)


def run(
    seed: int,
    *,
    objective: Callable[..., Array],
    on_policy: bool,
    learning_rate: float = 1e-3,
    num_states: int = 10,
    group_size: int = 10,
    num_rounds: int = 100,
    num_inner_steps: int = 15,
) -> dict[str, Any]:
    """Trains one policy for the near bump and one for the far one.

    Args:
        seed: seed of states, parameters and samples.
        objective: `(log_prob [S, M, N], samples, **numbers) -> loss`, whose mean is minimised, or a `functools.partial`
            of such a function with its numbers.
        on_policy: whether a group of actions per state and round is drawn from the policy; else all are drawn from the
            reference before the first step, and every step uses all of them.
        learning_rate: learning rate of Adam.
        num_states: S, number of training states.
        group_size: N, number of actions per state and group.
        num_rounds: number of groups per state.
        num_inner_steps: number of gradient steps per round; on-policy, they use the samples of that round.

    Returns:
        For `near` and `far`: `reward_*`, expected reward of the policy in 100 held-out states; `kl_*` and
            `reverse_kl_*` between policy and reference, both in nats; `entropy_*`; and `reward_curve_*`, after every
            round.

    Raises:
        ValueError: a count is not positive, or groups have no pair.

    References:
        Tajwar et al. (2024), "Preference Fine-Tuning of LLMs Should Leverage Suboptimal, On-Policy Data", section 4.

    Deviation: the reference has the exact probabilities of the bins, not those of 10,000 samples; the policy is fitted
        to it as in the paper.
    Deviation: off-policy arms get as many samples and gradient steps as on-policy ones, in full batches.
    Deviation: rewards are expectations over the policy instead of one sample per state.
    """
    check_counts(num_states=num_states, num_rounds=num_rounds, num_inner_steps=num_inner_steps)
    if group_size < 2:
        raise ValueError(f"`group_size` must be at least 2, got {group_size}; try 10.")
    # Other numbers, or a new partial, need no new compilation.
    numbers = objective.keywords if isinstance(objective, partial) else {}
    results = _train_all(
        seed,
        jnp.asarray(list(BUMPS.values())),
        learning_rate,
        {name: jnp.float32(number) for name, number in numbers.items()},
        objective=objective.func if isinstance(objective, partial) else objective,
        on_policy=on_policy,
        num_states=num_states,
        group_size=group_size,
        num_rounds=num_rounds,
        num_inner_steps=num_inner_steps,
    )
    named = {f"{metric}_{name}": values[i] for metric, values in results.items() for i, name in enumerate(BUMPS)}
    return {name: np.asarray(value).tolist() for name, value in named.items()}


@partial(
    jax.jit,
    static_argnames=("objective", "on_policy", "num_states", "group_size", "num_rounds", "num_inner_steps"),
)
def _train_all(
    seed: Array,
    centers: Array,
    learning_rate: Array,
    numbers: dict[str, Array],
    *,
    objective: Callable[..., Array],
    **settings: Any,
) -> dict[str, Array]:
    train = partial(_train, objective=partial(objective, **numbers), **settings)  # type: Callable[..., Any]
    return jax.vmap(lambda center: train(jax.random.key(seed), center, learning_rate))(centers)


def _network() -> nn.Module:
    layers = [nn.Dense(50), nn.LayerNorm(), nn.relu, nn.Dense(256), nn.relu, nn.Dense(256), nn.relu]  # type: list[Callable[..., Any]]
    return nn.Sequential([*layers, nn.Dense(NUM_ACTIONS), nn.log_softmax])


def _train(
    key: Array,
    center: Array,
    learning_rate: Array,
    *,
    objective: Callable[[Array, Samples], Array],
    on_policy: bool,
    num_states: int,
    group_size: int,
    num_rounds: int,
    num_inner_steps: int,
) -> dict[str, Array]:
    state_key, test_key, init_key, run_key = jax.random.split(key, 4)
    states = jax.random.uniform(state_key, (num_states, STATE_SIZE))
    test_states = jax.random.uniform(test_key, (NUM_TEST_STATES, STATE_SIZE))
    network, rewards, reference = _network(), bump(center), jnp.asarray(reference_log_prob())
    optimizer = optax.adam(learning_rate)

    def draw(key: Array, log_probs: Array, num_groups: int) -> Samples:
        shape = (num_groups, group_size, num_states)
        action = jnp.moveaxis(jax.random.categorical(key, log_probs, shape=shape), -1, 0)
        return Samples(
            action=action,
            reward=rewards[action],
            reference_log_prob=reference[action],
        )

    def loss(params: Params, samples: Samples) -> Array:
        return jnp.mean(objective(_of_actions(network.apply(params, states), samples.action), samples))

    def round_(carry: tuple[Params, optax.OptState], key: Array) -> tuple[tuple[Params, optax.OptState], Array]:
        params, opt_state = carry
        samples = draw(key, jax.lax.stop_gradient(network.apply(params, states)), 1) if on_policy else offline
        step = partial(_descend, optimizer, lambda params: loss(params, samples))
        carry, _ = jax.lax.scan(step, (params, opt_state), None, length=num_inner_steps)
        return carry, jnp.mean(jnp.exp(network.apply(carry[0], test_states)) @ rewards)

    offline = draw(run_key, jnp.broadcast_to(reference, (num_states, NUM_ACTIONS)), num_rounds)
    params = _fit_reference(network, init_key, states, reference)
    start = (params, optimizer.init(params))
    (params, _), curve = jax.lax.scan(round_, start, jax.random.split(run_key, num_rounds))
    return _describe(network.apply(params, test_states), reference, rewards) | {"reward_curve": curve}


def _fit_reference(network: nn.Module, key: Array, states: Array, reference: Array) -> Params:
    """Minimises `KL(policy || reference)` in the training states."""
    params, optimizer = network.init(key, states), optax.adam(_PRETRAINING_RATE)

    def divergence(params: Params) -> Array:
        log_probs = network.apply(params, states)
        return jnp.mean(jnp.sum(jnp.exp(log_probs) * (log_probs - reference[None]), axis=1))

    step = partial(_descend, optimizer, divergence)
    return jax.lax.scan(step, (params, optimizer.init(params)), None, length=_PRETRAINING_STEPS)[0][0]


def _descend(
    optimizer: optax.GradientTransformation, loss: Callable[[Params], Array], carry: tuple[Params, Any], _: None
) -> tuple[tuple[Params, Any], None]:
    params, opt_state = carry
    updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), None


def _describe(log_probs: Array, reference: Array, rewards: Array) -> dict[str, Array]:
    """Computes means over states that describe policies `[S, A]`."""
    probability, difference = jnp.exp(log_probs), log_probs - reference[None]
    return {
        "reward": jnp.mean(probability @ rewards),
        "kl": jnp.mean(jnp.sum(probability * difference, axis=1)),
        "reverse_kl": -jnp.mean(difference @ jnp.exp(reference)),
        "entropy": -jnp.mean(jnp.sum(probability * log_probs, axis=1)),
    }


def _of_actions(log_probs: Array, action: Array) -> Array:
    """Gathers `[S, A]` at `[S, M, N]`."""
    return jax.vmap(lambda row, chosen: row[chosen])(log_probs, action)


def _mean_over_pairs(loss: Callable[[Array], Array], log_prob: Array, samples: Samples) -> Array:
    """Computes the mean loss over the pairs of each group, in which the action with more reward wins, without ties."""
    ratio, reward = log_prob - samples.reference_log_prob, samples.reward
    wins = reward[..., :, None] > reward[..., None, :]
    per_pair = jnp.where(wins, loss(ratio[..., :, None] - ratio[..., None, :]), 0.0)
    return jnp.sum(per_pair, axis=(-2, -1)) / jnp.maximum(jnp.sum(wins, axis=(-2, -1)), 1)


def _standardized(reward: Array) -> Array:
    mean, deviation = jnp.mean(reward, axis=-1, keepdims=True), jnp.std(reward, axis=-1, keepdims=True)
    return (reward - mean) / (deviation + 1e-6)
