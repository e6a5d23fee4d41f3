"""Curricula of levels: prioritised level replay around any learner of rollouts (PLR, robust PLR, ACCEL)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners.checks import check_counts, check_fractions, check_positive
from jaxagents.learners.combinators import start_of_inner, wrap
from jaxagents.learners.optimizers import take_if
from jaxagents.ops.advantages import generalized_advantage
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
from jaxagents.policies.evaluating import with_evaluation
from jaxagents.policies.inputs import input_of, input_of_successor
from jaxagents.types import (
    ActorCritic,
    Agent,
    Array,
    Collector,
    Environment,
    Learner,
    Metrics,
    Params,
    PyTree,
    Rollout,
    State,
)

NEW, REPLAYED, MUTATED = 0, 1, 2


@struct.dataclass
class LevelReplayState:
    """State of the learner.

    Attributes:
        inner: of who learns from the rollouts.
        archive: of levels.
        levels: of the next rollout, leaves `[B, ...]`, over all devices.
        place: int32 `[B]`, of those levels in the archive, where they are replayed.
        kind: int32, NEW, REPLAYED or MUTATED.
    """

    inner: Any
    archive: LevelArchive
    levels: PyTree
    place: Array
    kind: Array

    @property
    def params(self) -> Params:
        """Returns the parameters of the policy."""
        return self.inner.params


def with_level_replay(
    learner: Learner,
    actor_critic: ActorCritic,
    sample_level: Callable[[Array], PyTree],
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
    """Makes a learner that chooses the levels of its rollouts, which `rollouts.levels` plays.

    A rollout is on new levels, on levels drawn from an archive or, with `mutate`, after every one of these on changed
    ones. Levels enter the archive by the score of what was played on them. Robust PLR learns from replayed levels only.

    Args:
        learner: of rollouts.
        actor_critic: feed-forward, of the same parameters; its values and advantages are what scores see.
        sample_level: `(key) -> level`.
        num_levels: B, of a rollout over all devices.
        capacity: C, of the archive.
        replay_probability: of a rollout on levels of the archive, once it is filled.
        fill_fraction: share of the archive that is filled before.
        temperature: see `level_weights`.
        staleness: see `level_weights`.
        duplicate_check: see `add_levels`. JaxUED's mazes: True.
        train_on_new: true is PLR, false robust PLR.
        mutate: `(key, level) -> level` of ACCEL; None changes nothing.
        score: see `ops.levels`.
        discount: of the advantages.
        trace_decay: of the advantages.
        axis_name: mapped device axis.

    Returns:
        The learner; collectors act with `{"params", "levels"}`. Metrics: `replayed`, `archive_filled` and
        `archive_score`, the mean over its levels.

    Raises:
        ValueError: a number is out of its range.

    References:
        Jiang, Grefenstette and Rocktäschel (2021), Prioritized level replay; Jiang et al. (2021), Replay-guided
        adversarial environment design; Parker-Holder et al. (2022), Evolving curricula with regret-based environment
        design (ACCEL).

    Deviation: greatest returns are those of the archive and of the rollout itself, undiscounted, as in JaxUED.
    """
    check_counts(num_levels=num_levels, capacity=capacity)
    fractions = {"replay_probability": replay_probability, "fill_fraction": fill_fraction, "staleness": staleness}
    check_fractions(discount=discount, trace_decay=trace_decay, **fractions)
    check_positive(temperature=temperature)
    if capacity < num_levels:
        raise ValueError(f"`capacity` must be at least the {num_levels} levels of a rollout, got {capacity}.")
    weights = {"temperature": temperature, "staleness": staleness}
    decays = {"discount": discount, "trace_decay": trace_decay}

    def sample_levels(key: Array) -> PyTree:
        return jax.vmap(sample_level)(jax.random.split(key, num_levels))

    def init(key: Array, start: LevelReplayState | Params | None = None) -> LevelReplayState:
        inner_key, level_key = jax.random.split(key)
        inner = learner.init(inner_key, start_of_inner(start, LevelReplayState))
        if isinstance(start, LevelReplayState):
            return start.replace(inner=inner)
        return LevelReplayState(
            inner=inner,
            archive=init_archive(jax.eval_shape(sample_level, level_key), capacity),
            levels=sample_levels(level_key),
            place=jnp.zeros(num_levels, jnp.int32),
            kind=jnp.int32(NEW),
        )

    def choose(state: LevelReplayState, archive: LevelArchive, key: Array) -> LevelReplayState:
        """Returns the state with the levels of the next rollout."""
        new_key, draw_key, mutate_key, choice_key = jax.random.split(key, 4)
        filled = jnp.mean(archive.score > -jnp.inf) >= fill_fraction
        replays = filled & (jax.random.uniform(choice_key) < replay_probability)
        drawn, place = draw_levels(archive, draw_key, num_levels, **weights)
        old = jax.tree.map(lambda leaf: leaf[place], archive.levels)
        levels = jax.tree.map(_chosen(replays), old, sample_levels(new_key))
        kind = jnp.where(replays, REPLAYED, NEW)
        if mutate is not None:
            changes = state.kind == REPLAYED
            changed = jax.vmap(mutate)(jax.random.split(mutate_key, num_levels), state.levels)
            levels = jax.tree.map(_chosen(changes), changed, levels)
            kind, replays = jnp.where(changes, MUTATED, kind), replays & ~changes
        archive = jax.tree.map(_chosen(replays), drawn, archive)
        return state.replace(archive=archive, levels=levels, place=place, kind=kind.astype(jnp.int32))

    def update(state: LevelReplayState, key: Array, rollout: Rollout) -> tuple[LevelReplayState, Metrics]:
        inner_key, choose_key = jax.random.split(key)
        scores, most = _judge(actor_critic, score, decays, axis_name, state, rollout)
        replayed = state.kind == REPLAYED
        updated = update_levels(state.archive, state.place, scores, most)
        added = add_levels(state.archive, state.levels, scores, most, **weights, duplicate_check=duplicate_check)
        archive = jax.tree.map(_chosen(replayed), updated, added)
        inner, metrics = learner.update(state.inner, inner_key, rollout)
        if not train_on_new:
            inner = take_if(replayed, inner, state.inner)
        filled = archive.score > -jnp.inf
        told = {
            "replayed": replayed.astype(jnp.float32),
            "archive_filled": jnp.mean(filled),
            "archive_score": jnp.sum(jnp.where(filled, archive.score, 0.0)) / jnp.maximum(jnp.sum(filled), 1),
        }
        return choose(state.replace(inner=inner), archive, choose_key), {**metrics, **told}

    return wrap(learner, init, update, acting=lambda state, own: {"params": own, "levels": state.levels})


def make_agent(
    environment: Environment,
    *,
    inner: Callable[..., Agent],
    policy: Callable[..., ActorCritic],
    level: int | None = None,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles an agent that chooses the levels it learns on.

    Args:
        environment: of one agent; its tasks are the levels.
        inner: `(environment, *, axis_name) -> Agent`, who learns, of the same policy.
        policy: `(observation_space, action_space) -> ActorCritic`, feed-forward.
        level: difficulty of new levels, where the world has some.
        axis_name: see `with_level_replay`.
        **options: further arguments of `with_level_replay`.

    Returns:
        The agent.

    Raises:
        ValueError: the policy has no critic or a memory, or see `with_level_replay`.
    """
    actor_critic = policy(environment.observation_space, environment.action_space)
    with_evaluation(actor_critic)  # Refuses policies without a critic, and those with a memory.

    def choose(learner: Learner, sample_level: Callable[[Array], PyTree], num_levels: int) -> Learner:
        chosen: dict[str, Any] = {"num_levels": num_levels, "axis_name": axis_name, **options}
        return with_level_replay(learner, actor_critic, sample_level, **chosen)

    return make_level_agent(environment, inner(environment, axis_name=axis_name), choose, level)


