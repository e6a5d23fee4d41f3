"""ICM (Pathak et al., 2017) and E3B (Henaff et al., 2022): bonuses in features of what actions change."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct

from jaxagents.learners.bonuses import Bonus, flatten
from jaxagents.learners.checks import check_positive
from jaxagents.learners.optimizers import apply_updates
from jaxagents.ops.checks import check_counts
from jaxagents.ops.novelty import elliptical_bonus
from jaxagents.ops.statistics import RunningStatistics, init_statistics, normalize, update_statistics
from jaxagents.types import REPLICATED, Array, Box, Discrete, Metrics, Params, PyTree, Transition


@struct.dataclass
class CuriosityState:
    """State of a bonus in learned features.

    Attributes:
        params: `{"encoder", "inverse", "forward"}`; the last one for ICM only.
        opt_state: state of the optimiser.
        observations: statistics that normalise observations.
        bonuses: statistics of the bonuses.
        inverse: float32 `[B, F, F]` for E3B, inverse covariances of the running episodes; empty for ICM.
    """

    params: Params
    opt_state: optax.OptState
    observations: RunningStatistics
    bonuses: RunningStatistics
    inverse: PyTree = ()


def make_curiosity_bonus(
    observation_space: Box,
    action_space: Discrete | Box,
    *,
    encoder: nn.Module,
    hidden_size: int = 64,
    learning_rate: float = 1e-3,
    num_steps: int = 1,
    forward_share: float = 0.2,
    ridge: float | None = None,
    axis_name: str | None = None,
) -> Bonus:
    """Makes a bonus in features phi from which the action between two observations can be predicted.

    The features learn from the inverse dynamics, `a_t` from `phi(s_t)` and `phi(s_{t+1})`. ICM's bonus is the error of
    the forward dynamics, `|f(phi(s_t), a_t) - phi(s_{t+1})|^2 / 2`; E3B's is `phi^T C^{-1} phi` over the episode, see
    `elliptical_bonus`. Both are divided by their running deviation.

    Args:
        observation_space: any box; observations are flattened.
        action_space: discrete space, or a box whose actions are read as `tanh(action)`.
        encoder: `[..., D] -> [..., F]`, phi; its last layer should be linear.
        hidden_size: size of the hidden layer of both dynamics models.
        learning_rate: learning rate of Adam.
        num_steps: number of steps per rollout, each on the whole rollout.
        forward_share: beta of ICM, weight of the forward loss; the inverse loss has the rest. Paper: 0.2.
        ridge: lambda of E3B (paper: 0.1); None for ICM.
        axis_name: mapped device axis over which rollouts are split.

    Returns:
        The bonus. Metrics: `inverse_loss`, and for ICM `forward_loss`.

    Raises:
        ValueError: a number is out of its range.

    References:
        Pathak et al. (2017), Curiosity-driven exploration by self-supervised prediction, equations 2 to 7; Henaff et
        al. (2022), Exploration via elliptical episodic bonuses, equation 2.
    """
    check_counts(hidden_size=hidden_size, num_steps=num_steps)
    check_positive(learning_rate=learning_rate, ridge=ridge)
    if not 0.0 <= forward_share <= 1.0:
        raise ValueError(f"`forward_share` must be in [0, 1], got {forward_share}; try 0.2.")
    if not isinstance(observation_space, Box):
        raise ValueError(f"`observation_space` must be a Box, got {observation_space}; try another bonus.")
    discrete, episodic = isinstance(action_space, Discrete), ridge is not None
    size, optimizer = math.prod(observation_space.shape), optax.adam(learning_rate)
    num_actions = action_space.num_values if isinstance(action_space, Discrete) else action_space.shape[0]
    inverse = nn.Sequential([nn.Dense(hidden_size), nn.relu, nn.Dense(num_actions)])
    features = jax.eval_shape(encoder.init_with_output, jax.random.key(0), jnp.zeros((1, size)))[0].shape[-1]
    forward = nn.Sequential([nn.Dense(hidden_size), nn.relu, nn.Dense(features)])

    def init(key: Array, transition: Transition) -> CuriosityState:
        keys = jax.random.split(key, 3)
        params = {"encoder": encoder.init(keys[0], jnp.zeros((1, size)))}
        params["inverse"] = inverse.init(keys[1], jnp.zeros((1, 2 * features)))
        if not episodic:
            params["forward"] = forward.init(keys[2], jnp.zeros((1, features + num_actions)))
        shape = (transition.reward.shape[1], features, features)
        return CuriosityState(
            params=params,
            opt_state=optimizer.init(params),
            observations=init_statistics(jnp.zeros(size)),
            bonuses=init_statistics(jnp.zeros(())),
            inverse=jnp.broadcast_to(jnp.eye(features) / ridge, shape) if episodic else (),
        )

    def encode(params: Params, state: CuriosityState, observation: Array) -> Array:
        return encoder.apply(params["encoder"], normalize(state.observations, observation, clip=5.0))

    def surprise(params: Params, before: Array, action: Array, after: Array) -> Array:
        """Returns `|f(phi(s), a) - phi(s')|^2 / 2`, which does not train the features."""
        before, after = jax.lax.stop_gradient((before, after))
        action = jax.nn.one_hot(action, num_actions) if discrete else jnp.tanh(action)
        predicted = forward.apply(params["forward"], jnp.concatenate([before, action], axis=-1))
        return 0.5 * jnp.sum(jnp.square(predicted - after), axis=-1)

    def objective(params: Params, state: CuriosityState, transition: Transition) -> tuple[Array, Metrics]:
        before, after = (encode(params, state, seen) for seen in (transition.observation, transition.next_observation))
        predicted = inverse.apply(params["inverse"], jnp.concatenate([before, after], axis=-1))
        if discrete:
            errors = optax.softmax_cross_entropy_with_integer_labels(predicted, transition.action)
        else:
            errors = jnp.sum(jnp.square(predicted - jnp.tanh(transition.action)), axis=-1)
        metrics = {"inverse_loss": jnp.mean(errors)}
        if episodic:
            return metrics["inverse_loss"], metrics
        metrics["forward_loss"] = jnp.mean(surprise(params, before, transition.action, after))
        return (1.0 - forward_share) * metrics["inverse_loss"] + forward_share * metrics["forward_loss"], metrics

    def apply(state: CuriosityState, transition: Transition) -> tuple[Array, CuriosityState, Metrics]:
        seen = (transition.observation, transition.next_observation)
        before, after = (flatten(observation, observation_space) for observation in seen)
        transition = transition.replace(observation=before, next_observation=after)
        statistics = update_statistics(state.observations, transition.next_observation, axis_name=axis_name)
        state = state.replace(observations=statistics)
        before, after = (encode(state.params, state, seen) for seen in (before, after))
        covariances: PyTree = ()
        if episodic:
            bonus, covariances = elliptical_bonus(after, before, transition.first, state.inverse, ridge=ridge)
        else:
            bonus = surprise(state.params, before, transition.action, after)
        bonuses = update_statistics(state.bonuses, bonus, axis_name=axis_name)

        def step(carry: tuple[Params, optax.OptState], _: Any) -> tuple[tuple[Params, optax.OptState], Metrics]:
            grads, metrics = jax.grad(objective, has_aux=True)(carry[0], state, transition)
            params, opt_state, _ = apply_updates(grads, *carry, optimizer, axis_name=axis_name)
            return (params, opt_state), metrics

        (params, opt_state), metrics = jax.lax.scan(step, (state.params, state.opt_state), None, num_steps)
        state = state.replace(params=params, opt_state=opt_state, bonuses=bonuses, inverse=covariances)
        metrics = jax.tree.map(lambda values: values[0], metrics)
        return bonus * jax.lax.rsqrt(bonuses.variance + 1e-8), state, metrics

    def partition(state: CuriosityState) -> CuriosityState:
        replicated = jax.tree.map(lambda leaf: REPLICATED, state)
        return replicated.replace(inverse=0) if episodic else replicated

    return Bonus(init=init, apply=apply, partition=partition)
