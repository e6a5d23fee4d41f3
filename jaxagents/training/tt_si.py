"""TT-SI (Acikgoz et al., 2025): a policy that is unsure of a task adapts to similar tasks before it answers."""

from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from jaxagents.environments.text.splits import level_of
from jaxagents.language.collect import first_and_last, own_return
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.tasks import make_uniform, start_tasks
from jaxagents.learners.adapted import on_base
from jaxagents.learners.supervised import make_supervised
from jaxagents.networks.adapters import lora
from jaxagents.ops.checks import require_positive
from jaxagents.types import Array, Environment, Episode, LanguagePolicy, Params, PyTree


def make_test_time_evaluator(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_episodes: int,
    greedy: bool = True,
    level: int | Sequence[int] | None = None,
    held_out: bool = True,
    turn_rewards: bool = False,
    threshold: float = 0.9,
    num_candidates: int = 8,
    num_neighbours: int = 4,
    pool: int = 256,
    labels: Literal["own", "expert"] = "own",
    num_steps: int = 4,
    learning_rate: float = 3e-3,
    rank: int = 4,
) -> Callable[[Params, Array], dict[str, Array]]:
    """Makes the evaluation in which a policy adapts to neighbours of each task that it is unsure of.

    The policy is unsure of a task if `p_(1) - p_(2) < threshold`, where p is the softmax of the mean log-probabilities
    of the distinct actions among some sampled first actions. The neighbours of a task are the training tasks whose
    first observations share the most tokens with its own. A fresh LoRA is trained on them with a few steps of
    supervised learning, the policy plays the task with it, and it is discarded. The right answer to the task is never
    used.

    Args:
        environment: text world with one seat, a single instance.
        policy: policy that acts.
        num_episodes: number of tasks.
        greedy: whether to take the most probable token; False: tokens are sampled.
        level: difficulty of the tasks; the levels of a list are used in turn.
        held_out: whether to use tasks that training never sees.
        turn_rewards: whether to compare also the rewards of the first and the last turn.
        threshold: threshold of the margin; 0: never adapts; above 1: always adapts.
        num_candidates: number of first actions that are sampled for each task.
        num_neighbours: number of neighbours to train on.
        pool: number of training tasks from which neighbours are selected.
        labels: "own": the policy's answers to the neighbours; "expert": those of the expert.
        num_steps: number of optimiser steps, each on all neighbours.
        learning_rate: learning rate of Adam.
        rank: rank of the LoRA.

    Returns:
        `(params, key) -> results`, float32 `[num_episodes]` each: those of `collect.make_dialogue_evaluator`, and
        `base_success`, the success without adaptation, the `margin`, and `adapted`, whether the policy was unsure.

    Raises:
        ValueError: a count is not positive, there are more neighbours than tasks, the labels are unknown, or the world
            has several seats.

    References:
        Acikgoz et al. (2025), "Self-Improving LLM Agents at Test-Time", section 3.
    """
    counts = {"num_episodes": num_episodes, "num_neighbours": num_neighbours, "pool": pool, "num_steps": num_steps}
    for name, count in (counts | {"num_candidates": num_candidates}).items():
        require_positive(name, count)
    if num_neighbours > pool or labels not in ("own", "expert"):
        raise ValueError(
            f"`num_neighbours` must be at most `pool` and `labels` own or expert, got {num_neighbours}, {pool} and "
            f"{labels!r}."
        )
    if environment.text is None or environment.num_players > 1:
        raise ValueError(f"`environment` must be a text world of one seat, got {environment.name!r}; try world=lists.")
    sample_task = environment.text.sample_held_out_task if held_out else environment.sample_task
    play = make_dialogue(environment, policy, sampling=Sampling(greedy=greedy))
    propose = make_dialogue(environment, policy, group_size=num_candidates)
    answer = make_dialogue(environment, policy, sampling=Sampling(greedy=True))
    demonstrate = make_demonstrations(environment, policy) if labels == "expert" else None
    adapter, source = lora(rank=rank), make_uniform(level=level)

    def evaluate(params: Params, key: Array) -> dict[str, Array]:
        task_key, reset_key, play_key, propose_key, pool_key, answer_key, adapt_key = jax.random.split(key, 7)
        index, fold = jnp.arange(num_episodes, dtype=jnp.int32), jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        task = jax.vmap(lambda key, number: sample_task(key, level_of(level, number)))(fold(task_key, index), index)
        start = jax.vmap(environment.reset)(fold(reset_key, index), task)
        base = play(params, play_key, index, task=task, start=start)
        certainty = margin(propose(params, propose_key, index, task=task, start=start), num_candidates)

        members = jnp.arange(pool, dtype=jnp.int32)
        chosen = source.choose(source.init(pool_key, pool), pool_key, members)
        if demonstrate is None:
            other, begun, _ = start_tasks(environment, chosen)
            known = answer(params, answer_key, members, task=other, start=begun)
        else:
            known = demonstrate(answer_key, members, chosen)
        near = nearest(base, known, policy.layout.observation, num_neighbours)
        adapted = on_base(policy, adapter, params)
        learner = make_supervised(adapted.model, optax.adam(learning_rate))
        play_adapted = make_dialogue(environment, adapted, sampling=Sampling(greedy=greedy))

        def adapt(number: Array, rows: Array, own_task: PyTree, own_start: PyTree) -> Episode:
            init_key = jax.random.fold_in(adapt_key, number)
            batch = jax.tree.map(lambda leaf: leaf[rows], known)
            state = learner.init(init_key, adapter.init(init_key, params))
            state, _ = jax.lax.scan(lambda state, _: learner.update(state, init_key, batch), state, None, num_steps)
            one = jax.tree.map(lambda leaf: leaf[None], (own_task, own_start))
            episode = play_adapted(state.params, play_key, number[None], task=one[0], start=one[1])
            return jax.tree.map(lambda leaf: leaf[0], episode)

        def keep_or_adapt(inputs: tuple[Array, Episode, tuple[Array, Array, PyTree, PyTree]]) -> Episode:
            is_unsure, own, others = inputs
            return jax.lax.cond(is_unsure, lambda: adapt(*others), lambda: own)

        unsure = certainty < threshold
        episode = jax.lax.map(keep_or_adapt, (unsure, base, (index, near, task, start)))
        valid = episode.valid.astype(jnp.float32)
        length = jnp.sum(valid, axis=1)
        return (first_and_last(episode) if turn_rewards else {}) | {
            "episode_return": own_return(episode),
            "episode_length": length,
            "success": episode.success.astype(jnp.float32),
            "invalid_action_rate": jnp.sum(valid * ~episode.action_valid, axis=1) / jnp.maximum(length, 1.0),
            "base_success": base.success.astype(jnp.float32),
            "margin": certainty,
            "adapted": unsure.astype(jnp.float32),
        }

    return evaluate


