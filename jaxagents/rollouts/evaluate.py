"""Evaluation on fixed tasks with full episodes, and single episodes for inspection."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxagents.environments.squashing import squash_actions
from jaxagents.environments.wrappers import episode_statistics
from jaxagents.ops.checks import check_counts
from jaxagents.ops.rows import where_rows
from jaxagents.policies.actor_critic import act
from jaxagents.rollouts.unroll import make_policy_input
from jaxagents.types import Array, Carry, Environment, Params, Policy, PyTree, State, TimeStep


def make_evaluator(
    environment: Environment,
    policy: Policy,
    *,
    num_episodes: int,
    greedy: bool = True,
    max_steps: int | None = None,
    level: int | None = None,
) -> Callable[[Params, Array], dict[str, Array]]:
    """Makes a function that plays whole episodes on tasks fixed by a key.

    Args:
        environment: single instance.
        policy: policy that acts.
        num_episodes: E, number of episodes, each on a separate task.
        greedy: whether to take the mode of the distribution instead of sampling.
        max_steps: number of steps after which unfinished episodes stop; null: the environment's limit.
        level: difficulty of the tasks.

    Returns:
        `(params, key) -> dict` of float32 `[E]`: `episode_return`, `episode_length`, `finished` (1.0 if the episode
        ended by itself), for teams `episode_return_agent_<number>`, and, if the world reports them, `success` and the
        entries of `info["metrics"]`. The same key gives the same tasks.

    Raises:
        ValueError: `num_episodes` is not positive, or the game has several streams of rewards.
    """
    check_counts(num_episodes=num_episodes)
    if environment.num_players > 1:
        raise ValueError(
            f"`environment` must have one stream of rewards, got {environment.num_players} players in "
            f"{environment.name!r}; wrap it in `against`."
        )
    bound = environment.max_steps if max_steps is None else max_steps
    tracked = episode_statistics(squash_actions(environment), per_agent=True)
    agents = (environment.num_agents,) if environment.num_agents else ()

    def evaluate(params: Params, key: Array) -> dict[str, Array]:
        task_key, reset_key, run_key = jax.random.split(key, 3)
        tasks = jax.vmap(lambda k: tracked.sample_task(k, level))(jax.random.split(task_key, num_episodes))
        state, timestep = jax.vmap(tracked.reset)(jax.random.split(reset_key, num_episodes), tasks)

        def unfinished(loop) -> Array:
            step, timestep = loop[0], loop[2]
            return (step < bound) & ~jnp.all(timestep.terminated | timestep.truncated)

        def step_all(loop):
            step, state, timestep, carry, previous = loop
            keys = jax.random.split(jax.random.fold_in(run_key, step), 3 * num_episodes).reshape(3, num_episodes)
            first = jnp.broadcast_to(step == 0, (num_episodes,))
            inputs = make_policy_input(timestep, first, previous)
            if not greedy and policy.draw_noise is not None:
                noise = jax.vmap(lambda key: policy.draw_noise(key, 1), out_axes=1)(keys[2])
                inputs = inputs.replace(noise=jax.tree.map(lambda leaf: leaf[0], noise))
            carry, distribution = act(policy, params, carry, inputs)
            action = distribution.mode() if greedy else jax.vmap(lambda d, k: d.sample(k))(distribution, keys[1])
            following = jax.vmap(tracked.step)(keys[0], state, action)
            over = timestep.terminated | timestep.truncated
            state, timestep = where_rows(over, (state, timestep), following)
            return step + 1, state, timestep, carry, action

        carry = policy.initial_carry((num_episodes, *agents))
        space = environment.action_space
        previous = jnp.zeros((num_episodes, *agents, *space.shape), space.dtype)
        loop = (jnp.int32(0), state, timestep, carry, previous)
        timestep = jax.lax.while_loop(unfinished, step_all, loop)[2]
        return episode_results(timestep)

    return evaluate


def episode_results(last: TimeStep) -> dict[str, Array]:
    """Returns what came of episodes by name, float32 `[episodes]`, of the time steps after their last steps."""
    names = [name for name in ("episode_return", "episode_length", "success") if name in last.info]
    metrics = {name: last.info[name] for name in names} | dict(last.info.get("metrics", {}))
    results = {name: value.astype(jnp.float32) for name, value in metrics.items()}
    return results | {"finished": (last.terminated | last.truncated).astype(jnp.float32)}


def play_episode(
    environment: Environment,
    policy: Policy,
    params: Params,
    key: Array,
    *,
    greedy: bool = True,
    max_steps: int | None = None,
    level: int | None = None,
) -> list[tuple[State, TimeStep]]:
    """Plays one episode step by step on the host, for inspection.

    Args:
        environment: single instance.
        policy: policy that acts.
        params: parameters of the policy.
        key: PRNG key, which fixes task and randomness.
        greedy: see `make_evaluator`.
        max_steps: see `make_evaluator`.
        level: see `make_evaluator`.

    Returns:
        States and time steps from the reset to the end.
    """
    environment = squash_actions(environment)
    task_key, reset_key, run_key = jax.random.split(key, 3)
    agents = (environment.num_agents,) if environment.num_agents else ()

    @jax.jit
    def step_once(step: Array, state: State, timestep: TimeStep, carry: Carry, previous: Array):
        sample_key, step_key, noise_key = jax.random.split(jax.random.fold_in(run_key, step), 3)

        def add_batch(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda leaf: leaf[None], tree)

        inputs = add_batch(make_policy_input(timestep, step == 0, previous))
        if not greedy and policy.draw_noise is not None:
            inputs = inputs.replace(noise=policy.draw_noise(noise_key, 1))
        carry, distribution = act(policy, params, carry, inputs)
        action = (distribution.mode() if greedy else distribution.sample(sample_key))[0]
        return *environment.step(step_key, state, action), carry, action

    frames = [jax.jit(environment.reset)(reset_key, environment.sample_task(task_key, level))]
    carry, space = policy.initial_carry((1, *agents)), environment.action_space
    action = jnp.zeros((*agents, *space.shape), space.dtype)
    for step in range(environment.max_steps if max_steps is None else max_steps):
        state, timestep = frames[-1]
        if timestep.terminated | timestep.truncated:
            break
        state, timestep, carry, action = step_once(jnp.int32(step), state, timestep, carry, action)
        frames.append((state, timestep))
    return frames
