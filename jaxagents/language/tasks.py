"""Sources of tasks for dialogues: `(*, level, num_levels) -> TaskSource`, the slot `task_source` of collectors.

Sources count outcomes of the tasks that they chose, by level, or by task if they choose from a fixed set.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.environments.text.splits import level_of
from jaxagents.ops.checks import check_counts
from jaxagents.ops.rows import where_rows
from jaxagents.types import (
    Array,
    ChosenTasks,
    Collector,
    Environment,
    Metrics,
    Params,
    PyTree,
    State,
    Task,
    TaskSource,
    TimeStep,
)

Weigh = Callable[[Array, Array], Array]
"""`(count [K], success [K]) -> weight [K]`: from numbers of plays and successes of items to sampling weights."""


@struct.dataclass
class TaskCounts:
    """Outcomes so far, the same in every row; leaves `[num_groups, K]`.

    Attributes:
        count: float32, number of groups that played each item; older groups count less.
        success: float32, sum of the groups' fractions of successes.
        set_key: uint32 `[num_groups, 2]`, key of the fixed set.
    """

    count: Array
    success: Array
    set_key: Array


def make_uniform(
    *,
    level: int | Sequence[int] | None = None,
    num_levels: int = 1,
    num_tasks: int | None = None,
    tasks_seed: int | None = None,
) -> TaskSource:
    """Makes a source of new tasks, or of tasks drawn from a fixed set, independent of outcomes.

    Args:
        level: level of the tasks; a list is cycled through; None: every task draws its own.
        num_levels: number of levels of the world.
        num_tasks: size of the fixed set; None: new tasks.
        tasks_seed: seed of the fixed set, the same in every run and stage; None: every run has its own set.

    Returns:
        The source.

    Raises:
        ValueError: `num_tasks` is not positive.
    """
    del num_levels
    check_counts(num_tasks=num_tasks)

    def init(key: Array, num_groups: int) -> Array:
        return _rows_of_key(key, tasks_seed, num_groups)

    def choose(state: Array, key: Array, index: Array) -> ChosenTasks:
        keys = _fold(key, index)
        if num_tasks is None:
            return ChosenTasks(key=keys, level=_levels(level, index), item=jnp.zeros_like(index))
        item = jax.vmap(lambda key: jax.random.randint(key, (), 0, num_tasks))(keys)
        return ChosenTasks(key=_fold(_key_of(state), item), level=_levels(level, item), item=item)

    return TaskSource(init=init, choose=choose, update=lambda state, chosen, success, axis_name=None: state)


def make_weighted(
    weigh: Weigh,
    *,
    level: int | Sequence[int] | None = None,
    num_levels: int = 1,
    num_tasks: int | None = None,
    tasks_seed: int | None = None,
    decay: float = 0.95,
) -> TaskSource:
    """Makes a source that draws levels, or tasks of a fixed set, depending on their outcomes.

    `P(item) = weight(item) / sum of weights`; after an update in which an item was played by n groups with mean success
    s, `count <- decay count + n` and `success <- decay success + n s`, over all devices.

    Args:
        weigh: computes the weights: `by_level`, `in_band` or `upper_confidence`.
        level: available levels; None: all levels of the world. Tasks of a fixed set cycle through them.
        num_levels: number of levels of the world.
        num_tasks: size of the fixed set, whose tasks are the items; None: new tasks, and the levels are the items.
        tasks_seed: seed of the fixed set, see `make_uniform`.
        decay: decay of the counts per update, in (0, 1].

    Returns:
        The source.

    Raises:
        ValueError: `num_tasks` is not positive, or `decay` is out of range.
    """
    check_counts(num_tasks=num_tasks)
    if not 0.0 < decay <= 1.0:
        raise ValueError(f"`decay` must be in (0, 1], got {decay}; try 0.95.")
    levels = tuple(range(num_levels)) if level is None else (level,) if isinstance(level, int) else tuple(level)
    levels = levels if num_tasks else tuple(dict.fromkeys(levels))
    num_items = num_tasks or len(levels)

    def init(key: Array, num_groups: int) -> TaskCounts:
        zeros = jnp.zeros((num_groups, num_items))
        return TaskCounts(count=zeros, success=zeros, set_key=_rows_of_key(key, tasks_seed, num_groups))

    def choose(state: TaskCounts, key: Array, index: Array) -> ChosenTasks:
        keys = jax.vmap(jax.random.split)(_fold(key, index))
        logits = jnp.log(weigh(state.count[0], state.success[0]))
        item = jax.vmap(lambda key: jax.random.categorical(key, logits))(keys[:, 0]).astype(jnp.int32)
        of_item = jnp.asarray(levels, jnp.int32)[item % len(levels)]
        task_key = keys[:, 1] if num_tasks is None else _fold(_key_of(state.set_key), item)
        return ChosenTasks(key=task_key, level=of_item, item=item)

    def update(state: TaskCounts, chosen: ChosenTasks, success: Array, axis_name: str | None = None) -> TaskCounts:
        played = jnp.zeros((2, num_items)).at[:, chosen.item].add(jnp.stack([jnp.ones_like(success), success]))
        if axis_name is not None:
            played = jax.lax.psum(played, axis_name)
        return state.replace(
            count=decay * state.count + played[0][None], success=decay * state.success + played[1][None]
        )

    return TaskSource(init=init, choose=choose, update=update)


def by_level(count: Array, success: Array, *, weights: Sequence[float]) -> Array:
    """Returns a fixed weight for every item: a mixture of levels.

    Args:
        count: `[K]`, not used.
        success: `[K]`, not used.
        weights: K weights; they need not sum to one.

    Returns:
        float32 `[K]`.

    Raises:
        ValueError: there are not K weights (when traced).
    """
    del success
    if len(weights) != count.shape[0]:
        raise ValueError(f"`weights` must be one per item, {count.shape[0]}, got {len(weights)}.")
    return jnp.asarray(weights, jnp.float32)


def in_band(count: Array, success: Array, *, low: float = 0.2, high: float = 0.8, outside: float = 0.05) -> Array:
    """Prefers items that succeed neither too rarely nor too often, and items that were never played.

    Args:
        count: `[K]`, numbers of plays.
        success: `[K]`, numbers of successes.
        low: smallest success rate of the band.
        high: largest success rate of the band.
        outside: weight of items outside the band, relative to those inside; above 0, because rates change.

    Returns:
        float32 `[K]`.

    References:
        Yu et al. (2025), "DAPO: An Open-Source LLM Reinforcement Learning System at Scale" (tasks that all fail or all
        succeed teach nothing); Bae et al. (2025), "Online Difficulty Filtering for Reasoning Oriented Reinforcement
        Learning" (a band of success rates).
    """
    rate = success / jnp.maximum(count, 1e-6)
    inside = ((rate >= low) & (rate <= high)) | (count <= 0.0)
    return jnp.where(inside, 1.0, outside)


def upper_confidence(count: Array, success: Array, *, exploration: float = 0.5) -> Array:
    """Selects the item with the most variable outcomes, by the largest upper confidence bound, for the whole update.

    The bound is `4 p (1 - p) + exploration sqrt(log(sum of counts) / count)`: the first term is 1 if half of the groups
    succeed. Items that were never played come first.

    Args:
        count: `[K]`, numbers of plays.
        success: `[K]`, numbers of successes.
        exploration: weight of the second term.

    Returns:
        float32 `[K]`, 1 for one item and 0 for the others.

    References:
        Auer, Cesa-Bianchi and Fischer (2002), "Finite-time Analysis of the Multiarmed Bandit Problem" (UCB1).
        Garivier and Moulines (2011), "On Upper-Confidence Bound Policies for Switching Bandit Problems" (decay).
    """
    known = jnp.maximum(count, 1e-6)
    rate = jnp.clip(success / known, 0.0, 1.0)
    bonus = jnp.sqrt(jnp.log(jnp.maximum(jnp.sum(count), 1.0)) / known)
    bound = jnp.where(count > 0.0, 4.0 * rate * (1.0 - rate) + exploration * bonus, jnp.inf)
    return jax.nn.one_hot(jnp.argmax(bound), count.shape[0])


@struct.dataclass
class FailedTasks:
    """The last task of every group of a batch, if it failed, leaves `[num_groups, ...]`.

    Attributes:
        inner: state of the source of other tasks.
        failed: bool, whether it failed.
        key: uint32 `[num_groups, 2]`, key of the task.
        level: int32, level of the task; -1 if it drew its own.
        item: int32, item of the task.
        index: int32, index of the group.
    """

    inner: PyTree
    failed: Array
    key: Array
    level: Array
    item: Array
    index: Array


def with_retries(
    source: Callable[..., TaskSource],
    *,
    level: int | Sequence[int] | None = None,
    num_levels: int = 1,
    probability: float = 0.5,
    threshold: float = 0.5,
) -> TaskSource:
    """Makes a source that repeats failed tasks.

    Args:
        source: source of the other tasks.
        level: see `source`.
        num_levels: number of levels of the world.
        probability: probability with which a group repeats its last task if it failed.
        threshold: fraction of successes in a group below which its task counts as failed.

    Returns:
        The source. Further rounds of a batch repeat no tasks.

    Raises:
        ValueError: `probability` is not a probability.
    """
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"`probability` must be in [0, 1], got {probability}; try 0.5.")
    inner = source(level=level, num_levels=num_levels)

    def init(key: Array, num_groups: int) -> FailedTasks:
        index = jnp.arange(num_groups, dtype=jnp.int32)
        return FailedTasks(
            inner=inner.init(key, num_groups),
            failed=jnp.zeros(num_groups, bool),
            key=_rows_of_key(key, None, num_groups),
            level=jnp.full(num_groups, -1),
            item=jnp.zeros_like(index),
            index=index,
        )

    def choose(state: FailedTasks, key: Array, index: Array) -> ChosenTasks:
        source_key, retry_key = jax.random.split(key)
        fresh = inner.choose(state.inner, source_key, index)
        draw = jax.vmap(lambda key: jax.random.bernoulli(key, probability))(_fold(retry_key, index))
        again = state.failed & (state.index == index) & draw
        data = where_rows(again, state.key, jax.random.key_data(fresh.key))
        return ChosenTasks(
            key=jax.random.wrap_key_data(data),
            level=None if fresh.level is None else jnp.where(again, state.level, fresh.level),
            item=jnp.where(again, state.item, fresh.item),
        )

    def update(state: FailedTasks, chosen: ChosenTasks, success: Array, axis_name: str | None = None) -> FailedTasks:
        return state.replace(
            inner=inner.update(state.inner, chosen, success, axis_name=axis_name),
            failed=success < threshold,
            key=jax.random.key_data(chosen.key),
            level=state.level if chosen.level is None else chosen.level,
            item=chosen.item,
        )

    return TaskSource(init=init, choose=choose, update=update)


def start_tasks(environment: Environment, chosen: ChosenTasks) -> tuple[Task, tuple[State, TimeStep], Array]:
    """Makes chosen tasks, and starts them.

    Args:
        environment: unbatched text world.
        chosen: n tasks.

    Returns:
        The tasks, their first states and time steps, leaves `[n, ...]`, and typed keys `[n]` for further random numbers
        of the tasks.
    """
    keys = jax.vmap(lambda key: jax.random.split(key, 3))(chosen.key)
    levels = () if chosen.level is None else (chosen.level,)
    task = jax.vmap(environment.sample_task)(keys[:, 0], *levels)
    return task, jax.vmap(environment.reset)(keys[:, 1], task), keys[:, 2]


def make_task_collector(
    collect: Callable[[PyTree, Params, Array], tuple[PyTree, PyTree, Metrics]],
    source: TaskSource,
    num_rows: int,
    option: str,
    *,
    steps: int | None = None,
    temperature: float | None = None,
) -> Collector:
    """Makes a collector whose state consists of the global indices of its rows and the state of their task source.

    Args:
        collect: `(state, params, key) -> (state, batch, metrics)`; the state has `source`, and the indices int32 as
            `group` if rows are groups of episodes, or as `index` if they are episodes.
        source: source of the tasks.
        num_rows: number of rows, over all devices.
        option: name of the option with that number, "num_groups" or "num_episodes".
        steps: number of steps for which one call counts; None: one per row.
        temperature: sampling temperature of the policy; None: 1.

    Returns:
        The collector.
    """
    name = {"num_groups": "group", "num_episodes": "index"}[option]

    def init(key: Array, params: Params) -> PyTree:
        del params
        return {name: jnp.arange(num_rows, dtype=jnp.int32), "source": source.init(key, num_rows)}

    return Collector(
        init=init,
        collect=collect,
        steps_per_collect=num_rows if steps is None else steps,
        divided_option=option,
        tempering={} if temperature in (None, 1.0) else {"temperature": temperature},
    )


def _levels(level: int | Sequence[int] | None, index: Array) -> Array | None:
    return None if level is None else jnp.broadcast_to(level_of(level, index), index.shape)


def _fold(key: Array, index: Array) -> Array:
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, index)


def _rows_of_key(key: Array, seed: int | None, num_groups: int) -> Array:
    """Returns the bits of a key once per group, uint32 `[num_groups, 2]`, because devices split a collector's state."""
    key = key if seed is None else jax.random.key(seed)
    return jax.random.key_data(jnp.broadcast_to(key, (num_groups,)))


def _key_of(rows: Array) -> Array:
    return jax.random.wrap_key_data(rows[0])
