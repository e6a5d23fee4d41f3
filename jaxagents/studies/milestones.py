"""ARA evaluation (Kinniment et al., 2023): how far attempts at a task come, and what more attempts elicit."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.studies.distances import make_measured
from jaxagents.types import Array, Environment, LanguagePolicy, Params


def run(
    seed: int,
    *,
    environment: Environment,
    policy: LanguagePolicy,
    params: Params,
    num_tasks: int = 64,
    num_attempts: int = 8,
) -> dict[str, float]:
    """Lets a trained policy attempt held-out tasks several times, and grades how far it comes.

    Args:
        seed: seed of the tasks and of sampling.
        environment: text world with one seat, deterministic after the start, whose `text.distance` is known.
        policy: policy that acts.
        params: trained parameters.
        num_tasks: n, number of tasks.
        num_attempts: number of attempts at a task; the scaffold continues until one succeeds.

    Returns:
        See `grade`.

    Raises:
        ValueError: the distance is not known.

    References:
        Kinniment et al. (2023), "Evaluating Language-Model Agents on Realistic Autonomous Tasks", sections 3 and 5.
    """
    measure = make_measured(environment, policy, num_attempts)
    interface: Any = environment.text

    def attempt(params: Params, key: Array) -> dict[str, Array]:
        task_key, *keys = jax.random.split(key, 4)
        task = jax.vmap(interface.sample_held_out_task)(jax.random.split(task_key, num_tasks))
        episode, _, distance = measure(params, task, *keys)
        least = jnp.min(jnp.where(episode.valid, distance[:, 1:], jnp.inf), axis=1)
        shape = (num_tasks, num_attempts)
        return grade(distance[::num_attempts, 0], least.reshape(shape), episode.success.reshape(shape))

    graded = jax.jit(attempt)(params, jax.random.key(seed))
    return {name: float(value) for name, value in graded.items()}


def grade(first: Array, least: Array, success: Array) -> dict[str, Array]:
    """Computes milestones, `1 - d / d_0` for the least distance d to the goal, 1 for a success, and gains by attempts.

    Args:
        first: float32 `[n]`, initial distances d_0.
        least: float32 `[n, K]`, least distances in K attempts.
        success: bool `[n, K]`.

    Returns:
        Means over tasks: `success` and `milestones` of the first attempt; `success_best` and `milestones_best` of the
            best attempt; `gap` and `milestones_gap`, best minus first, the elicitation gaps; `partial`, the share of
            first attempts that come closer and fail; `success_hard` and `milestones_hard` of first attempts at the
            farther half of the tasks.
    """
    share = jnp.where(success, 1.0, jnp.clip(1.0 - least / first[:, None], 0.0, 1.0))
    done = success.astype(jnp.float32)
    hard = jnp.argsort(-first, stable=True)[: (len(first) + 1) // 2]
    one = {"success": jnp.mean(done[:, 0]), "milestones": jnp.mean(share[:, 0])}
    best = {"success_best": jnp.mean(jnp.max(done, 1)), "milestones_best": jnp.mean(jnp.max(share, 1))}
    return {
        **one,
        **best,
        "gap": best["success_best"] - one["success"],
        "milestones_gap": best["milestones_best"] - one["milestones"],
        "partial": jnp.mean((share[:, 0] > 0.0) & ~success[:, 0]),
        "success_hard": jnp.mean(done[hard, 0]),
        "milestones_hard": jnp.mean(share[hard, 0]),
    }
