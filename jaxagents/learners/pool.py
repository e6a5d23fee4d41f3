"""DART-GUI (Li et al., 2025): stored successes join groups that failed, and ratios are to the latest policy."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners import policy_gradient
from jaxagents.learners.combinators import params_of, rollout_shapes, start_of_inner, wrap, wrapper_agent
from jaxagents.learners.delayed import with_delayed_actor
from jaxagents.learners.microbatches import make_microbatches, score_episodes
from jaxagents.learners.stores import empty_store
from jaxagents.ops.checks import require_between
from jaxagents.ops.episodes import episode_return, kept_rows
from jaxagents.ops.rows import put_in_front, rows_of_all_devices, where_rows
from jaxagents.types import Agent, Array, Collector, Environment, Episode, LanguageModel, Learner, Mean, Metrics, Params


@struct.dataclass
class PooledState:
    """State of the inner learner, and successes `[C, ...]` on different tasks, the newest ones first."""

    inner: Any
    store: Episode
    filled: Array

    @property
    def params(self) -> Params:
        """Returns the parameters that are trained."""
        return self.inner.params


def with_pool(
    learner: Learner,
    model: LanguageModel,
    example: Episode,
    *,
    capacity: int,
    microbatch_tokens: int = 4096,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner that replaces the first episode of each failed group by the latest success on the same task.

    A group has failed if no return is above 0. Tasks are the same if the fingerprints of their first turns are. For
    every task, the pool holds the latest success in earlier batches. Stored or not, episodes are then scored with the
    parameters before the update: `behavior_log_prob` is theirs, and `sampling_log_prob` that of the acting policy, so
    that `importance_cap` weights tokens by `min(pi_before / pi_acting, cap)`, and ratios in the loss are to
    `pi_before`.

    Args:
        learner: learner for groups of `Episode`s with one seat.
        model: language model that scores the tokens.
        example: batch of arrays or `ShapeDtypeStruct`s, which defines the shapes.
        capacity: C, number of tasks whose success is stored; the oldest ones are forgotten first; 0: none is stored.
        microbatch_tokens: approximate number of tokens per pass through the model.
        axis_name: mapped device axis; all rows of a group are on the same device, and every device holds the whole
            pool.

    Returns:
        The learner. Metrics: `pooled_fraction` of the groups that failed, `stored` tasks, and `staleness`, the mean of
            `log pi_acting - log pi_before` over the tokens.

    Raises:
        ValueError: `capacity` is negative, or (when traced) the episodes are of a game with several seats.

    References:
        Li et al. (2025), "Efficient Multi-turn RL for GUI Agents via Decoupled Training and Adaptive Data Curation".

    Deviation: the pool starts empty; the paper's pool starts with successes that were collected before.
    """
    require_between("capacity", capacity, 0)
    num_rows = max(capacity, 1)
    microbatches = make_microbatches(example.layout, microbatch_tokens=microbatch_tokens)

    def init(key: Array, start: PooledState | Params | None = None) -> PooledState:
        inner = learner.init(key, start_of_inner(start, PooledState))
        return PooledState(inner=inner, store=empty_store(example, num_rows), filled=jnp.zeros(num_rows, bool))

    def rescore(params: Params, episode: Episode) -> tuple[Episode, Mean]:
        log_prob = score_episodes(model, microbatches, params, episode, fields=("log_prob",)).log_prob
        log_prob = jnp.where(episode.action_mask, jnp.asarray(log_prob), 0.0)
        acting = episode.behavior_log_prob
        count = jnp.sum(episode.action_mask, dtype=jnp.float32)
        staleness = Mean(total=jnp.sum(jnp.where(episode.action_mask, acting - log_prob, 0.0)), count=count)
        return episode.replace(behavior_log_prob=log_prob, sampling_log_prob=acting), staleness

    def update(state: PooledState, key: Array, episode: Episode) -> tuple[PooledState, Metrics]:
        batch, failed, pooled = join_groups(episode, state.store, state.filled)
        batch, staleness = rescore(params_of(state.inner), batch)
        inner, metrics = learner.update(state.inner, key, batch)
        rows, chosen = rows_of_all_devices((episode, _latest_successes(episode) & (capacity > 0)), axis_name)
        newer = (rows.fingerprint[None, :, 0] == state.store.fingerprint[:, None, 0]) & chosen[None]
        store, filled = put_in_front(state.store, state.filled & ~jnp.any(newer, axis=1), rows, chosen)
        own: Metrics = {
            "pooled_fraction": Mean(total=jnp.sum(pooled), count=jnp.maximum(jnp.sum(failed), 1.0)),
            "stored": jnp.sum(filled, dtype=jnp.float32),
            "staleness": staleness,
        }
        return PooledState(inner=inner, store=store, filled=filled), {**metrics, **own}

    return wrap(learner, init, update)


