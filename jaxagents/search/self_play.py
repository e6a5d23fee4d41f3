"""Experience of a policy that searches before it acts, as in AlphaZero."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.environments.openings import random_openings
from jaxagents.environments.squashing import squash_actions
from jaxagents.environments.vectorized import vectorize
from jaxagents.environments.wrappers import episode_statistics
from jaxagents.ops.checks import check_counts
from jaxagents.policies.evaluating import EvaluatingPolicy
from jaxagents.policies.latent_model import LatentModel
from jaxagents.rollouts.unroll import RolloutState, begin_rollout, episode_metrics, make_transition
from jaxagents.search.tree_search import SearchResult, candidates_of, make_latent_search, make_tree_search
from jaxagents.types import (
    Array,
    Collector,
    Count,
    Environment,
    Mean,
    Metrics,
    Params,
    PolicyInput,
    PyTree,
    Rollout,
    TimeStep,
    Transition,
)

WEIGHTS = "search_policy"
"""Entry of `transition.extras`: the improved policy of the search, float32 `[T, B, A]`."""

CANDIDATES = "search_actions"
"""Entry of `transition.extras`: the continuous actions that were searched, unsquashed, float32 `[T, B, K, D]`."""


def make_search_collector(
    environment: Environment,
    policy: EvaluatingPolicy | LatentModel,
    *,
    method: Callable[..., Any],
    num_simulations: int,
    num_envs: int,
    num_steps: int,
    max_depth: int | None = None,
    discount: float = 1.0,
    num_samples: int | None = None,
    proposal_scale: float = 1.0,
    opening_moves: int = 0,
    reset_pool: int | None = None,
    level: int | None = None,
) -> Collector:
    """Makes a collector in which a tree search chooses every action, in one compiled loop.

    Args:
        environment: single instance with one stream of rewards: games in `alternating`, so that both players search.
        policy: policy that guides the search, in the environment itself or, for a `LatentModel`, in its predictions.
        method: see `make_tree_search`.
        num_simulations: see `make_tree_search`.
        num_envs: B, number of environments over all devices.
        num_steps: T, number of steps.
        max_depth: see `make_tree_search`.
        discount: per step.
        num_samples: K, number of continuous actions in every node, see `sampled_actions`; None for discrete actions.
        proposal_scale: see `sampled_actions`.
        opening_moves: greatest number of random moves before every game, see `environments.openings.random_openings`.
            Without them, both players soon repeat the same games, and learn about no others.
        reset_pool: see `vectorize`.
        level: difficulty of the tasks.

    Returns:
        The collector. Its batches are `Rollout`s with `extras["search_policy"]`, and `extras["search_actions"]` for
        continuous actions; metrics are those of rollouts and `search_value`, the mean value of the roots.

    Raises:
        ValueError: a size is not positive, or see `make_tree_search`.

    References:
        Silver et al. (2018), A general reinforcement learning algorithm that masters chess, shogi and Go.
    """
    check_counts(num_envs=num_envs, num_steps=num_steps)
    space = environment.action_space
    candidates = candidates_of(space, num_samples, proposal_scale)
    options: dict[str, Any] = {"num_simulations": num_simulations, "max_depth": max_depth, "discount": discount}
    options["candidates"] = candidates
    if isinstance(policy, LatentModel):
        search = make_latent_search(policy, method=method, **options)
    else:
        search = make_tree_search(environment, policy, method=method, **options)
    opened = random_openings(squash_actions(environment), opening_moves)
    batch = vectorize(episode_statistics(opened), reset_pool=reset_pool, level=level)

    def init(key: Array, params: Params) -> RolloutState:
        del params
        start = batch.reset(key, jnp.arange(num_envs, dtype=jnp.int32))
        return begin_rollout(*start, (), jnp.zeros((num_envs, *space.shape), space.dtype))

    def collect(state: RolloutState, params: Params, key: Array) -> tuple[RolloutState, Rollout, Metrics]:
        draw_key, search_key = jax.random.split(key)
        draws, shared = batch.draw(draw_key, state.index, num_steps)
        keys = jax.vmap(lambda index: jax.random.split(jax.random.fold_in(search_key, index), num_steps), out_axes=1)(
            state.index
        )

        def step(state: RolloutState, inputs: tuple[PyTree, Array]):
            draws_t, keys_t = inputs
            found = jax.vmap(search, in_axes=(None, 0, 0, 0))(params, keys_t, state.environment.inner, state.timestep)
            environments, after = batch.step(state.environment, found.action, draws_t, shared)
            following = state.replace(
                environment=environments,
                timestep=after,
                first=after.terminated | after.truncated,
                previous_action=found.action,
            )
            return following, (_transition(state, found, after), after, found.value)

        state, (transition, after, value) = jax.lax.scan(step, state, (draws, keys))
        ended = after.terminated | after.truncated
        counts = {"episodes": Count(jnp.sum(ended, dtype=jnp.int32)), "env_steps": Count(jnp.int32(ended.size))}
        found = {"search_value": Mean(total=jnp.sum(value), count=jnp.float32(value.size))}
        return state, Rollout(transition=transition, carry=()), episode_metrics(after) | counts | found

    return Collector(init=init, collect=collect, steps_per_collect=num_envs * num_steps)


def _transition(state: RolloutState, found: SearchResult, after: TimeStep) -> Transition:
    before, extras = state.timestep, {WEIGHTS: found.weights}
    if jax.tree.leaves(found.candidates):
        extras[CANDIDATES] = found.candidates
    inputs = PolicyInput(observation=before.observation, first=state.first, action_mask=before.action_mask)
    return make_transition(inputs, found.action, found.log_weight, after, **extras)
