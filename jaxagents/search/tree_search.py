"""Monte Carlo tree search (mctx), in the environment or in a model of it, guided by a policy and its values."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.adapters.importing import import_suite
from jaxagents.environments.squashing import squash_actions
from jaxagents.ops.distributions import TanhNormal, is_bounded
from jaxagents.policies.evaluating import EvaluatingPolicy
from jaxagents.policies.latent_model import LatentModel
from jaxagents.types import Array, Discrete, Environment, Params, PolicyInput, PyTree, State, TimeStep


@struct.dataclass
class SearchResult:
    """The result of a search from one state.

    Attributes:
        action: int32 `[]`, action to take; float32 `[D]`, unsquashed, for bounded continuous actions.
        weights: float32 `[A]`, improved policy: from visit counts, or from the completed values of Gumbel searches.
        value: float32 `[]`, value of the state for the player who acts in it.
        log_weight: float32 `[]`, logarithm of the action's weight.
        candidates: actions to which `weights` belong: float32 `[K, D]` sampled actions, or `()` for all discrete
            actions.
    """

    action: Array
    weights: Array
    value: Array
    log_weight: Array
    candidates: PyTree = ()


TreeSearch = Callable[[Params, Array, State, TimeStep], SearchResult]
"""`(params, key, state, timestep) -> SearchResult` of one instance; callers vmap."""


class Candidates(NamedTuple):
    """The branches of the nodes of a tree.

    Attributes:
        offer: `(key, distribution [B]) -> (logits of the prior [B, A], candidates)`.
        choose: `(candidates, int32 [B]) -> actions [B, ...]`.
    """

    offer: Callable[[Array, Any], tuple[Array, PyTree]]
    choose: Callable[[PyTree, Array], Array]


def all_actions() -> Candidates:
    """Makes branches for discrete actions: all of them, with the policy's prior."""
    return Candidates(offer=lambda key, distribution: (distribution.log_probs(), ()), choose=lambda _, index: index)


def sampled_actions(num_samples: int, *, proposal_scale: float = 1.0) -> Candidates:
    """Makes branches for continuous actions: K draws from a proposal, `a_i ~ beta`, made again in every node.

    The prior is `p_i = softmax_i(log pi(a_i | s) - log beta(a_i | s))`: uniform if the proposal is the policy, else
    corrected for the proposal. `beta` is the policy with a multiplied scale before squashing.

    Args:
        num_samples: K, number of draws.
        proposal_scale: factor of the scale; above 1, the search also sees actions that the policy rarely takes.

    Returns:
        The branches.

    Raises:
        ValueError: a number is not positive.

    References:
        Hubert et al. (2021), Learning and planning in complex action spaces, section 4 and equation 5.

    Deviation: priors are normalised over the samples of a node.
    """
    if num_samples < 2:
        raise ValueError(f"`num_samples` must be at least 2 to choose among, got {num_samples}; try 16.")
    if not proposal_scale > 0.0:
        raise ValueError(f"`proposal_scale` must be positive, got {proposal_scale}; try 1.0: the policy itself.")

    def offer(key: Array, distribution: TanhNormal) -> tuple[Array, Array]:
        proposal = distribution.replace(scale=proposal_scale * distribution.scale)  # type: ignore[attr-defined]
        actions = jax.vmap(proposal.sample, out_axes=1)(jax.random.split(key, num_samples))
        policy, proposal = jax.tree.map(lambda leaf: leaf[:, None], (distribution, proposal))
        return policy.log_prob(actions) - proposal.log_prob(actions), actions

    def choose(candidates: Array, index: Array) -> Array:
        return jnp.take_along_axis(candidates, index[:, None, None], axis=1)[:, 0]

    return Candidates(offer=offer, choose=choose)


def candidates_of(space: Any, num_samples: int | None, proposal_scale: float = 1.0) -> Candidates:
    """Returns the branches for an action space.

    Raises:
        ValueError: samples are requested for discrete actions, or none for continuous ones.
    """
    if isinstance(space, Discrete):
        if num_samples is not None:
            raise ValueError(f"`num_samples` must be null for discrete actions, got {num_samples}; all are searched.")
        return all_actions()
    if not is_bounded(space) or num_samples is None:
        raise ValueError(
            f"`action_space` must be Discrete for a tree search, or a bounded Box with `num_samples`, got {space}; try "
            "`collector.num_samples=16`, or `make_cem`."
        )
    return sampled_actions(num_samples, proposal_scale=proposal_scale)


