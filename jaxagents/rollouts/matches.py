"""Matches between members of a population: who beats whom."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxagents.environments.timesteps import ended
from jaxagents.policies.actor_critic import act
from jaxagents.types import Array, Environment, Params, Policy, PolicyInput


def make_matches(
    environment: Environment, policy: Policy, *, num_games: int, greedy: bool = False
) -> Callable[[Params, Params, Array], Array]:
    """Makes a function that plays games between two sets of parameters; each opens every other game.

    Args:
        environment: a game of two players who take turns.
        policy: acts, for either player; without memory.
        num_games: even.
        greedy: True takes the mode of the distribution, False samples.

    Returns:
        `(params, opponent params, key) -> float32 []`, the mean score of the first: 1 for a won game, 0.5 for a drawn
        one. For two populations, see `payoff_matrix`.

    Raises:
        ValueError: not a game of two players, an odd number of games, or a policy with a memory.
    """
    if environment.num_players != 2:
        raise ValueError(
            f"`environment` must have 2 players, got {environment.num_players} in {environment.name!r}; try "
            "environment=tic_tac_toe."
        )
    if num_games < 2 or num_games % 2:
        raise ValueError(f"`num_games` must be even and at least 2, got {num_games}; try 64.")
    if jax.tree.leaves(policy.initial_carry((1,))):
        raise ValueError("`policy` of matches must have no memory, got a recurrent one; try policy=mlp.")
    first = jnp.ones(num_games, bool)

    def play(params: Params, opponent: Params, key: Array) -> Array:
        def step(loop, step_key: Array):
            state, timestep, outcome = loop

            def choose(params: Params, key: Array) -> Array:
                carry = policy.initial_carry((num_games,))
                inputs = PolicyInput(observation=timestep.observation, first=first, action_mask=timestep.action_mask)
                _, distribution = act(policy, params, carry, inputs)
                return distribution.mode() if greedy else distribution.sample(key)

            own_key, other_key, game_key = jax.random.split(step_key, 3)
            action = jnp.where(timestep.player == seat, choose(params, own_key), choose(opponent, other_key))
            state, timestep = jax.vmap(environment.step)(jax.random.split(game_key, num_games), state, action)
            return (state, timestep, outcome + timestep.reward[jnp.arange(num_games), seat]), None

        task_key, reset_key, run_key = jax.random.split(key, 3)
        tasks = jax.vmap(environment.sample_task)(jax.random.split(task_key, num_games))
        state, timestep = jax.vmap(environment.reset)(jax.random.split(reset_key, num_games), tasks)
        seat = (timestep.player + jnp.arange(num_games)) % 2
        keys = jax.random.split(run_key, environment.max_steps)
        (_, timestep, outcome), _ = jax.lax.scan(step, (state, timestep, jnp.zeros(num_games)), keys)
        return jnp.mean(jnp.where(ended(timestep), 0.5 + 0.5 * jnp.sign(outcome), 0.5))

    return play


def payoff_matrix(play: Callable[[Params, Params, Array], Array], rows: Params, columns: Params, key: Array) -> Array:
    """Computes the mean scores of a population against another one, all matches side by side.

    Args:
        play: see `make_matches`.
        rows: leaves `[P, ...]`.
        columns: leaves `[Q, ...]`, the same population for its own payoffs, as those of `OpponentPool.params`.
        key: every match has its own stream.

    Returns:
        float32 `[P, Q]`, scores of rows against columns in [0, 1]; `2 score - 1` is the zero-sum payoff, and
        `ops.ratings.fit_ratings(score * games, games)` rates them.
    """
    num_rows, num_columns = (jax.tree.leaves(population)[0].shape[0] for population in (rows, columns))
    keys = jax.random.split(key, (num_rows, num_columns))
    return jax.vmap(jax.vmap(play, in_axes=(None, 0, 0)), in_axes=(0, None, 0))(rows, columns, keys)
