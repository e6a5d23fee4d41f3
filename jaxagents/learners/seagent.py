"""SEAgent (Sun et al., 2025): compares fresh actions with own good steps, and discourages the step to blame."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.learners import policy_gradient
from jaxagents.learners.combinators import params_of, start_of_inner, wrap, wrapper_agent
from jaxagents.learners.stores import draw_rows
from jaxagents.ops.checks import check_counts
from jaxagents.ops.episodes import acting_turns, episode_return, kept_rows
from jaxagents.types import Agent, Array, Collector, Environment, Episode, LanguagePolicy, Learner, Metrics, Params

Utter = Callable[[Params, Array, Episode], Episode]


@struct.dataclass
class StepsState:
    """State of the inner learner."""

    inner: Any

    @property
    def params(self) -> Params:
        """Returns the parameters that are trained."""
        return self.inner.params


def with_judged_steps(
    learner: Learner,
    utter: Utter,
    *,
    part: str,
    num_positives: int,
    num_negatives: int,
    num_samples: int = 8,
    axis_name: str | None = None,
) -> Learner:
    """Makes a learner of single steps from whole episodes that a judge has evaluated step by step.

    Good steps are all steps of episodes with a positive return, and those before the first wrong step of others, which
    is the step to blame. In the states of good steps, `num_samples` actions are drawn, each rewarded by its similarity
    to the good one, see `likeness`: these form rows in groups of `num_samples`. Steps to blame form rows of
    `Episode.control`, in which only they count as sampled.

    Args:
        learner: policy-gradient learner whose credit compares the same turn of a group, such as `advantage=turn_scores`
            with `same_turn: true`, and whose loss supports controlled rows, such as
            `losses.demonstrated.adversarial_imitation`.
        utter: `(params, key, episode) -> Episode` with fresh actions, see `language.utterances`.
        part: name of an entry of `episode.extras` with the number of right steps so far, which the world reports.
        num_positives: number of own episodes with good steps that are drawn per update, on each device.
        num_negatives: the same for episodes with a step to blame.
        num_samples: number of actions that are drawn in every state.
        axis_name: mapped device axis.

    Returns:
        The learner. Metrics: `good_steps` and `blamed_steps`, shares of the played turns.

    Raises:
        ValueError: a count is not positive; when traced, the episodes lack the part.

    References:
        Sun et al. (2025), "SEAgent: Self-Evolving Computer Use Agent with Autonomous Learning from Experience".
    """
    check_counts(num_positives=num_positives, num_negatives=num_negatives, num_samples=num_samples)

    def init(key: Array, start: StepsState | Params | None = None) -> StepsState:
        return StepsState(inner=learner.init(key, start_of_inner(start, StepsState)))

    def update(state: StepsState, key: Array, episode: Episode) -> tuple[StepsState, Metrics]:
        update_key, own_key = jax.random.split(key)
        own_key = own_key if axis_name is None else jax.random.fold_in(own_key, jax.lax.axis_index(axis_name))
        keys = jax.random.split(own_key, 3)
        good, blamed = judge_steps(episode, part)
        good_steps = _rows_with(keys[0], episode, good, num_positives)
        good_steps = jax.tree.map(lambda leaf: jnp.repeat(leaf, num_samples, axis=0), good_steps)
        fresh = utter(params_of(state.inner), keys[1], good_steps)
        fresh = fresh.replace(reward=jnp.where(acting_turns(good_steps), likeness(fresh, good_steps), 0.0))
        group = jnp.repeat(jnp.arange(num_positives), num_samples)
        wrong = _rows_with(keys[2], episode, blamed, num_negatives)
        groups = [group, num_positives + jnp.arange(num_negatives)]
        rows = [
            one.replace(group=group, control=jnp.full(group.shape, number == 1))
            for number, (one, group) in enumerate(zip((fresh, wrong), groups, strict=True))
        ]
        batch = jax.tree.map(lambda one, other: jnp.concatenate([one, other]), *rows)
        inner, metrics = learner.update(state.inner, update_key, batch)
        turns = jnp.maximum(jnp.sum(acting_turns(episode)), 1)
        shares = {"good_steps": jnp.sum(good) / turns, "blamed_steps": jnp.sum(blamed) / turns}
        shares = shares if axis_name is None else jax.lax.pmean(shares, axis_name)
        return StepsState(inner=inner), dict(metrics) | shares

    return wrap(learner, init, update)


def judge_steps(episode: Episode, part: str) -> tuple[Array, Array]:
    """Finds the good steps, and the step to blame in every failed episode.

    Args:
        episode: B episodes of T turns, with one seat.
        part: name of an entry of `extras`, float32 `[B, T]`, with the number of right steps so far.

    Returns:
        Two masks, bool `[B, T]`.

    Raises:
        ValueError: there is no such entry; the message lists the existing ones.
    """
    if part not in episode.extras:
        there = ", ".join(sorted(episode.extras)) or "none"
        raise ValueError(f"`part` must be an entry of `episode.extras`, got {part!r}; there is {there}.")
    acting = acting_turns(episode) & kept_rows(episode)[:, None]
    count = episode.extras[part]
    right = count - jnp.pad(count[:, :-1], ((0, 0), (1, 0))) > 0.5
    wrong = acting & ~right & (episode_return(episode) <= 0.0)[:, None]
    before = jnp.cumsum(wrong, axis=1) == 0
    return acting & before, wrong & (jnp.cumsum(wrong, axis=1) == 1)


def likeness(episode: Episode, other: Episode) -> Array:
    """Computes how similar actions are: 0 if the first token differs, else 1 plus the share of equal tokens.

    Args:
        episode: B episodes of T turns.
        other: episodes with the same observations.

    Returns:
        float32 `[B, T]`. The share is over the tokens after the first one of the longer action, compared by position.
    """
    begin = episode.layout.observation
    one, two = (leaf.tokens[:, :, begin:] for leaf in (episode, other))
    there, also = (leaf.action_mask[:, :, begin:] for leaf in (episode, other))
    same = (one == two) & there & also
    longest = jnp.sum((there | also)[:, :, 1:], axis=2)
    share = jnp.sum(same[:, :, 1:], axis=2) / jnp.maximum(longest, 1)
    return jnp.where(same[:, :, 0], 1.0 + share, 0.0)


def _rows_with(key: Array, episode: Episode, marked: Array, size: int) -> Episode:
    """Draws episodes with a marked turn, in which only these turns count; the rows are empty if there is none."""
    there = jnp.any(marked, axis=1)
    rows = draw_rows(key, there, size)
    drawn, marked = jax.tree.map(lambda leaf: leaf[rows], (episode, marked & there[:, None]))
    sampled = drawn.action_mask & marked[:, :, None]
    return drawn.replace(action_mask=sampled, keep=jnp.any(marked, axis=1))


def make_agent(
    environment: Environment,
    *,
    utterances: Callable[[LanguagePolicy], Utter],
    part: str,
    num_positives: int,
    num_negatives: int,
    num_samples: int = 8,
    axis_name: str | None = None,
    **options: Any,
) -> Agent:
    """Assembles an agent of judged steps for a text world with one seat whose observations are complete.

    Args:
        environment: a text world with one seat.
        utterances: see `language.utterances.make_utterances`.
        part: see `with_judged_steps`, also for the following arguments.
        num_positives: see there.
        num_negatives: see there.
        num_samples: see there.
        axis_name: see there.
        **options: further arguments of `learners.policy_gradient.make_agent`.
    """
    agent = policy_gradient.make_agent(environment, axis_name=axis_name, **options)
    utter = utterances(agent.policy)

    def change(learner: Learner, collector: Collector, num_updates: int) -> Learner:
        del collector, num_updates
        return with_judged_steps(
            learner,
            utter,
            part=part,
            num_positives=num_positives,
            num_negatives=num_negatives,
            num_samples=num_samples,
            axis_name=axis_name,
        )

    return wrapper_agent(agent, change)
