"""Ways of acting with a trained policy, which is evaluated without further training."""

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
    """Evaluates a trained policy on tasks that the seed determines.

    Args:
        seed: seed of the tasks and of sampling.
        environment: environment in which it was trained.
        policy: policy that acts.
        params: trained parameters.
        evaluator: `(environment, policy, *, num_episodes, greedy) -> ((params, key) -> results)`, as in
            `configs/evaluation`.
        num_episodes: number of tasks.

    Returns:
        The mean of every result.
    """
    evaluate = jax.jit(evaluator(environment, policy, num_episodes=num_episodes, greedy=False))
    return {name: float(jnp.mean(value)) for name, value in evaluate(params, jax.random.key(seed)).items()}
