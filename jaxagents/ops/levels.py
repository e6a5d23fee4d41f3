"""Levels to play again: scores of the episodes on them, and an archive that draws by rank and staleness."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.types import Array, PyTree


@struct.dataclass
class LevelArchive:
    """Levels with statistics of the episodes on them.

    Attributes:
        levels: leaves `[C, ...]`.
        score: float32 `[C]`; -inf for empty places.
        max_return: float32 `[C]`, the greatest undiscounted return on each level.
        played: int32 `[C]`, the value of `count` when the level was last drawn.
        count: int32, number of levels drawn, added or rejected so far.
    """

    levels: PyTree
    score: Array
    max_return: Array
    played: Array
    count: Array


@struct.dataclass
class LevelView:
    """The inputs of scores: T steps on B levels, in complete and truncated episodes.

    Attributes:
        ended: bool `[T, B]`, whether the episode is over.
        advantage: float32 `[T, B]`.
        value: float32 `[T, B]`.
        success: float32 `[T, B]`, whether the episode that ended was won; zeros if the world does not report it.
        max_return: float32 `[B]`, the greatest return on the level so far.
    """

    ended: Array
    advantage: Array
    value: Array
    success: Array
    max_return: Array


Score = Callable[[LevelView], Array]
"""`(view) -> float32 [B]`; more is played more; -inf where no episode ended."""


def init_archive(example: PyTree, capacity: int) -> LevelArchive:
    """Makes an empty archive.

    Args:
        example: one level, or the shapes of one.
        capacity: C, number of places.
    """
    return LevelArchive(
        levels=jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), example),
        score=jnp.full(capacity, -jnp.inf),
        max_return=jnp.full(capacity, -jnp.inf),
        played=jnp.zeros(capacity, jnp.int32),
        count=jnp.zeros((), jnp.int32),
    )


def level_weights(archive: LevelArchive, *, temperature: float, staleness: float) -> Array:
    """Computes `(1 - staleness) rank^(-1 / temperature) / sum + staleness age / sum`, zero for empty places.

    Args:
        archive: archive of C places.
        temperature: beta; as it approaches 0, only the best score counts. Paper: 0.1 to 0.3.
        staleness: rho, in [0, 1]. Paper: 0.1 to 0.5.

    Returns:
        float32 `[C]`, with sum 1 if there are levels.

    References:
        Jiang, Grefenstette and Rocktäschel (2021), Prioritized level replay, equations 2 to 4.
    """
    filled = archive.score > -jnp.inf
    rank = 1 + jnp.argsort(jnp.argsort(-archive.score, stable=True))
    by_score = jnp.where(filled, rank ** (-1.0 / temperature), 0.0)
    age = jnp.where(filled, archive.count - archive.played, 0).astype(jnp.float32)
    total = jnp.sum(age)
    by_age = jnp.where(total > 0.0, age / jnp.maximum(total, 1.0), filled / jnp.maximum(jnp.sum(filled), 1))
    return (1.0 - staleness) * by_score / jnp.maximum(jnp.sum(by_score), 1e-9) + staleness * by_age


def draw_levels(
    archive: LevelArchive, key: Array, count: int, *, temperature: float, staleness: float
) -> tuple[LevelArchive, Array]:
    """Draws levels by their weights, one after the other, so that a drawn level is no longer stale.

    Args:
        archive: archive with at least one level.
        key: PRNG key.
        count: B, number of levels.
        temperature: see `level_weights`.
        staleness: see `level_weights`.

    Returns:
        The archive, and places int32 `[B]`.
    """

    def draw(archive: LevelArchive, key: Array) -> tuple[LevelArchive, Array]:
        weights = level_weights(archive, temperature=temperature, staleness=staleness)
        place = jax.random.choice(key, weights.size, p=weights).astype(jnp.int32)
        after = archive.count + 1
        return archive.replace(played=archive.played.at[place].set(after), count=after), place

    return jax.lax.scan(draw, archive, jax.random.split(key, count))


def add_levels(
    archive: LevelArchive,
    levels: PyTree,
    score: Array,
    max_return: Array,
    *,
    temperature: float,
    staleness: float,
    duplicate_check: bool = False,
) -> LevelArchive:
    """Adds levels one after the other: in a free place, or in that of the least weight if its score is lower.

    Rejected levels count, too: each makes the levels of the archive one step older.

    Args:
        archive: archive of C places.
        levels: leaves `[B, ...]`.
        score: float32 `[B]`; levels with scores that are not finite are left out.
        max_return: float32 `[B]`.
        temperature: see `level_weights`.
        staleness: see `level_weights`.
        duplicate_check: whether a level that is already in the archive only gets the new score in its old place, and
            counts as just played.

    Returns:
        The archive.

    References:
        Jiang et al. (2021), Replay-guided adversarial environment design, algorithm 1 (PLR); JaxUED, level_sampler.py
        (`insert`, `episode_count`).
    """

    def add(archive: LevelArchive, new: tuple[PyTree, Array, Array]) -> tuple[LevelArchive, None]:
        level, own, most = new
        weights = level_weights(archive, temperature=temperature, staleness=staleness)
        free = archive.score == -jnp.inf
        place = jnp.where(jnp.any(free), jnp.argmax(free), jnp.argmin(weights))
        taken = own > archive.score[place]
        if duplicate_check:
            known = _same_levels(archive.levels, level) & ~free
            found = jnp.any(known)
            place, taken = jnp.where(found, jnp.argmax(known), place), found | taken
            most = jnp.where(found, jnp.maximum(most, archive.max_return[place]), most)
        taken &= jnp.isfinite(own)
        after = archive.count + 1
        added = archive.replace(
            levels=jax.tree.map(lambda leaf, one: leaf.at[place].set(one), archive.levels, level),
            score=archive.score.at[place].set(own),
            max_return=archive.max_return.at[place].set(most),
            played=archive.played.at[place].set(after),
        )
        kept = jax.tree.map(lambda new, old: jnp.where(taken, new, old), added, archive)
        return kept.replace(count=after), None

    return jax.lax.scan(add, archive, (levels, score, max_return))[0]


def _same_levels(levels: PyTree, level: PyTree) -> Array:
    """Returns which of the levels `[C, ...]` equal this one, bool `[C]`."""

    def same(many: Array, one: Array) -> Array:
        return jnp.all((many == one[None]).reshape(many.shape[0], -1), axis=1)

    return jnp.all(jnp.stack(jax.tree.leaves(jax.tree.map(same, levels, level))), axis=0)


def update_levels(archive: LevelArchive, place: Array, score: Array, max_return: Array) -> LevelArchive:
    """Updates scores and greatest returns of levels in the archive; a score that is not finite leaves the old one.

    Args:
        archive: archive of C places.
        place: int32 `[B]`; if a place occurs twice, its last score counts.
        score: float32 `[B]`.
        max_return: float32 `[B]`.
    """

    def change(archive: LevelArchive, seen: tuple[Array, Array, Array]) -> tuple[LevelArchive, None]:
        at, own, most = seen
        score = archive.score.at[at].set(jnp.where(jnp.isfinite(own), own, archive.score[at]))
        return archive.replace(score=score, max_return=archive.max_return.at[at].max(most)), None

    return jax.lax.scan(change, archive, (place, score, max_return))[0]


def mean_of_episodes(ended: Array, values: Array) -> Array:
    """Computes the mean, over the episodes that ended, of their means over time; -inf if none ended.

    Args:
        ended: bool `[T, B]`.
        values: float32 `[T, B]`.

    Returns:
        float32 `[B]`.
    """

    def step(
        carry: tuple[Array, Array, Array, Array], inputs: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array, Array, Array], None]:
        total, length, outcome, count = carry
        end, value = inputs
        total, length = total + value, length + 1.0
        outcome, count = outcome + jnp.where(end, total / length, 0.0), count + end
        return (jnp.where(end, 0.0, total), jnp.where(end, 0.0, length), outcome, count), None

    nothing = jnp.zeros(values.shape[1])
    (_, _, outcome, count), _ = jax.lax.scan(step, (nothing,) * 4, (ended, values))
    return jnp.where(count > 0, outcome / jnp.maximum(count, 1.0), -jnp.inf)


def positive_value_loss(view: LevelView) -> Array:
    """Computes the mean over episodes of `mean_t max(advantage_t, 0)`.

    References:
        Jiang et al. (2021), Replay-guided adversarial environment design, section 4.
    """
    return mean_of_episodes(view.ended, jnp.maximum(view.advantage, 0.0))


def max_monte_carlo(view: LevelView) -> Array:
    """Computes the mean over episodes of `mean_t (max_return - value_t)`.

    References:
        Jiang et al. (2021), Replay-guided adversarial environment design, section 4 (MaxMC).
    """
    return mean_of_episodes(view.ended, view.max_return[None] - view.value)


def learnability(view: LevelView) -> Array:
    """Computes the `success_variance` of the episodes."""
    return success_variance(view.ended, view.success)


def success_variance(ended: Array, success: Array) -> Array:
    """Computes `p (1 - p)` for the share p of won episodes, -inf if none ended.

    Args:
        ended: bool `[T, B]`.
        success: float32 `[T, B]`.

    Returns:
        float32 `[B]`.

    References:
        Rutherford et al. (2024), No regrets: investigating and improving regret approximations for curriculum
        discovery, equation 2 (sampling for learnability).
    """
    count = jnp.sum(ended, axis=0)
    share = jnp.sum(ended * success, axis=0) / jnp.maximum(count, 1)
    return jnp.where(count > 0, share * (1.0 - share), -jnp.inf)


def worth_training(
    agent: Array, control: Array, *, solved: float | Array, gain: float | Array, control_solved: float | Array
) -> Array:
    """Returns the levels on which an agent does not always win, but does better than a weak player, who rarely wins.

    With independent episodes that are won or lost, the three conditions on returns `Pr[R_agent > m] < solved`,
    `Pr[R_agent > R_control] > gain` and `Pr[R_control > m] < control_solved` become `p < solved`, `p (1 - q) > gain`
    and `q < control_solved` for the shares p and q of won episodes.

    Args:
        agent: float32 `[B]`, p; NaN if no episode ended, in which case the level is not chosen.
        control: float32 `[B]`, q of the weak player; NaN as above.
        solved: share of won episodes from which a level counts as solved.
        gain: least probability with which the agent must do better.
        control_solved: share of won episodes from which a level counts as winnable without skill.

    Returns:
        bool `[B]`.

    References:
        Open-Ended Learning Team (2021), Open-ended learning leads to generally capable agents, section 5.2.
    """
    return (agent < solved) & (agent * (1.0 - control) > gain) & (control < control_solved)
