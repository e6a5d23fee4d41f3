"""Experience from simulators on the host, for the same compiled updates as that from array programs.

The program calls the host once per step of all simulators; the policy acts inside the program, as elsewhere.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from jaxagents.environments.host import HostBatch, HostEnvironment, HostStep, simulator_fault
from jaxagents.environments.squashing import squash_action
from jaxagents.ops.checks import check_counts
from jaxagents.policies.actor_critic import act
from jaxagents.rollouts.unroll import (
    RolloutState,
    begin_rollout,
    draw_action_noise,
    draw_policy_noise,
    episode_metrics,
    make_policy_input,
    make_transition,
)
from jaxagents.types import (
    Array,
    Collector,
    Count,
    Mean,
    Metrics,
    Params,
    Policy,
    PyTree,
    Rollout,
    TimeStep,
)


class Simulators:
    """B simulators in this process, made when they are first needed, with running totals of their episodes."""

    def __init__(self, environment: HostEnvironment, num_envs: int) -> None:
        self.environment, self.num_envs = environment, num_envs
        self.session = int(np.random.SeedSequence().generate_state(1)[0]) % 2**31
        self.batch: HostBatch | None = None
        self.started = False
        self.totals = np.zeros((2, num_envs), np.float32)  # Return and length of the running episodes.

    def reset(self, seeds: Array) -> TimeStep:
        """Starts an episode in each simulator, with seeds uint32 `[B]`."""
        self.batch = self.batch or self._call("make", self.environment.make_batch, self.num_envs)
        self.started, self.totals[:] = True, 0.0
        return self._timestep("reset", self._call("reset", self.batch.reset, np.asarray(seeds, np.int64)))

    def step(self, action: Array) -> TimeStep:
        """Steps each simulator, with actions `[B, ...]`."""
        raw = self._call("step", self.batch.step, np.asarray(action))
        self.totals += np.stack([raw.reward, np.ones_like(raw.reward)])
        timestep = self._timestep("step", raw)
        self._require_finite(action, timestep)
        self.totals *= ~(raw.terminated | raw.truncated)
        return timestep

    def resume(self, session: Array, seeds: Array, timestep: TimeStep) -> tuple[np.ndarray, TimeStep, np.ndarray]:
        """Returns whether episodes had to restart, as those of another process are lost, and the current time steps."""
        here = self.started and bool(np.all(np.asarray(session) == self.session))
        timestep = jax.tree.map(np.asarray, timestep) if here else self.reset(seeds)
        return np.full(self.num_envs, not here), timestep, np.full(self.num_envs, self.session, np.int32)

    def close(self) -> None:
        """Ends the processes of the simulators."""
        if self.batch is not None:
            self.batch.close()
            self.batch, self.started = None, False

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a simulator and turns any of its errors into an error of the run."""
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:
            self.close()
            raise simulator_fault(self.environment.name, name, error) from error

    def _require_finite(self, action: Array, timestep: TimeStep) -> None:
        """Refuses infinite or NaN results for finite actions, which no learning rate would fix."""
        seen = {"reward": timestep.reward, "observation": timestep.info["next_observation"]}
        for name, tree in seen.items():
            for leaf in jax.tree.leaves(tree):
                rows = np.isfinite(leaf).reshape(self.num_envs, -1).all(axis=1)
                if not rows.all() and np.isfinite(np.asarray(action)[~rows]).all():
                    raise ValueError(
                        f"`{name}` of the environment {self.environment.name} must be finite, got NaN or infinity in "
                        f"step {int(timestep.info['episode_length'][~rows][0])} of an episode; mend the simulator."
                    )

    def _timestep(self, call: str, raw: HostStep) -> TimeStep:
        return self._call(call, self._read, raw)

    def _read(self, raw: HostStep) -> TimeStep:
        shapes = time_step_shapes(self.environment, self.num_envs)
        info = {"episode_return": self.totals[0], "episode_length": self.totals[1], "success": raw.success}
        info["next_observation"] = raw.next_observation
        if raw.action_mask is not None:
            info["next_action_mask"] = raw.next_action_mask
        fields: dict[str, Any] = {"observation": raw.observation, "reward": raw.reward, "terminated": raw.terminated}
        fields |= {"truncated": raw.truncated, "action_mask": raw.action_mask, "info": info}
        timestep = TimeStep(**fields)
        return jax.tree.map(lambda leaf, shape: np.array(leaf, shape.dtype).reshape(shape.shape), timestep, shapes)


