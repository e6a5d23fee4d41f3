"""Ways of acting with what is learned already: a trained policy is evaluated, and nothing is trained."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from jaxagents.types import Array, Environment, LanguagePolicy, Params


def run(
    seed: int,
    *,
    environment: Environment,
    policy: LanguagePolicy,
    params: Params,
    evaluator: Callable[..., Callable[[Params, Array], Mapping[str, Array]]],
    num_episodes: int = 4096,
) -> dict[str, float]:
    """Evaluates a trained policy on tasks of the seed's own.

    Args:
        seed: of the tasks and of what is sampled.
        environment: that it was trained in.
        policy: acts.
        params: what was learned.
        evaluator: `(environment, policy, *, num_episodes, greedy) -> ((params, key) -> results)`, as of
            `configs/evaluation`.
        num_episodes: tasks.

    Returns:
        The mean of every result.
    """
    evaluate = jax.jit(evaluator(environment, policy, num_episodes=num_episodes, greedy=False))
    return {name: float(jnp.mean(value)) for name, value in evaluate(params, jax.random.key(seed)).items()}