def make_level_agent(
    environment: Environment,
    agent: Agent,
    choose: Callable[[Learner, Callable[[Array], PyTree], int], Learner],
    level: int | None,
) -> Agent:
    """Joins an agent with what chooses the levels of its rollouts.

    Args:
        environment: of one agent; its tasks are the levels.
        agent: learns from the rollouts.
        choose: `(learner, sample_level, levels of a rollout) -> Learner` that acts with `{"params", "levels"}`.
        level: difficulty of new levels, where the world has some.

    Returns:
        The agent, for collectors of `rollouts.levels`.
    """

    def sample_level(key: Array) -> PyTree:
        return environment.sample_task(key, level)

    def make_learner(collector: Collector, num_updates: int) -> Learner:
        num_levels = jax.eval_shape(collector.init, jax.random.key(0), None).index.size
        levels = jax.vmap(sample_level)(jax.random.split(jax.random.key(0), num_levels))

        def collect(state: State, params: Params, key: Array) -> tuple[State, PyTree, Metrics]:
            return collector.collect(state, {"params": params, "levels": levels}, key)

        # The inner learner asks for the shapes of batches, with parameters of its own.
        learner = agent.make_learner(collector._replace(collect=collect), num_updates)
        return choose(learner, sample_level, num_levels)

    return Agent(policy=agent.policy, make_learner=make_learner)


def _chosen(condition: Array) -> Callable[[Array, Array], Array]:
    return lambda new, old: jnp.where(condition, new, old)


def _judge(
    actor_critic: ActorCritic,
    score: Score,
    decays: dict[str, Any],
    axis_name: str | None,
    state: LevelReplayState,
    rollout: Rollout,
) -> tuple[Array, Array]:
    """Returns scores and greatest returns of the levels of a rollout, over all devices, `[B]`."""
    transition = rollout.transition
    known = jnp.where(state.kind == REPLAYED, state.archive.max_return[state.place], -jnp.inf)
    most = _greatest_return(transition.reward, transition.terminated | transition.truncated)
    value, next_value = _values(actor_critic, state.params, rollout)
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
    seen = score(view), most
    return seen if axis_name is None else jax.lax.all_gather(seen, axis_name, tiled=True)


def _values(actor_critic: ActorCritic, params: Params, rollout: Rollout) -> tuple[Array, ...]:
    transition = rollout.transition
    carry = actor_critic.initial_carry((transition.reward.shape[1],))
    told = input_of(transition), input_of_successor(transition)
    return tuple(actor_critic.apply(params, carry, inputs)[2] for inputs in told)


def _greatest_return(reward: Array, ended: Array) -> Array:
    """Computes the greatest undiscounted return of the episodes that ended, -inf where none did, `[B]`."""

    def step(carry: tuple[Array, Array], inputs: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        total, most = carry
        paid, end = inputs
        total = total + paid
        return (jnp.where(end, 0.0, total), jnp.where(end, jnp.maximum(most, total), most)), None

    nothing = jnp.zeros(reward.shape[1])
    return jax.lax.scan(step, (nothing, jnp.full_like(nothing, -jnp.inf)), (reward, ended))[0][1]
