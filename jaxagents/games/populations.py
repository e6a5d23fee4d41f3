"""Populations of policies in a compiled game: the meta-game between them, and how a policy joins them."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.games.extensive_form import Game
from jaxagents.games.strategies import Profile, behavior_policy, check_profile, realization_plan
from jaxagents.types import Array


@struct.dataclass
class Population:
    """Up to K policies of every player; empty places have count 0, and their policies are meaningless.

    Attributes:
        policies: policies of every player, `[K, I, A]`; existing ones come first.
        counts: `[n, K]`, number of times that each was found.
    """

    policies: tuple[Array, ...]
    counts: Array

    @property
    def num_policies(self) -> Array:
        """Returns the number of different policies of every player, int32 `[n]`."""
        return jnp.sum(self.counts > 0, axis=1, dtype=jnp.int32)


def start_population(game: Game, profile: Profile, capacity: int) -> Population:
    """Makes a population with one policy per player.

    Args:
        game: compiled game.
        profile: initial policies.
        capacity: K, number of places.

    Returns:
        The population.

    Raises:
        ValueError: there is no room, or the policies do not fit the game.
    """
    if capacity < 1:
        raise ValueError(f"`capacity` must be at least 1, got {capacity}; try the number of iterations plus 1.")
    check_profile(game, profile)
    policies = tuple(jnp.zeros((capacity, *policy.shape), policy.dtype).at[0].set(policy) for policy in profile)
    counts = jnp.zeros((game.num_players, capacity), profile[0].dtype).at[:, 0].set(1.0)
    return Population(policies=policies, counts=counts)


def enlarge(population: Population, capacity: int) -> Population:
    """Makes room for more policies."""
    more = capacity - population.counts.shape[1]
    policies = tuple(jnp.pad(policies, [(0, more), (0, 0), (0, 0)]) for policies in population.policies)
    return Population(policies=policies, counts=jnp.pad(population.counts, [(0, 0), (0, more)]))


def add_policy(game: Game, population: Population, player: int, policy: Array) -> Population:
    """Adds a policy to a player's policies, or increases the count of one that plays the same.

    Policies play the same if their realization plans are equal: they differ at most where a player's own choices never
    lead.

    Args:
        game: compiled game.
        population: population with room for one more.
        player: index of the player who gets the policy.
        policy: `[I, A]`.

    Returns:
        The population; unchanged if there is no room.
    """
    same = is_known(game, population, player, policy)
    counts = population.counts[player]
    index = jnp.where(jnp.any(same), jnp.argmax(same), jnp.argmin(counts > 0))
    fits = jnp.any(same) | jnp.any(counts == 0)
    old = population.policies[player]
    joined = jnp.where(fits & ~jnp.any(same), old.at[index].set(policy), old)
    policies = (*population.policies[:player], joined, *population.policies[player + 1 :])
    counts = population.counts.at[player, index].add(jnp.where(fits, 1.0, 0.0))
    return Population(policies=policies, counts=counts)


def is_known(game: Game, population: Population, player: int, policy: Array) -> Array:
    """Returns which policies of a player play the same as this one, bool `[K]`."""
    to_plan = partial(realization_plan, game.seats[player])
    plans, plan = jax.vmap(to_plan)(population.policies[player]), to_plan(policy)
    return jnp.all(plans == plan[None, :], axis=1) & (population.counts[player] > 0)


def outcome_reach(game: Game, population: Population) -> tuple[Array, ...]:
    """Computes the probability that each policy's choices contribute to every outcome, `[K, Z]` per player."""
    reach = []
    for player, seat in enumerate(game.seats):
        plans = jax.vmap(partial(realization_plan, seat))(population.policies[player])
        exists = (population.counts[player] > 0)[:, None]
        reach.append(jnp.where(exists, plans[:, game.sequence[player]], 0.0))
    return tuple(reach)


def meta_payoffs(game: Game, population: Population) -> Array:
    """Computes the meta-game: the expected payoff of every player if each plays one policy, `[n, K, ..., K]`."""
    letters = "abcdefghij"[: game.num_players]
    terms = ",".join(f"{letter}z" for letter in letters)
    return jnp.einsum(f"pz,{terms}->p{letters}", game.payoff, *outcome_reach(game, population))


def reach_of_others(game: Game, population: Population, player: int, joint: Array) -> Array:
    """Computes the others' reach of every outcome, per own policy, if a joint distribution draws the policies.

    `W[a_p, z] = sum_{a_-p} joint[a] prod_{j != p} reach_j[a_j, z]`; the sum over `a_p` is the reach before the draw.

    Args:
        game: game of Z outcomes.
        population: population with K policies of every player.
        player: p, index of the player.
        joint: `[K, ..., K]`.

    Returns:
        `[K, Z]`.
    """
    letters = "abcdefghij"[: game.num_players]
    reach = outcome_reach(game, population)
    others = [other for other in range(game.num_players) if other != player]
    terms = ",".join(f"{letters[other]}z" for other in others)
    return jnp.einsum(f"{letters},{terms}->{letters[player]}z", joint, *(reach[other] for other in others))


def mixed_profile(game: Game, population: Population, strategies: Array) -> tuple[Array, ...]:
    """Computes policies equivalent to ones drawn from the population, independently for every player.

    Args:
        game: compiled game.
        population: population with K policies of every player.
        strategies: `[n, K]`.

    Returns:
        `[I, A]` for every player.
    """
    profile = []
    for seat, policies, strategy in zip(game.seats, population.policies, strategies):
        plans = jax.vmap(partial(realization_plan, seat))(policies)
        profile.append(behavior_policy(seat, strategy @ plans))
    return tuple(profile)