def margin(episode: Episode, num_candidates: int) -> Array:
    """Computes `p_(1) - p_(2)` for the first actions of every task, float32 `[n]`; 1 if all of them are the same.

    Args:
        episode: n groups of N sampled episodes.
        num_candidates: N.
    """
    mask = episode.action_mask[:, 0]
    score = jnp.sum(jnp.where(mask, episode.behavior_log_prob[:, 0], 0.0), axis=1) / jnp.maximum(jnp.sum(mask, 1), 1)
    words = jnp.where(mask, episode.tokens[:, 0], -1).reshape(-1, num_candidates, mask.shape[1])
    same = jnp.all(words[:, :, None] == words[:, None], axis=3)
    is_first = jnp.argmax(same, axis=2) == jnp.arange(num_candidates)[None]
    probability = jax.nn.softmax(jnp.where(is_first, score.reshape(-1, num_candidates), -jnp.inf), axis=1)
    top = jax.lax.top_k(jnp.pad(probability, ((0, 0), (0, 1))), 2)[0]
    return top[:, 0] - top[:, 1]


def nearest(episode: Episode, pool: Episode, size: int, count: int) -> Array:
    """Returns the rows of a pool whose first observations share the most tokens with those of tasks, `[n, count]`.

    Args:
        episode: episodes of n tasks.
        pool: episodes of other tasks.
        size: number of tokens of an observation.
        count: number of rows per task.
    """

    def first_of(one: Episode) -> Array:
        return jnp.where(one.token_mask[:, 0, :size], one.tokens[:, 0, :size], -1)

    shared = (first_of(episode)[:, None] == first_of(pool)[None]) & (first_of(episode) >= 0)[:, None]
    return jax.lax.top_k(jnp.sum(shared, axis=2), count)[1]