def make_tree_search(
    environment: Environment,
    policy: EvaluatingPolicy,
    *,
    method: Callable[..., Any],
    num_simulations: int,
    max_depth: int | None = None,
    discount: float = 1.0,
    candidates: Candidates | None = None,
) -> TreeSearch:
    """Makes a search in a world whose rules are known.

    Every simulation steps the environment from a state in the tree to a new one, whose prior and value come from the
    network. In a game that is seen as one stream (`environments.wrappers.alternating`), the value of a successor has
    the sign of `info["perspective"]`.

    Args:
        environment: single instance, without automatic resets; randomness is drawn again in every simulation.
        policy: policy that gives priors and values.
        method: function such as `mctx.gumbel_muzero_policy` or `mctx.muzero_policy`, with its parameters.
        num_simulations: number of simulations per search.
        max_depth: greatest depth of the tree; None: only the simulations limit it.
        discount: per step.
        candidates: branches of every node; None for all discrete actions.

    Returns:
        The search.

    Raises:
        ValueError: the actions do not fit the branches, there are several streams of rewards, or the search has no
            budget.
        ModuleNotFoundError: mctx is not installed.

    References:
        Silver et al. (2018), A general reinforcement learning algorithm that masters chess, shogi and Go; Danihelka et
        al. (2022), Policy improvement by planning with Gumbel.
    """
    _require_budget(num_simulations, max_depth)
    if candidates is None:
        candidates = candidates_of(environment.action_space, None)
    if environment.num_players > 1:
        raise ValueError(
            f"`environment` must have one stream of rewards, got {environment.num_players} players in "
            f"{environment.name!r}; wrap it in `alternating`."
        )
    mctx = import_suite("mctx", extra="search")
    environment = squash_actions(environment)

    def judge(params: Params, key: Array, timestep: TimeStep) -> tuple[tuple[Array, PyTree], Array]:
        first = jnp.zeros((1, 1), bool)
        inputs = jax.tree.map(lambda leaf: leaf[None, None], (timestep.observation, timestep.action_mask))
        policy_input = PolicyInput(observation=inputs[0], first=first, action_mask=inputs[1])
        _, distribution, value = policy.evaluate(params, policy.initial_carry((1,)), policy_input)
        offered = candidates.offer(key, jax.tree.map(lambda leaf: leaf[0], distribution))
        return offered, value[0]

    def expand(params: Params, key: Array, index: Array, node: tuple[State, PyTree]) -> tuple[Any, Any]:
        state, offered = node
        step_key, offer_key = jax.random.split(key)
        action = candidates.choose(offered, index)[0]
        state, timestep = environment.step(step_key, jax.tree.map(lambda leaf: leaf[0], state), action)
        (logits, offered), value = judge(params, offer_key, timestep)
        sign = timestep.info.get("perspective", jnp.float32(1.0))
        leaf = mctx.RecurrentFnOutput(
            reward=timestep.reward[None],
            discount=jnp.where(timestep.terminated, 0.0, discount * sign)[None],
            prior_logits=logits,
            value=value,
        )
        return leaf, (jax.tree.map(lambda leaf: leaf[None], state), offered)

    def search(params: Params, key: Array, state: State, timestep: TimeStep) -> SearchResult:
        search_key, offer_key = jax.random.split(key)
        (logits, offered), value = judge(params, offer_key, timestep)
        embedding = jax.tree.map(lambda leaf: leaf[None], state), offered
        root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=embedding)
        limits = {"invalid_actions": _forbidden(timestep), "max_depth": max_depth}
        found = method(params, search_key, root, expand, num_simulations, **limits)
        return _result(found, candidates, offered)

    return search


def make_latent_search(
    model: LatentModel,
    *,
    method: Callable[..., Any],
    num_simulations: int,
    max_depth: int | None = None,
    discount: float = 1.0,
    candidates: Candidates | None = None,
) -> TreeSearch:
    """Makes a search in a world whose rules are learned: it sees the observation, and then only its model.

    Args:
        model: model that predicts rewards, priors and values, for one agent; it knows ends only as zero rewards and
            values.
        method: see `make_tree_search`.
        num_simulations: number of simulations per search.
        max_depth: greatest depth of the tree; None: only the simulations limit it.
        discount: per step.
        candidates: see `make_tree_search`.

    Returns:
        The search.

    Raises:
        ValueError: the search has no budget.
        ModuleNotFoundError: mctx is not installed.

    References:
        Schrittwieser et al. (2020), Mastering Atari, Go, chess and shogi by planning with a learned model, appendix B.
    """
    _require_budget(num_simulations, max_depth)
    mctx = import_suite("mctx", extra="search")
    branches = all_actions() if candidates is None else candidates

    def judge(params: Params, key: Array, latent: Array) -> tuple[tuple[Array, PyTree], Array]:
        distribution, value = model.predict(params, latent)
        return branches.offer(key, distribution), value

    def expand(params: Params, key: Array, index: Array, node: tuple[Array, PyTree]) -> tuple[Any, Any]:
        latent, offered = node
        latent, reward = model.step(params, latent, branches.choose(offered, index))
        (logits, offered), value = judge(params, key, latent)
        discounts = jnp.full_like(reward, discount)
        leaf = mctx.RecurrentFnOutput(reward=reward, discount=discounts, prior_logits=logits, value=value)
        return leaf, (latent, offered)

    def search(params: Params, key: Array, state: State, timestep: TimeStep) -> SearchResult:
        del state
        search_key, offer_key = jax.random.split(key)
        latent = model.represent(params, jax.tree.map(lambda leaf: leaf[None], timestep.observation))
        (logits, offered), value = judge(params, offer_key, latent)
        root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=(latent, offered))
        limits = {"invalid_actions": _forbidden(timestep), "max_depth": max_depth}
        found = method(params, search_key, root, expand, num_simulations, **limits)
        return _result(found, branches, offered)

    return search


def _forbidden(timestep: TimeStep) -> Array | None:
    return None if timestep.action_mask is None else ~timestep.action_mask[None]


def _require_budget(num_simulations: int, max_depth: int | None) -> None:
    if num_simulations < 1:
        raise ValueError(f"`num_simulations` must be at least 1, got {num_simulations}; try 16.")
    if max_depth is not None and max_depth < 1:
        raise ValueError(f"`max_depth` must be at least 1 or null, got {max_depth}; try null.")


def _result(found: Any, candidates: Candidates, offered: PyTree) -> SearchResult:
    """Returns the result of a search from one state."""
    index = found.action.astype(jnp.int32)
    chosen = jnp.take_along_axis(found.action_weights, index[:, None], axis=-1)[0, 0]
    return SearchResult(
        action=candidates.choose(offered, index)[0],
        weights=found.action_weights[0],
        value=found.search_tree.summary().value[0],
        log_weight=jnp.log(jnp.maximum(chosen, jnp.finfo(jnp.float32).tiny)),
        candidates=jax.tree.map(lambda leaf: leaf[0], offered),
    )
