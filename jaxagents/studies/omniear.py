"""OmniEAR (Wang et al., 2025): success by kind of task, from explicit commands to needs that must be noticed."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxagents.language.collect import make_dialogue_evaluator
from jaxagents.types import Array, Environment, LanguagePolicy, Params

KINDS = ("direct", "attributes", "tool", "compound", "told", "implied", "compound_pair")
"""Levels of the world: the first four are for one, the last three for two; only `told` names both."""
NUM_SINGLE = 4


def run(
    seed: int, *, environment: Environment, policy: LanguagePolicy, params: Params, num_tasks: int = 128
) -> dict[str, float]:
    """Plays held-out tasks of every kind, with the kinds in parallel.

    Args:
        seed: seed of the tasks and of sampling.
        environment: `text.carrying` with two seats, or another world whose levels are these kinds.
        policy: policy that acts in all seats.
        params: trained parameters.
        num_tasks: number of tasks of each kind.

    Returns:
        See `by_kind`.

    Raises:
        ValueError: the world has other levels.

    References:
        Wang et al. (2025), OmniEAR: Benchmarking Agent Reasoning in Embodied Tasks, section 3.
    """
    got = 0 if environment.text is None else environment.text.num_levels
    if got != len(KINDS):
        raise ValueError(
            f"`environment` must have the {len(KINDS)} kinds of tasks as levels, got {got} in {environment.name!r}; "
            "try world=carrying with environment.num_seats=2."
        )
    levels, number = list(range(len(KINDS))), num_tasks * len(KINDS)
    play = make_dialogue_evaluator(environment, policy, num_episodes=number, greedy=False, level=levels)
    results = jax.jit(play)(params, jax.random.key(seed))
    return {name: float(value) for name, value in by_kind(results["success"]).items()}


def by_kind(success: Array) -> Mapping[str, Array]:
    """Computes the success rate of each kind, for episodes that cycle through the kinds.

    Args:
        success: `[7 n]`.

    Returns:
        `success` over all, `success_<kind>`, `success_single` over the kinds for one agent, `gap_pair`, by how much two
        agents without the instruction to lift together do worse than one, and `gap_implied`, by how much they do worse
        than with it.
    """
    rates = jnp.mean(success.reshape(-1, len(KINDS)), axis=0)
    of_kinds = dict(zip(KINDS, rates, strict=True))
    single, implied = jnp.mean(rates[:NUM_SINGLE]), jnp.mean(rates[np.array([5, 6])])
    return {
        "success": jnp.mean(rates),
        **{f"success_{name}": rate for name, rate in of_kinds.items()},
        "success_single": single,
        "gap_pair": single - implied,
        "gap_implied": of_kinds["told"] - implied,
    }
