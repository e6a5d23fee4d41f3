"""Games of words for one agent: the scripted expert takes the other seat."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.text.splits import SampleTask
from jaxagents.environments.timesteps import ended
from jaxagents.types import Array, Environment, State, Task, TimeStep


@struct.dataclass
class AgainstExpertState:
    """A game and who is who in it.

    Attributes:
        inner: state of the game.
        seat: int32, the player that the agent is.
        episode_return: float32, rewards of the agent so far.
    """

    inner: State
    seat: Array
    episode_return: Array


def against_expert(environment: Environment, *, seat: int | None = None) -> Environment:
    """Shows a game of two seats to one agent; how strong the other one is, is set in the game (`expert_strength`).

    The task is `{"game": task, "seat": int32, "level": int32}`. The expert moves inside `reset` and `step` until it is
    the agent's turn or the game is over. `info["success"]` is set where the game ended with a positive return.

    Args:
        environment: a text world of two players.
        seat: of the agent in all games; None draws it with the task.

    Returns:
        The game as a text world with `num_players == 1`, a scalar reward and no `player`.

    Raises:
        ValueError: not a text world of two players, or there is no such seat.
    """
    if environment.text is None or environment.num_players != 2:
        raise ValueError(
            f"`environment` must be a text world of 2 players, got {environment.num_players} in "
            f"{environment.name!r}; try environment=text_kuhn."
        )
    if seat not in (None, 0, 1):
        raise ValueError(f"`seat` must be 0 or 1, got {seat}; try null for either.")
    face = environment.text

    def with_seat(sample: SampleTask) -> SampleTask:
        def sample_task(key: Array, level: Array | None = None) -> Task:
            seat_key, game_key = jax.random.split(key)
            drawn = jax.random.bernoulli(seat_key).astype(jnp.int32) if seat is None else jnp.int32(seat)
            game = sample(game_key, level)
            return {"game": game, "seat": drawn, "level": game["level"]}

        return sample_task

    def play(key: Array, seat: Array, inner: State, timestep: TimeStep) -> tuple[State, TimeStep]:
        """Lets the expert move while it is its turn."""

        def its_turn(carry: tuple[Array, State, TimeStep]) -> Array:
            return (carry[2].player != seat) & ~ended(carry[2])

        def move(carry: tuple[Array, State, TimeStep]) -> tuple[Array, State, TimeStep]:
            key, inner, before = carry
            key, expert_key, step_key = jax.random.split(key, 3)
            inner, after = environment.step(step_key, inner, face.expert(expert_key, inner)[0])
            info = {**after.info, "valid": before.info["valid"]}  # Of the agent's move.
            return key, inner, after.replace(reward=before.reward + after.reward, info=info)

        return jax.lax.while_loop(its_turn, move, (key, inner, timestep))[1:]

    def view(state: AgainstExpertState, timestep: TimeStep, reward: Array) -> tuple[AgainstExpertState, TimeStep]:
        info = {**timestep.info, "success": ended(timestep) & (state.episode_return > 0)}
        return state, timestep.replace(reward=reward, player=None, info=info)

    def reset(key: Array, task: Task) -> tuple[AgainstExpertState, TimeStep]:
        reset_key, play_key = jax.random.split(key)
        inner, timestep = play(play_key, task["seat"], *environment.reset(reset_key, task["game"]))
        state = AgainstExpertState(inner=inner, seat=task["seat"], episode_return=jnp.zeros(()))
        return view(state, timestep, jnp.zeros((), jnp.float32))

    def step(key: Array, state: AgainstExpertState, action: Array) -> tuple[AgainstExpertState, TimeStep]:
        step_key, play_key = jax.random.split(key)
        inner, timestep = play(play_key, state.seat, *environment.step(step_key, state.inner, action))
        reward = timestep.reward[state.seat]
        return view(state.replace(inner=inner, episode_return=state.episode_return + reward), timestep, reward)

    text = replace(
        face,
        expert=lambda key, state: face.expert(key, state.inner),
        fingerprint=lambda state: face.fingerprint(state.inner),
        sample_held_out_task=with_seat(face.sample_held_out_task),
        prompt=lambda task: face.prompt(task["game"]),
    )
    return replace(
        environment,
        sample_task=with_seat(environment.sample_task),
        reset=reset,
        step=step,
        num_players=1,
        render=lambda state: f"player {int(state.seat)}\n{environment.render(state.inner)}",
        text=text,
    )
