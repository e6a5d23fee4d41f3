"""Games of two players for one agent: an opponent takes the other seat."""

from collections.abc import Callable, Collection
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.timesteps import ended
from jaxagents.types import Array, Environment, PyTree, State, Task, TimeStep

Opponent = Callable[[Array, PyTree, Array], Array]
"""`(key, observation, action_mask) -> action`."""
SampleTask = Callable[..., Task]


@struct.dataclass
class OneSeatState:
    """A game, and the agent's seat in it.

    Attributes:
        inner: state of the game.
        seat: int32, index of the player that is the agent.
        episode_return: float32, sum of the agent's rewards in the episode so far.
    """

    inner: State
    seat: Array
    episode_return: Array


def one_seat(
    environment: Environment,
    choose: Callable[[Array, State, TimeStep], Array],
    *,
    own_info: Collection[str] = (),
) -> Environment:
    """Presents a game of two players to one agent; the other player's moves are part of the dynamics.

    The task `{"seat": int32, "game": task}` determines which player the agent is. The opponent moves inside `reset` and
    `step` until it is the agent's turn or the game is over. `info["success"]` is set if the game ended with a positive
    return for the agent.

    Args:
        environment: game of two players who take turns.
        choose: `(key, state, timestep) -> action` of the other player.
        own_info: entries of `info` that keep their values from the agent's own move, whatever the opponent does after
            it.

    Returns:
        The game as an environment with `num_players == 1`, a scalar reward and no `player`.
    """

    def play(key: Array, seat: Array, inner: State, timestep: TimeStep) -> tuple[State, TimeStep]:
        def other_acts(carry: tuple[Array, State, TimeStep]) -> Array:
            return (carry[2].player != seat) & ~ended(carry[2])

        def move(carry: tuple[Array, State, TimeStep]) -> tuple[Array, State, TimeStep]:
            key, inner, before = carry
            key, action_key, step_key = jax.random.split(key, 3)
            inner, after = environment.step(step_key, inner, choose(action_key, inner, before))
            info = {**after.info, **{name: before.info[name] for name in own_info}}
            return key, inner, after.replace(reward=before.reward + after.reward, info=info)

        return jax.lax.while_loop(other_acts, move, (key, inner, timestep))[1:]

    def view(state: OneSeatState, timestep: TimeStep, reward: Array) -> tuple[OneSeatState, TimeStep]:
        info = {**timestep.info, "success": ended(timestep) & (state.episode_return > 0)}
        return state, timestep.replace(reward=reward, player=None, info=info)

    def reset(key: Array, task: Task) -> tuple[OneSeatState, TimeStep]:
        reset_key, play_key = jax.random.split(key)
        inner, timestep = play(play_key, task["seat"], *environment.reset(reset_key, task["game"]))
        state = OneSeatState(inner=inner, seat=task["seat"], episode_return=timestep.reward[task["seat"]])
        return view(state, timestep, jnp.zeros((), jnp.float32))

    def step(key: Array, state: OneSeatState, action: Array) -> tuple[OneSeatState, TimeStep]:
        step_key, play_key = jax.random.split(key)
        inner, timestep = play(play_key, state.seat, *environment.step(step_key, state.inner, action))
        reward = timestep.reward[state.seat]
        state = state.replace(inner=inner, episode_return=state.episode_return + reward)
        return view(state, timestep, reward)

    return replace(
        environment,
        sample_task=with_seat(environment.sample_task, None),
        reset=reset,
        step=step,
        num_players=1,
        render=environment.render and (lambda state: f"player {int(state.seat)}\n{environment.render(state.inner)}"),
    )


def with_seat(sample: SampleTask, seat: int | None) -> SampleTask:
    """Makes the function that draws a task and also the agent's seat, or uses a fixed seat."""

    def sample_task(key: Array, level: Array | None = None) -> Task:
        seat_key, game_key = jax.random.split(key)
        drawn = jax.random.bernoulli(seat_key).astype(jnp.int32) if seat is None else jnp.int32(seat)
        return {"seat": drawn, "game": sample(game_key, level)}

    return sample_task


def against(environment: Environment, opponent: Opponent | None = None) -> Environment:
    """Presents a game of two players to one agent, see `one_seat`; the agent's seat is drawn uniformly.

    Args:
        environment: game of two players who take turns.
        opponent: `(key, observation, action_mask) -> action`; None draws uniformly from the allowed actions.

    Returns:
        The game for one agent.

    Raises:
        ValueError: it is not a game of two players.
    """
    require_two_players(environment, "against")
    opponent = uniform_opponent(environment) if opponent is None else opponent
    return one_seat(environment, lambda key, _, timestep: opponent(key, timestep.observation, timestep.action_mask))


def uniform_opponent(environment: Environment) -> Opponent:
    """Makes the opponent that draws uniformly from the allowed actions.

    Args:
        environment: environment with a discrete action space.

    Returns:
        `(key, observation, action_mask) -> action`.
    """
    num_actions = environment.action_space.num_values  # type: ignore[union-attr]

    def act(key: Array, observation: PyTree, action_mask: Array | None) -> Array:
        del observation
        if action_mask is None:
            return jax.random.randint(key, (), 0, num_actions)
        return jax.random.categorical(key, jnp.where(action_mask, 0.0, -jnp.inf)).astype(jnp.int32)

    return act


def require_two_players(environment: Environment, wrapper: str) -> None:
    """Refuses games of other numbers of players.

    Raises:
        ValueError: it is not a game of two players; names the wrapper.
    """
    if environment.num_players != 2:
        raise ValueError(
            f"`environment` of `{wrapper}` must have 2 players, got {environment.num_players} in {environment.name!r}; "
            "try a two-player game of the pgx adapter such as 'tic_tac_toe'."
        )
