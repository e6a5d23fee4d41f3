"""Several candidates for every turn, all of which are executed; the episode continues with the best verified one."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.language.conversation import answer, begin_conversation, parse_action, read_prompts
from jaxagents.language.generate import Sampling
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.language.turns import assemble, render_prompts, step_worlds
from jaxagents.language.verifiers import Verifier
from jaxagents.ops.checks import require_positive, require_shape
from jaxagents.types import (
    Array,
    Collector,
    Count,
    Environment,
    Episode,
    LanguagePolicy,
    Mean,
    Metrics,
    Params,
    PyTree,
    State,
    Task,
    TimeStep,
)


def make_stepwise_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_groups: int,
    group_size: int,
    verifier: Callable[[Environment, LanguagePolicy], Verifier],
    temperature: float | None = None,
    level: int | Sequence[int] | None = None,
) -> Collector:
    """Makes a collector in which the policy proposes several actions in every turn, and a verifier scores them.

    All candidates of a turn are executed, each in a copy of the world; the episode continues with the first one with
    the largest score. A single candidate gives the policy's own episode, with a score for every turn.

    Args:
        environment: unbatched text world of one player.
        policy: policy that acts; it must not see its earlier turns.
        num_groups: n, number of episodes per batch, over all devices.
        group_size: K, number of actions per turn.
        verifier: `(environment, policy) -> Verifier`, see `language.verifiers`.
        temperature: divisor of the logits; None: 1.
        level: level of the tasks; a list is cycled through.

    Returns:
        The collector. Its batches are `Episode`s of `n * K * T` rows of one turn each: `reward` is the score of the
        action, `success` whether it is above 0.5, and the rows of one turn of an episode are a group. Rows of turns
        that did not take place are not kept. An episode with K candidates per turn counts as K episodes, and the
        verifier's episodes count, too (`rounds`). Metrics: `success_rate` and `episode_length` of the n episodes,
        `verified_rate` (mean score) of all candidates.

    Raises:
        ValueError: a count is not positive, or the policy sees earlier turns.

    References:
        Aksitov et al. (2023), "ReST meets ReAct", section 3.2; Li et al. (2025), "Iterative Tool Usage Exploration for
        Multimodal Agents via Step-wise Preference Tuning" (SPORT), section 4.
    """
    require_positive("num_groups", num_groups)
    require_positive("group_size", group_size)
    if environment.text is None or environment.num_players > 1:
        raise ValueError(f"`environment` must be a text world of one seat, got {environment.name!r}.")
    if policy.layout.context_turns > 1:
        raise ValueError(
            f"`policy.context_turns` must be 1 for candidates per turn, got {policy.layout.context_turns}; rows of one "
            "turn do not show what was said before."
        )
    judge = verifier(environment, policy)
    explore = _make_exploration(environment, policy, group_size, judge.score, Sampling(temperature=temperature))
    source = make_uniform(level=level, num_levels=environment.text.num_levels)

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        task_key, play_key = jax.random.split(key)
        chosen = source.choose(state["source"], task_key, state["group"])
        task, start, _ = start_tasks(environment, chosen)
        episode, success = explore(params, play_key, state["group"], task, start)
        metrics = _metrics(episode, success, group_size)
        if judge.num_rollouts:
            played = judge.num_rollouts * metrics["turns"].total
            metrics["rounds"] = 1.0 + played / jnp.float32(episode.success.shape[0] // policy.layout.num_turns)
        return state, episode, metrics

    return make_task_collector(
        collect, source, num_groups, "num_groups", steps=num_groups * group_size, temperature=temperature
    )


def _make_exploration(
    environment: Environment,
    policy: LanguagePolicy,
    group_size: int,
    verify: Callable[..., Array],
    sampling: Sampling,
) -> Callable[..., tuple[Episode, Array]]:
    """Makes `(params, key, group [n], task, start) -> (rows, success bool [n])`."""
    num_turns = policy.layout.num_turns

    def explore(
        params: Params, key: Array, group: Array, task: Task, start: tuple[State, TimeStep]
    ) -> tuple[Episode, Array]:
        size = group.shape[0]
        row = jnp.arange(size * group_size) // group_size
        every = partial(jax.tree.map, lambda leaf: leaf[row])
        index = (group[:, None] * group_size + jnp.arange(group_size)[None]).reshape(-1)
        play_key, verify_key = jax.random.split(key)
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(play_key, index)
        tasks, prompts = every((task, render_prompts(environment, policy, task)))
        nothing = begin_conversation(policy, index.shape[0])
        chat = read_prompts(policy, params, nothing, prompts, jnp.ones(index.shape, bool))

        def take_turn(loop: tuple, number: Array) -> tuple[tuple, tuple]:
            chat, state, timestep, live = loop
            turn_keys = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, number), 3))(keys)
            state, timestep, alive = every((state, timestep, live))
            chat, turn = answer(
                policy, params, chat, timestep.observation, keys=turn_keys, sampling=sampling, live=alive
            )
            action, parsed = parse_action(policy, turn, environment.action_space.shape[0])
            cut = jnp.broadcast_to(number + 1 >= num_turns, alive.shape)
            *after, turn = step_worlds(
                environment, turn_keys[:, 2], state, timestep, action, turn, live=alive, parsed=parsed, cut=cut
            )
            score = verify(params, jax.random.fold_in(verify_key, number), index, tasks, state, tuple(after))
            require_shape("verifier", score, index.shape)
            best = jnp.argmax(score.reshape(size, group_size), axis=1) + group_size * jnp.arange(size)
            state, timestep = jax.tree.map(lambda leaf: leaf[best], tuple(after))
            chat = chat.replace(position=every(chat.position[best]))
            success = live & timestep.info["success"]
            live = live & ~(timestep.terminated | timestep.truncated)
            return (chat, state, timestep, live), (turn.replace(reward=jnp.where(alive, score, 0.0)), success)

        loop = (chat, *start, jnp.ones(size, bool))
        _, (turns, success) = jax.lax.scan(take_turn, loop, jnp.arange(num_turns))
        number = num_turns * group[:, None] + jnp.arange(num_turns)[None]
        return _rows_of_turns(policy, turns, prompts, every(number), tasks), jnp.any(success, axis=0)

    return explore


def _rows_of_turns(policy: LanguagePolicy, turns: PyTree, prompts: tuple, number: Array, task: Task) -> Episode:
    """Makes an episode of every turn, leaves `[T, N, ...]`; equal numbers, int32 `[N, T]`, mark alternatives."""
    turns = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(-1, 1, *leaf.shape[2:]), turns)
    prompts, task = jax.tree.map(lambda leaf: jnp.repeat(leaf, number.shape[1], axis=0), (prompts, task))
    episode = assemble(
        policy.layout._replace(num_turns=1),
        turns,
        prompts=prompts,
        success=turns.valid[:, 0] & (turns.reward[:, 0] > 0.5),
        group=number.reshape(-1),
        task=task,
    )
    return episode.replace(keep=episode.valid[:, 0])


def _metrics(episode: Episode, success: Array, group_size: int) -> dict[str, Any]:
    valid, num_episodes = episode.valid[:, 0], jnp.float32(success.shape[0])
    num_turns = jnp.sum(valid, dtype=jnp.int32)
    of_candidates = {"verified_rate": episode.reward[:, 0], "invalid_action_rate": ~episode.action_valid[:, 0]}
    means = {
        name: Mean(total=jnp.sum(jnp.where(valid, value, 0.0)), count=num_turns.astype(jnp.float32))
        for name, value in of_candidates.items()
    }
    return means | {
        "success_rate": Mean(total=jnp.sum(success, dtype=jnp.float32), count=num_episodes),
        "episode_length": Mean(total=num_turns / group_size, count=num_episodes),
        "episodes": Count(jnp.int32(success.shape[0] * group_size)),
        "turns": Count(num_turns),
        "tokens": Count(jnp.sum(episode.action_mask, dtype=jnp.int32)),
        "env_steps": Count(num_turns),
    }
