"""Evaluation from corrupted states: the first turns of an episode are random, and the policy continues from there."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.environments.text.splits import level_of
from jaxagents.language.collect import make_dialogue_evaluator
from jaxagents.language.demonstrations import draw_action
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Environment, LanguagePolicy, Params, State, TimeStep


def make_corrupted_evaluator(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    num_corrupted: int = 2,
    greedy: bool = True,
    level: int | Sequence[int] | None = None,
    held_out: bool = True,
    num_rows: int | None = None,
    **options: Any,
) -> Callable[[Params, Array], dict[str, Array]]:
    """Makes an evaluation on fixed tasks, both unchanged and after k random turns.

    The random actions are admissible. They appear in the transcript as if the policy had generated them, and use up
    turns.

    Args:
        environment: unbatched text world of one player.
        policy: policy that acts.
        num_episodes: number of tasks.
        num_corrupted: k, number of random turns.
        greedy: whether to take the most probable token instead of sampling.
        level: level of the tasks; a list is cycled through.
        held_out: whether to use tasks that training never sees.
        num_rows: number of episodes that are played at once; None: all of them.
        **options: further arguments of `collect.make_dialogue_evaluator`, for the unchanged tasks.

    Returns:
        `(params, key) -> results`: those of `collect.make_dialogue_evaluator`, and `corrupted_success`, float32
        `[num_episodes]`.

    Raises:
        ValueError: `num_corrupted` is not positive, there are several players, or see `make_dialogue_evaluator`.

    Deviation: if the world has chance after the start, the random actions are drawn from states that differ slightly
    from those in which they are taken.
    """
    require_positive("num_corrupted", num_corrupted)
    evaluate_clean = make_dialogue_evaluator(
        environment,
        policy,
        num_episodes=num_episodes,
        greedy=greedy,
        level=level,
        held_out=held_out,
        num_rows=num_rows,
        **options,
    )
    if environment.num_players > 1:
        raise ValueError(f"`environment` must have one seat, got {environment.num_players} in {environment.name!r}.")
    sample_task = environment.text.sample_held_out_task if held_out else environment.sample_task
    play = make_dialogue(environment, policy, sampling=Sampling(greedy=greedy))

    def evaluate(params: Params, key: Array) -> dict[str, Array]:
        task_key, reset_key, walk_key, play_key = jax.random.split(key, 4)
        index = jnp.arange(num_episodes, dtype=jnp.int32)
        fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        task = jax.vmap(lambda key, number: sample_task(key, level_of(level, number)))(fold(task_key, index), index)
        start = jax.vmap(environment.reset)(fold(reset_key, index), task)
        script = jax.vmap(lambda key, start: random_actions(environment, key, start, num_corrupted))(
            fold(walk_key, index), start
        )
        episode = play(params, play_key, index, num_rows, task=task, start=start, script=script)
        return evaluate_clean(params, key) | {"corrupted_success": episode.success.astype(jnp.float32)}

    return evaluate


def random_actions(environment: Environment, key: Array, start: tuple[State, TimeStep], num_turns: int) -> Array:
    """Draws the admissible actions of a random walk from a state and time step, int32 `[num_turns, M]`."""

    def step(now: tuple[State, TimeStep], key: Array) -> tuple[tuple[State, TimeStep], Array]:
        draw_key, step_key = jax.random.split(key)
        action = draw_action(environment.text, draw_key, now[0], now[1].action_mask)
        return environment.step(step_key, now[0], action), action

    return jax.lax.scan(step, start, jax.random.split(key, num_turns))[1]
