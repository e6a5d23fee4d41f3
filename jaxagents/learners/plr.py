"""PLR (Jiang et al., 2021) and ACCEL (Parker-Holder et al., 2022): levels with a high score are played again."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.checks import check_fractions, check_positive
from jaxagents.learners.curricula import level_agent, sample_levels, select, with_curriculum
from jaxagents.ops.advantages import generalized_advantage
from jaxagents.ops.checks import check_counts
from jaxagents.ops.levels import (
    LevelArchive,
    LevelView,
    Score,
    add_levels,
    draw_levels,
    init_archive,
    positive_value_loss,
    update_levels,
)
from jaxagents.ops.rows import rows_of_all_devices
from jaxagents.policies.evaluating import with_evaluation
from jaxagents.types import (
    ActorCritic,
    Agent,
    Array,
    Environment,
    Learner,
    Metrics,
    Params,
    PyTree,
    Rollout,
    input_of,
    input_of_successor,
)

NEW, REPLAYED, MUTATED = 0, 1, 2


@struct.dataclass
class ReplayMemory:
    """Memory of the levels.

    Attributes:
        archive: archive of levels.
        levels: levels of the next rollout, leaves `[B, ...]`, over all devices.
        place: int32 `[B]`, places of these levels in the archive, if they are replayed.
        kind: int32, NEW, REPLAYED or MUTATED.
    """

    archive: LevelArchive
    levels: PyTree
    place: Array
    kind: Array


def with_level_replay(
    learner: Learner,
    sample_level: Callable[[Array], PyTree],
    actor_critic: ActorCritic,
    *,
    num_levels: int,
    capacity: int = 1000,
    replay_probability: float = 0.5,
    fill_fraction: float = 0.5,
    temperature: float = 0.3,
    staleness: float = 0.3,
    duplicate_check: bool = False,
    train_on_new: bool = False,
    mutate: Callable[[Array, PyTree], PyTree] | None = None,
    score: Score = positive_value_loss,
    discount: float = 0.99,
    trace_decay: float = 0.95,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner that replays levels in its rollouts, see `with_curriculum`.

    A rollout plays new levels, levels drawn from an archive or, with `mutate`, edited levels after each replay. Levels
    enter the archive with a score of the episodes played on them. Robust PLR learns from replayed levels only.

    Args:
        learner: learner for rollouts.
        sample_level: `(key) -> level`.
        actor_critic: feed-forward actor-critic with the same parameters; scores are computed from its values and
            advantages.
        num_levels: B, number of levels of a rollout over all devices.
        capacity: C, capacity of the archive.
        replay_probability: probability that a rollout plays levels of the archive, once it is filled.
        fill_fraction: fraction of the archive that must be filled first.
        temperature: see `level_weights`.
        staleness: see `level_weights`.
        duplicate_check: see `add_levels`. JaxUED's mazes: True.
        train_on_new: whether to train on new levels: True is PLR, False robust PLR.
        mutate: `(key, level) -> level` of ACCEL; None: no edits.
        score: see `ops.levels`.
        discount: discount of the advantages.
        trace_decay: trace decay of the advantages.
        axis_name: mapped device axis.

    Returns:
        The learner. Metrics: `replayed`, `archive_filled` and `archive_score`, the mean over its levels.

    Raises:
        ValueError: a number is out of its range.

    References:
        Jiang, Grefenstette and Rocktäschel (2021), Prioritized level replay; Jiang et al. (2021), Replay-guided
        adversarial environment design; Parker-Holder et al. (2022), Evolving curricula with regret-based environment
        design (ACCEL).

    Deviation: the greatest returns are those of the archive and of the rollout itself, undiscounted, as in JaxUED.
    """
    check_counts(num_levels=num_levels, capacity=capacity)
    fractions = {"replay_probability": replay_probability, "fill_fraction": fill_fraction, "staleness": staleness}
    check_fractions(discount=discount, trace_decay=trace_decay, **fractions)
    check_positive(temperature=temperature)
    if capacity < num_levels:
        raise ValueError(f"`capacity` must be at least the {num_levels} levels of a rollout, got {capacity}.")
    weights = {"temperature": temperature, "staleness": staleness}
    decays = {"discount": discount, "trace_decay": trace_decay}

    new_levels = partial(sample_levels, sample_level, count=num_levels)

    def init(keys: Array) -> ReplayMemory:
        return ReplayMemory(
            archive=init_archive(jax.eval_shape(sample_level, keys[0]), capacity),
            levels=new_levels(keys[0]),
            place=jnp.zeros(num_levels, jnp.int32),
            kind=jnp.int32(NEW),
        )

    def choose(memory: ReplayMemory, key: Array) -> ReplayMemory:
        """Returns the memory with the levels of the next rollout."""
        archive = memory.archive
        new_key, draw_key, mutate_key, choice_key = jax.random.split(key, 4)
        filled = jnp.mean(archive.score > -jnp.inf) >= fill_fraction
        replays = filled & (jax.random.uniform(choice_key) < replay_probability)
        drawn, place = draw_levels(archive, draw_key, num_levels, **weights)
        old = jax.tree.map(lambda leaf: leaf[place], archive.levels)
        levels, kind = select(replays, old, new_levels(new_key)), jnp.where(replays, REPLAYED, NEW)
        if mutate is not None:
            changes = memory.kind == REPLAYED
            changed = jax.vmap(mutate)(jax.random.split(mutate_key, num_levels), memory.levels)
            levels, kind = select(changes, changed, levels), jnp.where(changes, MUTATED, kind)
            replays = replays & ~changes
        archive = select(replays, drawn, archive)
        return ReplayMemory(archive=archive, levels=levels, place=place, kind=kind.astype(jnp.int32))

    def update(
        memory: ReplayMemory, params: Params, rollout: Rollout, keys: Array
    ) -> tuple[ReplayMemory, Array | Literal[True], Metrics]:
        scores, most = _judge(actor_critic, score, decays, axis_name, memory, params, rollout)
        replayed = memory.kind == REPLAYED
        updated = update_levels(memory.archive, memory.place, scores, most)
        added = add_levels(memory.archive, memory.levels, scores, most, **weights, duplicate_check=duplicate_check)
        archive = select(replayed, updated, added)
        filled = archive.score > -jnp.inf
        metrics = {
            "replayed": replayed.astype(jnp.float32),
            "archive_filled": jnp.mean(filled),
            "archive_score": jnp.sum(jnp.where(filled, archive.score, 0.0)) / jnp.maximum(jnp.sum(filled), 1),
        }
        return choose(memory.replace(archive=archive), keys[0]), True if train_on_new else replayed, metrics

    return with_curriculum(learner, init, update)