def join_groups(episode: Episode, store: Episode, filled: Array) -> tuple[Episode, Array, Array]:
    """Puts stored successes into the groups that failed.

    Args:
        episode: B episodes in groups, with one seat.
        store: C stored episodes, the newest ones first.
        filled: bool `[C]`, which rows of the store hold an episode.

    Returns:
        The episodes; and for the first row of every group whether the group failed, and whether a stored episode joined
        it, each float32 `[B]`, 1 or 0, and 0 in all other rows.
    """
    kept = kept_rows(episode)
    same = (episode.group[:, None] == episode.group[None, :]) & kept[None, :]
    index = jnp.arange(kept.shape[0])
    first = kept & ~jnp.any(same & (index[None, :] < index[:, None]), axis=1)
    failed = first & ~jnp.any(same & (episode_return(episode) > 0.0)[None, :], axis=1)
    found = (episode.fingerprint[:, None, 0] == store.fingerprint[None, :, 0]) & filled[None, :]
    joined = failed & jnp.any(found, axis=1)
    offered = jax.tree.map(lambda leaf: leaf[jnp.argmax(found, axis=1)], store)
    batch = where_rows(joined, offered, episode).replace(group=episode.group)
    return batch, failed.astype(jnp.float32), joined.astype(jnp.float32)


def _latest_successes(episode: Episode) -> Array:
    """Returns the first kept row of every task in a batch with a positive return, bool `[B]`."""
    right = kept_rows(episode) & (episode_return(episode) > 0.0)
    task, index = episode.fingerprint[:, 0], jnp.arange(right.shape[0])
    before = (task[:, None] == task[None, :]) & right[None, :] & (index[None, :] < index[:, None])
    return right & ~jnp.any(before, axis=1)


def make_agent(
    environment: Environment,
    *,
    capacity: int = 256,
    delay: int = 0,
    microbatch_tokens: int = 4096,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles a policy-gradient agent with a pool of successes for a text world with one seat.

    Args:
        environment: text world with one seat whose tasks recur.
        capacity: see `with_pool`.
        delay: number of updates between acting and learning, see `delayed.with_delayed_actor`; 0: no lag.
        microbatch_tokens: approximate number of tokens per pass through the model.
        axis_name: see `with_pool`.
        **options: further arguments of `learners.policy_gradient.make_agent`.

    Raises:
        ValueError: the world has several seats, or see `with_pool` and `with_delayed_actor`.
    """
    if environment.num_players > 1:
        raise ValueError(
            f"`environment` must have one seat for a pool of successes, got {environment.num_players} in "
            f"{environment.name!r}."
        )
    both: dict[str, Any] = {"microbatch_tokens": microbatch_tokens, "axis_name": axis_name}
    agent = policy_gradient.make_agent(environment, **both, **options)

    def change(learner: Learner, collector: Collector, num_updates: int) -> Learner:
        example = rollout_shapes(collector, agent.policy)
        pooled = with_pool(learner, agent.policy.model, example, capacity=capacity, **both)
        return with_delayed_actor(pooled, delay=delay) if delay else pooled

    return wrapper_agent(agent, change)
