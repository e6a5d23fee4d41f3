"""Monte Carlo tree search (mctx) in the environment itself or in a model of it, guided by a policy and its values."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.adapters.importing import import_suite
from jaxagents.policies.evaluating import EvaluatingPolicy
from jaxagents.policies.latent_model import LatentModel
from jaxagents.types import Array, Discrete, Environment, Params, PolicyInput, State, TimeStep


@struct.dataclass
class SearchResult:
    """What a search of one state found.

    Attributes:
        action: int32 `[]`, to take.
        weights: float32 `[A]`, improved policy: visit counts, or the completed values of Gumbel searches.
        value: float32 `[]`, of the state, for who acts in it.
    """

    action: Array
    weights: Array
    value: Array


TreeSearch = Callable[[Params, Array, State, TimeStep], SearchResult]
"""`(params, key, state, timestep) -> SearchResult` of one instance; callers vmap."""


def make_tree_search(
    environment: Environment,
    policy: EvaluatingPolicy,
    *,
    method: Callable[..., Any],
    num_simulations: int,
    max_depth: int | None = None,
    discount: float = 1.0,
) -> TreeSearch:
    """Makes the search of a world whose rules are known.

    Every simulation steps the environment from a state that the tree has reached to a new one, whose prior and value
    are those of the network. In a game that is seen as one stream (`environments.wrappers.alternating`), the value of
    a successor counts with the sign of `info["perspective"]`.

    Args:
        environment: single instance with discrete actions, without automatic resets; chance is drawn anew in every
            simulation.
        policy: priors and values.
        method: `mctx.gumbel_muzero_policy`, `mctx.muzero_policy` or alike, with its numbers.
        num_simulations: of every search.
        max_depth: of the tree; None for none but the simulations.
        discount: per step.

    Returns:
        The search.

    Raises:
        ValueError: the actions are not discrete, there are several streams of rewards, or nothing to search with.
        ModuleNotFoundError: mctx is not installed.

    References:
        Silver et al. (2018), A general reinforcement learning algorithm that masters chess, shogi and Go; Danihelka et
        al. (2022), Policy improvement by planning with Gumbel.
    """
    _require_budget(num_simulations, max_depth)
    if not isinstance(environment.action_space, Discrete):
        raise ValueError(
            f"`action_space` must be Discrete for a tree search, got {environment.action_space}; try `make_cem`."
        )
    if environment.num_players > 1:
        raise ValueError(
            f"`environment` must have one stream of rewards, got {environment.num_players} players in "
            f"{environment.name!r}; wrap it in `alternating`."
        )
    mctx = import_suite("mctx", extra="search")

    def judge(params: Params, timestep: TimeStep) -> tuple[Array, Array]:
        first = jnp.zeros((1, 1), bool)
        inputs = jax.tree.map(lambda leaf: leaf[None, None], (timestep.observation, timestep.action_mask))
        told = PolicyInput(observation=inputs[0], first=first, action_mask=inputs[1])
        _, distribution, value = policy.evaluate(params, policy.initial_carry((1,)), told)
        return distribution.log_probs()[0, 0], value[0, 0]

    def expand(params: Params, key: Array, action: Array, state: State) -> tuple[Any, State]:
        state, timestep = environment.step(key, jax.tree.map(lambda leaf: leaf[0], state), action[0])
        logits, value = judge(params, timestep)
        sign = timestep.info.get("perspective", jnp.float32(1.0))
        leaf = mctx.RecurrentFnOutput(
            reward=timestep.reward[None],
            discount=jnp.where(timestep.terminated, 0.0, discount * sign)[None],
            prior_logits=logits[None],
            value=value[None],
        )
        return leaf, jax.tree.map(lambda leaf: leaf[None], state)

    def search(params: Params, key: Array, state: State, timestep: TimeStep) -> SearchResult:
        logits, value = judge(params, timestep)
        root = mctx.RootFnOutput(
            prior_logits=logits[None], value=value[None], embedding=jax.tree.map(lambda leaf: leaf[None], state)
        )
        forbidden = None if timestep.action_mask is None else ~timestep.action_mask[None]
        found = method(params, key, root, expand, num_simulations, invalid_actions=forbidden, max_depth=max_depth)
        return _result(found)

    return search


def make_latent_search(
    model: LatentModel,
    *,
    method: Callable[..., Any],
    num_simulations: int,
    max_depth: int | None = None,
    discount: float = 1.0,
) -> TreeSearch:
    """Makes the search of a world whose rules are learned: it sees the observation, and its model from there on.

    Args:
        model: foresees rewards, priors and values; of one agent, and it knows no ends but rewards and values of zero.
        method: see `make_tree_search`.
        num_simulations: of every search.
        max_depth: of the tree; None for none but the simulations.
        discount: per step.

    Returns:
        The search.

    Raises:
        ValueError: nothing to search with.
        ModuleNotFoundError: mctx is not installed.

    References:
        Schrittwieser et al. (2020), Mastering Atari, Go, chess and shogi by planning with a learned model, appendix B.
    """
    _require_budget(num_simulations, max_depth)
    mctx = import_suite("mctx", extra="search")

    def expand(params: Params, key: Array, action: Array, latent: Array) -> tuple[Any, Array]:
        del key
        latent, reward = model.step(params, latent, action)
        logits, value = model.predict(params, latent)
        discounts = jnp.full_like(reward, discount)
        return mctx.RecurrentFnOutput(reward=reward, discount=discounts, prior_logits=logits, value=value), latent

    def search(params: Params, key: Array, state: State, timestep: TimeStep) -> SearchResult:
        del state
        latent = model.represent(params, jax.tree.map(lambda leaf: leaf[None], timestep.observation))
        logits, value = model.predict(params, latent)
        root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=latent)
        forbidden = None if timestep.action_mask is None else ~timestep.action_mask[None]
        found = method(params, key, root, expand, num_simulations, invalid_actions=forbidden, max_depth=max_depth)
        return _result(found)

    return search


def _require_budget(num_simulations: int, max_depth: int | None) -> None:
    if num_simulations < 1:
        raise ValueError(f"`num_simulations` must be at least 1, got {num_simulations}; try 16.")
    if max_depth is not None and max_depth < 1:
        raise ValueError(f"`max_depth` must be at least 1 or null, got {max_depth}; try null.")


def _result(found: Any) -> SearchResult:
    """Takes what there is of a search of one state."""
    return SearchResult(
        action=found.action[0].astype(jnp.int32),
        weights=found.action_weights[0],
        value=found.search_tree.summary().value[0],
    )
