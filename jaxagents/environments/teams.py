"""Observations of the agents of a team: their own identity, and the view of the whole team."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagents.types import Array, Box, Environment, PyTree, State, Task, TimeStep


def agent_ids(environment: Environment) -> Environment:
    """Appends to every agent's observation the one-hot vector of its index, so that agents can share parameters.

    Args:
        environment: environment with an agent axis and vectors as observations.

    Returns:
        The environment with observations float32 `[N, D + N]`.

    Raises:
        ValueError: there is no agent axis, or the observations are not vectors.
    """
    size, num_agents = _require_vectors(environment, "agent_ids"), environment.num_agents

    def show(timestep: TimeStep) -> tuple[PyTree, TimeStep]:
        observation = timestep.observation.astype(jnp.float32)
        return jnp.concatenate([observation, jnp.eye(num_agents)], axis=-1), timestep

    return _show(environment, show, Box((size + num_agents,)))


def team_view(environment: Environment) -> Environment:
    """Shows every agent the view of the team beside its own observation, for critics that exist only in training.

    The observation becomes `{"own": [N, D], "team": [N, S]}`. `team`, the same for all agents, is the world's own state
    (`info["world_state"]`, `[S]`) if it gives one, else the observations of all agents in one vector, with zeros for
    those that are dead according to `info["agent_mask"]`.

    Args:
        environment: environment with an agent axis and vectors as observations.

    Returns:
        The environment; a policy that sees only `own` can act without the team.

    Raises:
        ValueError: there is no agent axis, or the observations are not vectors.

    References:
        Lowe et al. (2017), "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments", section 4.1;
        Yu et al. (2022), section 5.2 (what the value sees) and appendix (death masking).
    """
    size, num_agents = _require_vectors(environment, "team_view"), environment.num_agents

    def show(timestep: TimeStep) -> tuple[PyTree, TimeStep]:
        own, info = timestep.observation.astype(jnp.float32), dict(timestep.info)
        state = info.pop("world_state", None)
        if state is None:
            agent_mask = info.get("agent_mask")
            seen = own if agent_mask is None else jnp.where(agent_mask[:, None], own, 0.0)
            state = seen.reshape(-1)
        team = jnp.broadcast_to(state.astype(jnp.float32), (num_agents, *state.shape))
        return {"own": own, "team": team}, timestep.replace(info=info)

    first = jax.eval_shape(_reset_shapes(environment), jax.random.key(0))
    state = first.info.get("world_state")
    state_size = size * num_agents if state is None else state.shape[0]
    return _show(environment, show, {"own": Box((size,)), "team": Box((state_size,))})


def require_agents(environment: Environment) -> None:
    """Refuses an environment whose observations, rewards and masks do not match its number of agents.

    Args:
        environment: any environment; without an agent axis, nothing is checked.

    Raises:
        ValueError: they do not match; says what does not.
    """
    if not environment.num_agents:
        return
    timestep = jax.eval_shape(_reset_shapes(environment), jax.random.key(0))
    leaves = {"reward": timestep.reward, "action_mask": timestep.action_mask}
    leaves["agent_mask"] = timestep.info.get("agent_mask")
    leaves |= {f"observation[{index}]": leaf for index, leaf in enumerate(jax.tree.leaves(timestep.observation))}
    for name, leaf in leaves.items():
        if leaf is not None and leaf.shape[:1] != (environment.num_agents,):
            raise ValueError(
                f"`{name}` of {environment.name!r} must have the {environment.num_agents} agents of `num_agents` as "
                f"its first axis, got shape {leaf.shape}; try one row per agent, with those that only pad masked out."
            )


def _require_vectors(environment: Environment, wrapper: str) -> int:
    """Returns the size of an agent's observation."""
    space = environment.observation_space
    if not environment.num_agents:
        raise ValueError(f"`environment` of `{wrapper}` must have an agent axis, got {environment.name!r} without one.")
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise ValueError(
            f"`environment` of `{wrapper}` must have vectors as observations, got {space} in {environment.name!r}; "
            "try `flatten_observation`."
        )
    return space.shape[0]


def _reset_shapes(environment: Environment) -> Callable[[Array], TimeStep]:
    return lambda key: environment.reset(key, environment.sample_task(key))[1]


def _show(
    environment: Environment, show: Callable[[TimeStep], tuple[PyTree, TimeStep]], observation_space: PyTree
) -> Environment:
    def with_observation(state: State, timestep: TimeStep) -> tuple[State, TimeStep]:
        observation, timestep = show(timestep)
        return state, timestep.replace(observation=observation)

    def reset(key: Array, task: Task) -> tuple[State, TimeStep]:
        return with_observation(*environment.reset(key, task))

    def step(key: Array, state: State, action: Array) -> tuple[State, TimeStep]:
        return with_observation(*environment.step(key, state, action))

    return replace(environment, reset=reset, step=step, observation_space=observation_space)
