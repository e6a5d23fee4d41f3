"""IPR (Xiong et al., 2024) and ETO (Song et al., 2024): own steps next to an expert's, and their scores."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.language.collect import count_experience, dialogue_metrics
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.generate import Sampling
from jaxagents.language.relabeling import recorded_words
from jaxagents.language.tasks import make_task_collector, make_uniform, start_tasks
from jaxagents.language.verifiers import Verifier
from jaxagents.ops.checks import require_positive, require_shape
from jaxagents.ops.rows import where_rows
from jaxagents.types import (
    Array,
    Collector,
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


@struct.dataclass
class _Forks:
    """The points at which rows leave the expert's episodes, leaves `[N, ...]`.

    Attributes:
        task: task of the episode.
        start: first state and time step.
        words: int32 `[N, T, M]`, the expert's actions.
        turn: int32, the first of the expert's turns that the row does not take over.
        is_there: bool, whether the expert's episode had not ended by then.
        number: int32, index of the state over all devices.
    """

    task: Task
    start: tuple[State, TimeStep]
    words: Array
    turn: Array
    is_there: Array
    number: Array

    @property
    def is_before(self) -> Array:
        """Returns which turns are before the fork, bool `[N, T]`."""
        return jnp.arange(self.words.shape[1])[None] < self.turn[:, None]


def make_refinement_collector(
    environment: Environment,
    policy: LanguagePolicy,
    *,
    num_groups: int,
    group_size: int,
    num_attempts: int = 1,
    noise: float = 0.5,
    verifier: Callable[[Environment, LanguagePolicy], Verifier],
    temperature: float | None = None,
    level: int | Sequence[int] | None = None,
) -> Collector:
    """Makes a collector in which the policy continues from states of an expert's episode, with both next steps scored.

    The expert's episode of L turns is replayed up to turn `k l`, `l = ceil(L / K)`, for k = 0, ..., K - 1, and the
    policy continues to the end, A times. Its tokens count as sampled; for every k, there is also a row of the expert,
    in which the expert's tokens from this turn on count. If k > 0, the first of these steps is scored by its outcome.

    Args:
        environment: unbatched text world of one player, without chance after the start.
        policy: policy that acts.
        num_groups: n, number of expert episodes per batch, over all devices.
        group_size: K, number of states per expert episode, including its beginning.
        num_attempts: A, number of own episodes from every state.
        noise: noise of the expert, see `make_demonstrations`.
        verifier: `(environment, policy) -> Verifier` of steps, see `language.verifiers`.
        temperature: divisor of the logits; None: 1.
        level: level of the tasks; a list is cycled through.

    Returns:
        The collector. Its batches are `Episode`s of `n K (1 + A)` rows, with those of the expert first. Rows that
        continue from the same state are a group; they are not kept if the expert's episode ended before. `success` is
        that of the whole episode; the only `reward` is the score of the first turn that counts as sampled, 0 if k = 0.
        Its steps are own episodes and those that the verifier plays. Metrics are those of own episodes, `success_rate`
        of those from the beginning, `expert_success_rate`, and `score_gap`, the score of the expert's step minus that
        of the own step.

    Raises:
        ValueError: a count is not positive, or see `make_demonstrations`.

    References:
        Xiong et al. (2024), "Watch Every Step! LLM Agent Learning via Iterative Step-Level Process Refinement" (IPR),
        sections 3.2 and 3.3; Song et al. (2024), "Trial and Error: Exploration-Based Trajectory Optimization for LLM
        Agents" (ETO: `group_size` 1).

    Deviation: every batch has new tasks; the paper iterates over a fixed set.
    Deviation: K states per episode are used; the paper uses all of them.
    Deviation: a verifier that continues episodes uses the current policy; the paper's uses the initial one.
    """
    counts = {"num_groups": num_groups, "group_size": group_size, "num_attempts": num_attempts}
    for name, count in counts.items():
        require_positive(name, count)
    demonstrate = make_demonstrations(environment, policy, noise=noise)
    play = make_dialogue(environment, policy, sampling=Sampling(temperature=temperature))
    source = make_uniform(level=level, num_levels=environment.text.num_levels)
    judge = verifier(environment, policy)
    steps_of_state = num_attempts + (1 + num_attempts) * judge.num_rollouts  # Except the first, which is not scored.

    def read(episode: Episode) -> Array:
        return recorded_words(policy, episode)[0][..., : environment.action_space.shape[0]]

    def collect(state: PyTree, params: Params, key: Array) -> tuple[PyTree, Episode, Metrics]:
        task_key, expert_key, play_key, judge_key = jax.random.split(key, 4)
        group = state["group"]
        chosen = source.choose(state["source"], task_key, group)
        demonstration = demonstrate(expert_key, group, chosen)
        task, start, _ = start_tasks(environment, chosen)
        forks = _make_forks(group, group_size, task, start, read(demonstration), jnp.sum(demonstration.valid, axis=1))
        own_forks = _repeat(forks, num_attempts)
        attempt = jnp.arange(own_forks.number.shape[0]) % num_attempts
        index = own_forks.number * num_attempts + attempt
        script = jnp.where(own_forks.is_before[..., None], own_forks.words, -1)
        own = play(params, play_key, index, task=own_forks.task, start=own_forks.start, script=script)
        rows, forks = _join(_repeat(demonstration, group_size), own), _join(forks, own_forks)
        rows = rows.replace(
            action_mask=rows.action_mask & ~forks.is_before[..., None],
            reward=jnp.zeros_like(rows.reward),
            group=forks.number,
            keep=forks.is_there,
        )
        later = _later_rows(group.shape[0], group_size, num_attempts)
        if later.size:
            of_row = jnp.concatenate([jnp.zeros(group.shape[0] * group_size, jnp.int32), 1 + attempt])
            number = forks.number * (1 + num_attempts) + of_row
            steps = _step_at(environment, forks.start, read(rows), forks.turn)
            judged = jax.tree.map(lambda leaf: leaf[later], (number, forks.task, *steps))
            score = judge.score(params, judge_key, *judged)
            require_shape("verifier", score, later.shape)
            rows = rows.replace(reward=rows.reward.at[later, forks.turn[later]].set(score, mode="drop"))
        return state, rows, _metrics(rows, own, group_size, num_attempts)

    steps = num_groups * (num_attempts + (group_size - 1) * steps_of_state)
    return make_task_collector(collect, source, num_groups, "num_groups", steps=steps, temperature=temperature)


def _make_forks(
    group: Array, group_size: int, task: Task, start: tuple[State, TimeStep], words: Array, length: Array
) -> _Forks:
    """Makes the forks of every episode, those of an episode next to each other, `[n K]`."""
    k = jnp.arange(group_size)[None]
    turn = (-(-length // group_size)[:, None] * k).reshape(-1)
    task, start, words, length = _repeat((task, start, words, length), group_size)
    number = (group[:, None] * group_size + k).reshape(-1)
    return _Forks(task=task, start=start, words=words, turn=turn, is_there=turn < length, number=number)


def _later_rows(num_groups: int, group_size: int, num_attempts: int) -> np.ndarray:
    """Returns the rows that do not start from the beginning."""
    k = np.arange(num_groups * group_size) % group_size
    return np.flatnonzero(np.concatenate([k, np.repeat(k, num_attempts)]))


def _step_at(
    environment: Environment, start: tuple[State, TimeStep], words: Array, turn: Array
) -> tuple[State, tuple[State, TimeStep]]:
    """Returns the state before the action of a turn, int32 `[N]`, and the state and time step after it."""
    step = jax.vmap(environment.step)
    keys = jax.random.split(jax.random.key(0), turn.shape[0])  # Unused: there is no chance.

    def take(loop: tuple, number: Array) -> tuple[tuple, None]:
        now, found = loop
        after = step(keys, now[0], words[:, number])
        here = (now[0], after)
        return (after, jax.tree.map(partial(where_rows, number == turn), here, found)), None

    return jax.lax.scan(take, (start, (start[0], start)), jnp.arange(words.shape[1]))[0][1]


def _repeat(tree: Any, times: int) -> Any:
    return jax.tree.map(partial(jnp.repeat, repeats=times, axis=0), tree)


def _join(one: Any, other: Any) -> Any:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), one, other)


def _metrics(rows: Episode, own: Episode, group_size: int, num_attempts: int) -> Metrics:
    num_shown = rows.success.shape[0] // (1 + num_attempts)
    first = slice(None, None, group_size)
    began = own.success.reshape(-1, group_size, num_attempts)[:, 0]
    kept, score = rows.keep, jnp.sum(rows.reward, axis=1)
    gap = jnp.repeat(score[:num_shown], num_attempts) - score[num_shown:]
    pairs = kept[num_shown:] & (jnp.arange(gap.size) // num_attempts % group_size > 0)
    values = {
        "success_rate": (began, jnp.ones_like(began)),
        "expert_success_rate": (rows.success[:num_shown][first], kept[:num_shown][first]),
        "score_gap": (gap, pairs),
    }
    means = {
        name: Mean(total=jnp.sum(jnp.where(of, value, 0.0)), count=jnp.sum(of, dtype=jnp.float32))
        for name, (value, of) in values.items()
    }
    return dialogue_metrics(own) | means | count_experience(own)
