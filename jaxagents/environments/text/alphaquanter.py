"""AlphaQuanter (Deng and Wang, 2025): rewards for decisions at a market, and for the tools asked before them."""

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from jaxagents.environments.text.market import ORDERS, SOURCES, TRADE
from jaxagents.environments.text.world import Status, World
from jaxagents.environments.text.wrapping import with_inner_state
from jaxagents.environments.timesteps import select
from jaxagents.types import Array, State, Task

_REWARDS = ((1.0, 0.0, -1.0), (-0.25, 0.5, -0.25), (-1.0, 0.0, 1.0))  # Sell, hold and buy if y falls, stays, rises.


def with_decision_rewards(
    world: World,
    *,
    horizons: Sequence[int] = (1,),
    threshold: float = 0.5,
    form: float = 0.1,
    tools: float = 0.1,
    useful: int = 3,
    repeat: float = 0.05,
) -> World:
    """Makes rewards for decisions the progress of a market; `reward=dense` pays its increase.

    A decision on day t earns an entry of a table according to y = sum_h w_h (P_{t+h} - P_t), w_h proportional to exp(-h
    / 5): it falls (y < -threshold), stays, or rises. The decision also earns `form`, and `tools min(distinct, useful) /
    useful` for the distinct tools that were asked before it on that day, and loses `repeat` for each that was asked
    again.

    Args:
        world: `market`; skins and other wrappers go around this one.
        horizons: horizons h, in days; after the last day, prices are constant.
        threshold: threshold of y, in units of a move.
        form: reward for any decision.
        tools: weight of the reward for tools.
        useful: number of different tools that earns the full reward.
        repeat: penalty for asking the same tool again.

    Returns:
        The rules; the part `decision` is the mean over the days so far.

    Raises:
        ValueError: the world is another one, or there is no horizon.

    References:
        Deng and Wang (2025), "AlphaQuanter: An End-to-End Tool-Orchestrated Agentic Reinforcement Learning Framework
        for Stock Trading", section 3.
    """
    if world.name != "market":
        raise ValueError(f"`world` must be market, got {world.name!r}.")
    if not horizons or min(horizons) < 1 or useful < 1:
        raise ValueError(f"`horizons` and `useful` must be at least 1, got {tuple(horizons)} and {useful}.")
    weights = np.exp(-np.asarray(horizons) / 5.0)
    weights = weights / weights.sum()
    outer = with_inner_state(world)
    nothing = {"asked": jnp.zeros(len(SOURCES), bool), "repeats": jnp.zeros(())}

    def outcome(task: Task, day: Array, order: Array) -> Array:
        later = jnp.arange(task["moves"].shape[0]) - day
        moves = [jnp.sum(jnp.where((later >= 0) & (later < h), task["moves"] - 1, 0)) for h in horizons]
        value = sum(weight * move for weight, move in zip(weights, moves, strict=True))
        return jnp.asarray(_REWARDS)[1 + (value > threshold) - (value < -threshold), order]

    def play(key: Array, state: State, verb: Array, args: Array) -> State:
        inner, order = state["inner"], jnp.clip(args[0, 0], 0, len(ORDERS) - 1)
        following = outer.play(key, state, verb, args)
        here = order == jnp.arange(len(SOURCES))
        looks = {"asked": state["asked"] | here, "repeats": state["repeats"] + jnp.any(state["asked"] & here)}
        share = jnp.minimum(jnp.sum(state["asked"]), useful) / useful
        earned = outcome(inner.task, inner.day, order) + form + tools * share - repeat * state["repeats"]
        trades = verb == TRADE
        return {
            **following,
            **select(trades, nothing, looks),
            "earned": state["earned"] + jnp.where(trades, earned, 0.0),
        }

    def start(key: Array, task: Task) -> State:
        return {"inner": world.start(key, task), **nothing, "earned": jnp.zeros(())}

    def status(state: State) -> Status:
        judged = world.status(state["inner"])
        mean = state["earned"] / jnp.maximum(state["inner"].day, 1)
        parts = {**judged.parts, "decision": mean}
        return judged.replace(progress=state["earned"] / state["inner"].task["moves"].shape[0], parts=parts)

    return replace(outer, start=start, play=play, status=status)