def time_step_shapes(environment: HostEnvironment, num_envs: int) -> TimeStep:
    """Returns the shapes and dtypes of time steps of B simulators."""

    def of(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct((num_envs, *shape), jax.dtypes.canonicalize_dtype(dtype))

    observation = jax.tree.map(
        lambda space: of(space.shape, space.dtype), environment.observation_space, is_leaf=lambda s: hasattr(s, "shape")
    )
    number, flag = of((), np.float32), of((), bool)
    info = {"episode_return": number, "episode_length": number, "success": number, "next_observation": observation}
    mask = None if environment.num_actions is None else of((environment.num_actions,), bool)
    info |= {} if mask is None else {"next_action_mask": mask}
    return TimeStep(
        observation=observation, reward=number, terminated=flag, truncated=flag, action_mask=mask, info=info
    )


def make_host_collector(
    environment: HostEnvironment, policy: Policy, *, num_envs: int, num_steps: int, axis_name: str | None = None
) -> Collector:
    """Makes a collector whose batches are `Rollout`s of simulators on the host.

    A run that resumes from a checkpoint starts new episodes, because the simulators' running episodes are lost.

    Args:
        environment: environment that runs on the host.
        policy: policy that acts; its carry continues between rollouts.
        num_envs: B, number of simulators.
        num_steps: T, number of steps.
        axis_name: mapped device axis; must be None.

    Returns:
        The collector; metrics are those of `unroll.make_rollout_collector`.

    Raises:
        ValueError: a size is not positive, the environment is an array program, or there are several devices.
    """
    check_counts(num_envs=num_envs, num_steps=num_steps)
    require_host(environment, axis_name)
    simulators, space = Simulators(environment, num_envs), environment.action_space
    shapes = time_step_shapes(environment, num_envs)

    def init(key: Array, params: Params) -> RolloutState:
        del params
        timestep = io_callback(simulators.reset, shapes, _seeds(key, num_envs), ordered=True)
        session = jnp.full(num_envs, simulators.session, jnp.int32)
        action = jnp.zeros((num_envs, *space.shape), space.dtype)
        return begin_rollout(session, timestep, policy.initial_carry((num_envs,)), action)

    def collect(state: RolloutState, params: Params, key: Array) -> tuple[RolloutState, Rollout, Metrics]:
        noise_key, reset_key = jax.random.split(key)
        results = (jax.ShapeDtypeStruct((num_envs,), bool), shapes, jax.ShapeDtypeStruct((num_envs,), jnp.int32))
        begun, timestep, session = io_callback(
            simulators.resume, results, state.environment, _seeds(reset_key, num_envs), state.timestep, ordered=True
        )
        state = state.replace(environment=session, timestep=timestep, first=state.first | begun)
        noise = draw_action_noise(policy, params, state, noise_key, num_steps)
        policy_noise = draw_policy_noise(policy, state, noise_key, num_steps)

        def step(state: RolloutState, noise: tuple[PyTree, PyTree]):
            inputs = make_policy_input(state.timestep, state.first, state.previous_action, noise[1])
            carry, distribution = act(policy, params, state.carry, inputs)
            action = distribution.transform(noise[0])
            after = io_callback(simulators.step, shapes, squash_action(action, space), ordered=True)
            first = after.terminated | after.truncated
            following = state.replace(timestep=after, carry=carry, first=first, previous_action=action)
            return following, (
                make_transition(inputs, action, distribution.log_prob(action), after),
                state.carry,
                after,
            )

        final, (transition, carry, after) = jax.lax.scan(step, state, (noise, policy_noise))
        carry = jax.tree.map(lambda steps, last: jnp.concatenate([steps, last[None]]), carry, final.carry)
        ended = jnp.sum(after.terminated | after.truncated, dtype=jnp.int32)
        metrics: dict[str, Count | Mean] = {
            "episodes": Count(ended),
            "env_steps": Count(jnp.int32(num_steps * num_envs)),
        }
        metrics["success_rate"] = _success_rate(after)
        return final, Rollout(transition=transition, carry=carry), episode_metrics(after) | metrics

    return Collector(init=init, collect=collect, steps_per_collect=num_envs * num_steps)


def make_host_evaluator(
    environment: HostEnvironment,
    policy: Policy,
    *,
    num_episodes: int,
    greedy: bool = True,
    level: int | None = None,
    num_envs: int = 4,
) -> Callable[[Params, Array], dict[str, Array]]:
    """Makes a function that plays whole episodes on seeds fixed by a key, see `evaluate.make_evaluator`.

    Args:
        environment: environment that runs on the host.
        policy: policy that acts.
        num_episodes: E, rounded up to whole rounds of `num_envs`, of which the first E count.
        greedy: whether to take the mode of the distribution instead of sampling.
        level: must be None, because simulators have their own settings.
        num_envs: number of simulators, separate from those of training.

    Returns:
        `(params, key) -> dict` of float32 `[E]`; `success` is NaN for simulators that do not report it.

    Raises:
        ValueError: see `make_host_collector`; or `level` is not None.
    """
    require_host(environment, None)
    _require_no_level(environment, level)
    size = min(num_envs, num_episodes)
    simulators, shapes = Simulators(environment, size), time_step_shapes(environment, size)
    space = environment.action_space

    def play(params: Params, key: Array) -> dict[str, Array]:
        seed_key, action_key = jax.random.split(key)
        timestep = io_callback(simulators.reset, shapes, _seeds(seed_key, size), ordered=True)
        start = (jnp.int32(0), timestep, policy.initial_carry((size,)), jnp.zeros((size, *space.shape), space.dtype))
        nothing = {name: jnp.zeros(size) for name in ("episode_return", "episode_length", "success", "finished")}

        def step(loop):
            number, timestep, carry, previous, results = loop
            inputs = make_policy_input(timestep, jnp.broadcast_to(number == 0, (size,)), previous)
            carry, distribution = act(policy, params, carry, inputs)
            keys = jax.random.split(jax.random.fold_in(action_key, number), size)
            action = distribution.mode() if greedy else jax.vmap(lambda d, k: d.sample(k))(distribution, keys)
            after = io_callback(simulators.step, shapes, squash_action(action, space), ordered=True)
            now = after.info | {"finished": after.terminated | after.truncated}
            fresh = results["finished"] == 0.0
            results = {name: jnp.where(fresh, now[name].astype(jnp.float32), old) for name, old in results.items()}
            return number + 1, after, carry, action, results

        def unfinished(loop) -> Array:
            return (loop[0] < environment.max_steps) & ~jnp.all(loop[-1]["finished"] > 0.0)

        return jax.lax.while_loop(unfinished, step, (*start, nothing))[-1]

    def evaluate(params: Params, key: Array) -> dict[str, Array]:
        keys = jax.random.split(key, -(-num_episodes // size))
        results = jax.lax.map(lambda key: play(params, key), keys)
        return {name: value.reshape(-1)[:num_episodes] for name, value in results.items()}

    return evaluate


def play_host_episode(
    environment: HostEnvironment,
    policy: Policy,
    params: Params,
    key: Array,
    *,
    greedy: bool = True,
    max_steps: int | None = None,
    level: int | None = None,
) -> list[tuple[None, TimeStep]]:
    """Plays one episode of a simulator step by step, for inspection, see `evaluate.play_episode`.

    Args:
        environment: environment that runs on the host.
        policy: policy that acts.
        params: parameters of the policy.
        key: PRNG key, which fixes the seed of the simulator and the randomness of the policy.
        greedy: see `make_host_evaluator`.
        max_steps: number of steps after which the episode is cut; None: the simulator's limit.
        level: must be None.

    Returns:
        Pairs of None, instead of the state of an array program, and the time steps from the reset to the end.

    Raises:
        ValueError: see `make_host_evaluator`.
    """
    require_host(environment, None)
    _require_no_level(environment, level)
    simulators, space = Simulators(environment, 1), environment.action_space
    seed_key, action_key = jax.random.split(key)

    @jax.jit
    def choose(step: Array, timestep: TimeStep, carry: PyTree, previous: Array) -> tuple[PyTree, Array, Array]:
        inputs = make_policy_input(timestep, jnp.broadcast_to(step == 0, (1,)), previous)
        carry, distribution = act(policy, params, carry, inputs)
        action = distribution.mode() if greedy else distribution.sample(jax.random.fold_in(action_key, step))
        return carry, action, squash_action(action, space)

    try:
        timestep = simulators.reset(_seeds(seed_key, 1))
        frames = [(None, _first_row(timestep))]
        carry, previous = policy.initial_carry((1,)), jnp.zeros((1, *space.shape), space.dtype)
        for step in range(environment.max_steps if max_steps is None else max_steps):
            carry, previous, action = choose(jnp.int32(step), timestep, carry, previous)
            timestep = simulators.step(action)
            # At the end, the simulator has already started the next episode.
            frames.append((None, _first_row(timestep.replace(observation=timestep.info["next_observation"]))))
            if timestep.terminated[0] | timestep.truncated[0]:
                break
    finally:
        simulators.close()
    return frames


def _first_row(timestep: TimeStep) -> TimeStep:
    return jax.tree.map(lambda leaf: leaf[0], timestep)


def _require_no_level(environment: HostEnvironment, level: int | None) -> None:
    if level is not None:
        raise ValueError(f"`evaluation.level` must be null for {environment.name}, got {level}; try its own settings.")


def require_host(environment: Any, axis_name: str | None) -> None:
    """Refuses array programs, and several devices, because only one can call the host."""
    if not isinstance(environment, HostEnvironment):
        raise ValueError(
            f"`environment` must be on the host for this collector, got {environment.name}; try collector=rollout "
            "evaluation=default."
        )
    if axis_name is not None:
        raise ValueError("`devices` must be one for simulators on the host, got a mesh of them; try devices=jit.")


def _success_rate(after: TimeStep) -> Mean:
    """Returns the mean over the episodes that ended in simulators that report success."""
    counted = (after.terminated | after.truncated) & jnp.isfinite(after.info["success"])
    total = jnp.sum(jnp.where(counted, after.info["success"], 0.0))
    return Mean(total=total, count=jnp.sum(counted, dtype=jnp.float32))


def _seeds(key: Array, num_envs: int) -> Array:
    return jax.random.bits(key, (num_envs,), jnp.uint32)
