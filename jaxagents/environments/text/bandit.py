"""A bandit whose arms have names: the value of a name has to be learned, or found out by pulling."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments.text.builder import make_text_world
from jaxagents.environments.text.grammar import make_grammar
from jaxagents.environments.text.splits import draw_distinct
from jaxagents.environments.text.texts import Text, pick, refusal, text, when
from jaxagents.environments.text.words import DIGITS
from jaxagents.environments.text.world import Status, World
from jaxagents.ops.checks import check_counts
from jaxagents.types import Array, Environment, Task

NAMES = (
    *("phoenix", "dragon", "griffin", "unicorn", "hydra", "sphinx", "kraken", "pegasus"),
    *("basilisk", "chimera", "centaur", "cyclops", "minotaur", "cerberus", "golem", "yeti"),
)
MEANS = np.linspace(0.1, 0.9, len(NAMES))
"""Expected payoff before rounding, by rank; the worst comes first."""
POINTS = 10
"""Payoffs are whole points from 0 to this; as rewards they are divided by it."""


@struct.dataclass
class BanditState:
    """State of the pulls.

    Attributes:
        task: the task of the episode.
        arm: int32, index in `NAMES` of the arm that was pulled last; -1 before the first pull.
        points: int32, points of the last pull.
        total: int32, points of all pulls.
        pulled: bool, whether the last turn was a pull.
        turn: int32, number of turns taken, including those without a pull.
    """

    task: Task
    arm: Array
    points: Array
    total: Array
    pulled: Array
    turn: Array


def make_environment(
    num_arms: Sequence[int] = (2, 2, 4),
    min_gaps: Sequence[float] = (0.3, 0.0, 0.0),
    *,
    num_pulls: int = 1,
    distribution: str = "gaussian",
    noise: float = 0.2,
    informative_names: bool = True,
    names_seed: int = 0,
    reward: str = "dense",
    held_out_fraction: float = 0.25,
    **options: Any,
) -> Environment:
    """Makes a bandit with named arms.

    Sixteen names have qualities, mean payoffs from 0.1 to 0.9, that never change and are never shown. A task shows some
    of the names in some order; the action is one of them. Held-out tasks are ordered lists of names that training never
    shows, so they are solved by a policy that has learned the qualities of single names from other lists. With
    `informative_names=False`, every task assigns the qualities anew, and with several pulls the best arm can only be
    found by trying: this is the task for memory.

    The observation is `arms <names> .`, then the result of the last pull: `<name> pays <digits> .`, or "nothing happens
    ." if the action was not one of the names. Such a turn counts as a pull. `info["success"]` is set in the last turn
    of an episode if it pulled the best arm. `action_mask` allows the arms of the task.

    The task is `{"names", "ranks": int32 [N] with -1 for no arm, "level": int32}`; rank 0 is the worst.

    Args:
        num_arms: number of arms, one per level, from 2 to 16.
        min_gaps: minimum difference of the means of the best and the second arm, one per level.
        num_pulls: number of turns of an episode.
        distribution: "gaussian" pays the mean plus noise, rounded to points and clipped to 0 .. 10 points; "bernoulli"
            pays 10 points with the probability of the mean, else none: a risky arm.
        noise: standard deviation of the Gaussian noise.
        informative_names: whether a name has the same quality in all tasks.
        names_seed: seed that assigns qualities to names.
        reward: "dense" is the payoff of every pull, in units of 10 points; "sparse" is 1 with success and else 0.
        held_out_fraction: fraction of the tasks that are held out.
        **options: further arguments of `make_text_world`.

    Returns:
        The environment.

    Raises:
        ValueError: no names fit the numbers of arms or gaps, there is no pull, the noise is negative, or the
            distribution or reward is unknown.

    References:
        Wang et al. (2025), RAGEN, section 3.1, where two names stand for a safe and a risky arm.
    """
    num_arms, min_gaps = tuple(num_arms), tuple(min_gaps)
    _check(num_arms, min_gaps, num_pulls, distribution, noise)
    grammar = make_grammar("{name}", words=(*NAMES, *DIGITS, "arms", "pays", "."), name=NAMES)

    def start(key: Array, task: Task) -> BanditState:
        del key
        zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        return BanditState(task=task, arm=zero - 1, points=zero, total=zero, pulled=no, turn=zero)

    def draw_points(key: Array, mean: Array) -> Array:
        if distribution == "bernoulli":
            return jnp.where(jax.random.uniform(key) < mean, POINTS, 0)
        return jnp.clip(jnp.round(POINTS * (mean + noise * jax.random.normal(key))), 0, POINTS).astype(jnp.int32)

    def play(key: Array, state: BanditState, verb: Array, args: Array) -> BanditState:
        state = state.replace(arm=args[0, 0], pulled=jnp.ones((), bool), turn=state.turn + 1)
        points = draw_points(key, jnp.asarray(MEANS, jnp.float32)[rank_of(state)])
        return state.replace(points=points, total=state.total + points)

    def status(state: BanditState) -> Status:
        over = state.turn >= num_pulls
        best = state.pulled & (rank_of(state) == jnp.max(state.task["ranks"]))
        return Status(success=over & best, over=over, progress=state.total / POINTS)

    world = World(
        name="bandit",
        grammar=grammar,
        max_steps=num_pulls,
        num_levels=len(num_arms),
        sample=_make_sample(num_arms, min_gaps, names_seed if informative_names else None),
        # As long as the list of arms of the hardest level; other lists have the same form.
        identity=lambda task: (task["names"], task["ranks"]),
        start=start,
        situation=lambda state: (state.arm, state.points),
        allowed=lambda state: jnp.any(jnp.arange(len(NAMES))[:, None] == state.task["names"][None, :], axis=1),
        play=play,
        skip=lambda state: state.replace(pulled=jnp.zeros((), bool), turn=state.turn + 1),
        status=status,
        tell=tell,
        prompt=lambda task: text("pull the arm that pays most", "."),
        expert=lambda key, state: (
            jnp.int32(0),
            grammar.args(state.task["names"][jnp.argmax(state.task["ranks"])]),
            None,
        ),
        render=render,
    )
    return make_text_world(world, reward=reward, held_out_fraction=held_out_fraction, **options)


def rank_of(state: BanditState) -> Array:
    """Returns the rank of the arm that was pulled last, int32 `[]`; 0 before the first pull."""
    return jnp.max(jnp.where(state.task["names"] == state.arm, state.task["ranks"], 0))


def tell(state: BanditState, seat: Array) -> Text:
    """Describes the arms, and the result of the last turn."""
    points = pick([tuple(str(number)) for number in range(POINTS + 1)], state.points)
    outcome = text(pick(NAMES, state.arm), "pays", points, ".")
    return text("arms", pick(NAMES, state.task["names"]), ".", when(state.pulled, outcome, refusal()))


def _check(
    num_arms: Sequence[int],
    min_gaps: Sequence[float],
    num_pulls: int,
    distribution: str,
    noise: float,
) -> None:
    if not num_arms or min(num_arms) < 2 or max(num_arms) > len(NAMES):
        raise ValueError(f"`num_arms` must be from 2 to {len(NAMES)}, got {num_arms}; try (2,).")
    if len(min_gaps) != len(num_arms):
        raise ValueError(f"`min_gaps` must be one per number of arms, got {min_gaps} for {num_arms}.")
    for arms, gap in zip(num_arms, min_gaps):
        if gap < 0.0 or not best_weights(arms, gap).any():
            raise ValueError(f"`min_gaps` must leave room for {arms} arms of means from 0.1 to 0.9, got {gap}; try 0.")
    check_counts(num_pulls=num_pulls)
    if distribution not in ("gaussian", "bernoulli"):
        raise ValueError(f'`distribution` must be "gaussian" or "bernoulli", got {distribution!r}.')
    if noise < 0.0:
        raise ValueError(f"`noise` must be at least 0, got {noise}; try 0.2.")


def _rank_gap(gap: float) -> int:
    return max(1, math.ceil(gap / (MEANS[1] - MEANS[0]) - 1e-9))


def best_weights(num_arms: int, gap: float) -> np.ndarray:
    """Counts the sets of arms in which each rank is the best by at least the gap; float `[16]`, on the host."""
    room = np.arange(len(NAMES)) - _rank_gap(gap) + 1
    return np.asarray([float(math.comb(max(below, 0), num_arms - 1)) for below in room.tolist()])


def _make_sample(
    num_arms: Sequence[int], min_gaps: Sequence[float], names_seed: int | None
) -> Callable[[Array, Array], Task]:
    """Makes `(key, level) -> task`: all sets of arms with the gap are equally likely, in all orders."""
    width = max(num_arms)
    weights = np.stack([best_weights(arms, gap) for arms, gap in zip(num_arms, min_gaps)])
    gaps = np.asarray([_rank_gap(gap) for gap in min_gaps], np.int32)
    names_by_rank = None if names_seed is None else np.random.default_rng(names_seed).permutation(len(NAMES))

    def sample(key: Array, level: Array) -> Task:
        best_key, others_key, order_key, names_key = jax.random.split(key, 4)
        best = jax.random.categorical(best_key, jnp.log(jnp.asarray(weights, jnp.float32))[level])
        allowed = np.arange(len(NAMES)) <= best - jnp.asarray(gaps)[level]
        ranks = jnp.concatenate([best[None], draw_distinct(others_key, allowed, width - 1)])
        exists = np.arange(width) < jnp.asarray(num_arms, jnp.int32)[level]
        ranks = jnp.where(exists, ranks[draw_distinct(order_key, exists, width)], -1).astype(jnp.int32)
        if names_by_rank is None:
            names = draw_distinct(names_key, jnp.ones(len(NAMES), bool), width)
        else:
            names = jnp.asarray(names_by_rank)[ranks]
        return {"names": jnp.where(exists, names, -1).astype(jnp.int32), "ranks": ranks, "level": level}

    return sample


def render(state: BanditState) -> str:
    """Writes the arms with their mean payoffs, and marks the last pull.

    Args:
        state: state of one instance, on the host.

    Returns:
        One line per arm, `>` before the one that was pulled last.
    """
    arms = zip(np.asarray(state.task["names"]).tolist(), np.asarray(state.task["ranks"]).tolist())
    return "\n".join(
        f"{'>' if name == int(state.arm) else ' '} {NAMES[name]} {MEANS[rank]:.2f}" for name, rank in arms if name >= 0
    )