def make_agent(environment: Environment, *, policy: Callable[..., ActorCritic], **options: Any) -> Agent:
    """Assembles an agent that replays the levels from which it can learn most.

    Args:
        environment: see `level_agent`.
        policy: `(observation_space, action_space) -> ActorCritic`, feed-forward, the same as that of the inner agent.
        **options: further arguments of `with_level_replay` and of `level_agent`.

    Raises:
        ValueError: the policy has no critic or it has a memory, or see `with_level_replay`.
    """
    actor_critic = policy(environment.observation_space, environment.action_space)
    with_evaluation(actor_critic)  # Refuses policies without a critic, and those with a memory.
    return level_agent(partial(with_level_replay, actor_critic=actor_critic), environment, **options)


def _judge(
    actor_critic: ActorCritic,
    score: Score,
    decays: dict[str, Any],
    axis_name: str | None,
    memory: ReplayMemory,
    params: Params,
    rollout: Rollout,
) -> tuple[Array, Array]:
    """Returns scores and greatest returns for the levels of a rollout, over all devices, `[B]`."""
    transition = rollout.transition
    known = jnp.where(memory.kind == REPLAYED, memory.archive.max_return[memory.place], -jnp.inf)
    most = _greatest_return(transition.reward, transition.terminated | transition.truncated)
    value, next_value = _values(actor_critic, params, rollout)
    if axis_name is not None:
        known = jax.lax.dynamic_slice_in_dim(known, jax.lax.axis_index(axis_name) * most.size, most.size)
    most = jnp.maximum(most, known)
    ends = transition.terminated, transition.truncated
    view = LevelView(
        ended=ends[0] | ends[1],
        advantage=generalized_advantage(transition.reward, value, next_value, *ends, **decays),
        value=value,
        success=transition.extras["success"],
        max_return=most,
    )
    return rows_of_all_devices((score(view), most), axis_name)


def _values(actor_critic: ActorCritic, params: Params, rollout: Rollout) -> tuple[Array, ...]:
    transition = rollout.transition
    carry = actor_critic.initial_carry((transition.reward.shape[1],))
    both = input_of(transition), input_of_successor(transition)
    return tuple(actor_critic.apply(params, carry, inputs)[2] for inputs in both)


def _greatest_return(reward: Array, ended: Array) -> Array:
    """Computes the greatest undiscounted return of the episodes that ended, -inf if none did, `[B]`."""

    def step(carry: tuple[Array, Array], inputs: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        total, most = carry
        paid, end = inputs
        total = total + paid
        return (jnp.where(end, 0.0, total), jnp.where(end, jnp.maximum(most, total), most)), None

    nothing = jnp.zeros(reward.shape[1])
    return jax.lax.scan(step, (nothing, jnp.full_like(nothing, -jnp.inf)), (reward, ended))[0][1]
