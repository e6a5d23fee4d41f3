"""Cultural evolution in the donor game (Vallinder and Hughes, 2024), with strategies that are short programs.

A generation of agents plays the donor game; half of them survive, and newcomers write strategies modelled on those of
the survivors. Strategies are six numbers, and a base model is described by four: how generous and how strict it is
initially, how faithfully it copies what it reads, and how much it changes it.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxagents.environments import donor
from jaxagents.types import Array, Environment

TRACE_LENGTH = 3
TAKEOFF = 6.0  # Doublings of wealth; 12 rounds allow 12.
_INITIAL_SPREAD = 0.15
_LEAST_WEALTH = 0.01  # Punishment may leave nothing, which has no logarithm.


@struct.dataclass
class Strategy:
    """Behaviour of donors; all numbers are in [0, 1], leaves `[N]`.

    Attributes:
        initial: fraction given if nothing is known about the recipient.
        threshold: fraction below which a recipient's last donation counts as stingy.
        slope: additional fraction per unit that a recipient gave above the threshold.
        forgiveness: share of `initial` that stingy recipients still get.
        justified: from 0.5 on, agents who gave little to a stingy one do not count as stingy.
        punishment: if allowed, it is subtracted from `forgiveness`; a negative result punishes.
    """

    initial: Array
    threshold: Array
    slope: Array
    forgiveness: Array
    justified: Array
    punishment: Array


class BaseModel(NamedTuple):
    """The writer of strategies.

    Attributes:
        generosity: mean of `initial` in new strategies.
        strictness: least threshold of new strategies as a share of `initial`, and the amount subtracted from their
            greatest forgiveness.
        fidelity: probability that a number is copied from a survivor instead of written anew.
        mutation: standard deviation of the change of copied numbers.
    """

    generosity: Array
    strictness: Array
    fidelity: Array
    mutation: Array


def decide(strategy: Strategy, trace: Array, known: Array, punish: Array | bool = False) -> Array:
    """Computes the actions of donors.

    Let g1, g2, g3 be the trace and h the threshold. A giver i is in good standing if `g_i >= h`, or if the strategy
    accepts justification and its own recipient, giver i + 1, was not in good standing. The donor gives

    `initial` to unknown and justified recipients, `initial + slope (g1 - h)` to those with `g1 >= h`, and `forgiveness
    initial` to stingy ones; punishing donors give them `max(forgiveness - punishment, 0) initial`, and spend
    `max(punishment - forgiveness, 0)` to take from them.

    Args:
        strategy: leaves `[N]`.
        trace: `[N, 3]`, the recipient's last donation, the last donation of that donation's recipient, and so on.
        known: bool `[N, 3]`, which of these are known.
        punish: whether the game has punishment.

    Returns:
        `[N]`, fractions of the donors' wealth; negative ones punish.
    """
    good = jnp.ones(trace.shape[:-1], bool)
    takes_reasons = strategy.justified >= 0.5
    for i in reversed(range(TRACE_LENGTH)):
        excused = takes_reasons & known[..., i + 1] & ~good if i + 1 < TRACE_LENGTH else jnp.zeros_like(good)
        enough = trace[..., i] >= strategy.threshold
        good = ~known[..., i] | enough | excused
    above = strategy.slope * jnp.maximum(trace[..., 0] - strategy.threshold, 0.0)
    kind = strategy.initial + jnp.where(known[..., 0], above, 0.0)
    mercy = strategy.forgiveness - jnp.where(punish, strategy.punishment, 0.0)
    harsh = jnp.where(mercy >= 0.0, mercy * strategy.initial, mercy)
    return jnp.clip(jnp.where(good, kind, harsh), -1.0, 1.0)


def write_fresh(key: Array, num_agents: int, base: BaseModel) -> Strategy:
    """Draws strategies that are not based on others.

    `initial` is normal around the base model's generosity. Donors expect at most what they would give: the threshold is
    uniform in `[strictness, 1] initial`, forgiveness in `[0, 1 - strictness]`, everything else in [0, 1].

    Args:
        key: PRNG key.
        num_agents: N, number of agents.
        base: base model that writes.

    Returns:
        Leaves `[N]`.
    """
    draws = jax.random.uniform(key, (5, num_agents))
    normal = jax.random.normal(jax.random.fold_in(key, 1), (num_agents,))
    initial = jnp.clip(base.generosity + _INITIAL_SPREAD * normal, 0.0, 1.0)
    return Strategy(
        initial=initial,
        threshold=(base.strictness + (1.0 - base.strictness) * draws[0]) * initial,
        slope=draws[1],
        forgiveness=(1.0 - base.strictness) * draws[2],
        justified=draws[3],
        punishment=draws[4],
    )


def imitate(key: Array, survivors: Strategy, num_newcomers: int, base: BaseModel) -> Strategy:
    """Writes strategies modelled on those of survivors: every newcomer follows one of them, number by number.

    Args:
        key: PRNG key.
        survivors: leaves `[S]`.
        num_newcomers: M, number of newcomers.
        base: base model, with its fidelity, its mutation, and its distribution of new numbers.

    Returns:
        Leaves `[M]`.
    """
    parent_key, fresh_key, copy_key, noise_key = jax.random.split(key, 4)
    parents = jax.random.randint(parent_key, (num_newcomers,), 0, survivors.initial.shape[0])
    fresh = write_fresh(fresh_key, num_newcomers, base)
    names = list(Strategy.__dataclass_fields__)
    copied = jax.random.bernoulli(copy_key, base.fidelity, (len(names), num_newcomers))
    noise = base.mutation * jax.random.normal(noise_key, (len(names), num_newcomers))
    numbers = {
        name: jnp.where(
            copied[i], jnp.clip(getattr(survivors, name)[parents] + noise[i], 0.0, 1.0), getattr(fresh, name)
        )
        for i, name in enumerate(names)
    }
    return Strategy(**numbers)


def run(
    seed: int,
    *,
    generosity: float = 0.5,
    strictness: float = 0.0,
    fidelity: float = 0.8,
    mutation: float = 0.05,
    selection: bool = True,
    trace: bool = True,
    transmission: bool = True,
    punishment: bool = False,
    num_societies: int = 16,
    num_agents: int = 12,
    num_rounds: int = 12,
    num_generations: int = 10,
) -> dict[str, Any]:
    """Lets societies of one base model evolve.

    Args:
        seed: seed of everything random.
        generosity: see `BaseModel`.
        strictness: see `BaseModel`.
        fidelity: see `BaseModel`.
        mutation: see `BaseModel`.
        selection: whether the wealthier half survives, instead of a random half of the agents.
        trace: whether donors see what recipients gave.
        transmission: whether newcomers read the survivors' strategies.
        punishment: whether donors may punish.
        num_societies: number of independent societies.
        num_agents: number of agents in a generation, even.
        num_rounds: number of rounds in a game; every generation plays two games, with roles exchanged.
        num_generations: number of generations of a society.

    Returns:
        Over generations, as means over societies: `wealth` (mean final wealth of an agent), `doublings` (log2 of wealth
            divided by the initial wealth), `donation` (mean fraction), `punished` (share of acts that punish),
            `reciprocity` (regression slope of the donation on the recipient's last donation), `second_order` (for
            recipients who gave less than the mean: what they get if their own recipient had given less than the mean,
            minus what they get if it had given more), and `spread` (standard deviation of `doublings` over societies).
            Overall: `growth` of `doublings` from the first to the last generation, and `takeoff`, the share of
            societies with at least 6 doublings in the last one.

    Raises:
        ValueError: a probability is outside [0, 1], a count too small, or the number of agents odd.

    References:
        Vallinder and Hughes (2024), Cultural Evolution of Cooperation among LLM Agents.

    Deviation: strategies are programs of six numbers instead of texts, and ignore the recipient's wealth.
    Deviation: the paper runs one society per seed; means over 16 have narrower intervals, and a spread.
    """
    for name, share in (("generosity", generosity), ("strictness", strictness), ("fidelity", fidelity)):
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"`{name}` must be from 0 to 1, got {share}.")
    if mutation < 0.0:
        raise ValueError(f"`mutation` must be at least 0, got {mutation}; try 0.05.")
    for name, count in (("num_societies", num_societies), ("num_generations", num_generations)):
        if count < 2:
            raise ValueError(f"`{name}` must be at least 2, got {count}; try 10.")
    if num_agents < 4 or num_agents % 2:
        raise ValueError(f"`num_agents` must be even and at least 4, got {num_agents}; try 12.")
    histories = _evolve_all(
        seed,
        BaseModel(*(jnp.float32(number) for number in (generosity, strictness, fidelity, mutation))),
        {"selection": selection, "trace": trace, "transmission": transmission},
        punishment=punishment,
        num_societies=num_societies,
        num_agents=num_agents,
        num_rounds=num_rounds,
        num_generations=num_generations,
    )
    return _summarize({name: np.asarray(values, np.float64) for name, values in histories.items()})


@partial(jax.jit, static_argnames=("punishment", "num_societies", "num_agents", "num_rounds", "num_generations"))
def _evolve_all(
    seed: Array,
    base: BaseModel,
    switches: dict[str, Array],
    *,
    punishment: bool,
    num_societies: int,
    num_agents: int,
    num_rounds: int,
    num_generations: int,
) -> dict[str, Array]:
    environment = donor.make_environment(
        num_agents, num_rounds=num_rounds, trace_length=TRACE_LENGTH, punishment=punishment
    )
    keys = jax.random.split(jax.random.key(seed), num_societies)
    evolve = partial(_evolve, environment, base, switches, punishment, num_generations)
    return jax.vmap(evolve)(keys)


def _evolve(
    environment: Environment,
    base: BaseModel,
    switches: dict[str, Array],
    punishment: bool,
    num_generations: int,
    key: Array,
) -> dict[str, Array]:
    """Returns the results of every generation of one society, `[num_generations]`."""
    num_agents = environment.num_agents
    num_newcomers = num_agents // 2

    def generation(strategy: Strategy, key: Array) -> tuple[Strategy, dict[str, Array]]:
        play_key, survive_key, write_key = jax.random.split(key, 3)
        order = environment.sample_task(play_key)["order"]
        play = partial(_play, environment, strategy, switches["trace"], punishment, order)
        wealth, acts = jax.vmap(play)(jnp.array([False, True]))
        score = jnp.mean(wealth, axis=0)
        luck = jax.random.uniform(survive_key, score.shape)
        ranks = jnp.argsort(-jnp.where(switches["selection"], score, luck))[: num_agents - num_newcomers]
        survivors = jax.tree.map(lambda numbers: numbers[ranks], strategy)
        read = imitate(write_key, survivors, num_newcomers, base)
        fresh = write_fresh(write_key, num_newcomers, base)
        newcomers = jax.tree.map(lambda a, b: jnp.where(switches["transmission"], a, b), read, fresh)
        following = jax.tree.map(lambda old, new: jnp.concatenate([old, new]), survivors, newcomers)
        return following, {"wealth": jnp.mean(score), **_describe(acts)}

    init_key, run_key = jax.random.split(key)
    start = write_fresh(init_key, num_agents, base)
    return jax.lax.scan(generation, start, jax.random.split(run_key, num_generations))[1]


def _play(
    environment: Environment, strategy: Strategy, trace: Array, punishment: bool, order: Array, swapped: Array
) -> tuple[Array, dict[str, Array]]:
    """Returns final wealth `[N]`, and what donors saw and did, `[R, N]`, with `donor` False for other agents."""
    key = jax.random.key(0)  # Nothing in the game is random.
    state, timestep = environment.reset(key, {"order": order, "swapped": swapped})

    def step(loop, _):
        state, timestep = loop
        seen, known = timestep.observation["trace"], timestep.observation["known"] > 0.0
        action = decide(strategy, seen, known & trace, punishment)
        acted = {"donor": timestep.observation["donor"] > 0.0, "action": action, "trace": seen, "known": known}
        return environment.step(key, state, action), acted

    (_, timestep), acts = jax.lax.scan(step, (state, timestep), None, length=environment.max_steps)
    return timestep.observation["wealth"], acts


def _describe(acts: dict[str, Array]) -> dict[str, Array]:
    """Computes the mean donation and its dependence on other quantities; NaN if there are no data."""
    gave, before = jnp.maximum(acts["action"], 0.0), jnp.maximum(acts["trace"], 0.0)
    donor_mask, known = acts["donor"], acts["known"]
    donation = _mean(gave, donor_mask)
    seen = donor_mask & known[..., 0]
    deviation = before[..., 0] - _mean(before[..., 0], seen)
    variance = _mean(jnp.square(deviation), seen)
    slope = _mean(deviation * (gave - _mean(gave, seen)), seen) / jnp.where(variance > 1e-6, variance, jnp.nan)
    little = donor_mask & known[..., 1] & (before[..., 0] < donation)
    to_stingy = before[..., 1] < donation
    second_order = _mean(gave, little & to_stingy) - _mean(gave, little & ~to_stingy)
    punished = _mean((acts["action"] < 0.0).astype(jnp.float32), donor_mask)
    return {"donation": donation, "reciprocity": slope, "second_order": second_order, "punished": punished}


def _mean(values: Array, mask: Array) -> Array:
    count = jnp.sum(mask)
    return jnp.where(count > 0, jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(count, 1), jnp.nan)


def _summarize(histories: dict[str, np.ndarray]) -> dict[str, Any]:
    """Reduces `[societies, generations]` to means over the societies in which the number is defined."""
    doublings = np.log2(np.maximum(histories["wealth"], _LEAST_WEALTH) / donor.START_WEALTH)
    curves = {"doublings": doublings, **histories}
    results: dict[str, Any] = {}
    for name, values in curves.items():
        counts = np.isfinite(values).sum(axis=0)
        results[name] = np.where(counts > 0, np.nansum(values, axis=0) / np.maximum(counts, 1), np.nan).tolist()
    results["spread"] = doublings.std(axis=0, ddof=1).tolist()
    results["growth"] = float((doublings[:, -1] - doublings[:, 0]).mean())
    results["takeoff"] = float((doublings[:, -1] >= TAKEOFF).mean())
    return results
