"""A policy of array observations as a function, for loops of one's own and for exported programs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxagents.environments.host import HostEnvironment
from jaxagents.environments.squashing import squash_action
from jaxagents.learners.liveness import paths_read
from jaxagents.ops.rows import clear_first
from jaxagents.policies.actor_critic import act
from jaxagents.types import Array, Carry, Environment, Params, Policy, PolicyInput, PyTree

_HISTORY = ("previous_action", "previous_reward")


def make_act(policy: Policy, environment: Environment) -> Callable[..., tuple[Array, Carry]]:
    """Makes the compiled function that chooses actions, for one instance of an environment or a batch.

    Args:
        policy: policy that acts.
        environment: environment whose observation space distinguishes a batch from one instance; it also tells whether
            actions are masked.

    Returns:
        `(params, observation, carry=None, first=None, action_mask=None, key=None, reward=None) -> (action, carry)`.
        `observation` is that of one instance, `[*shape]` (`[N, *shape]` with agents), or of a batch, `[B, *shape]`; the
        other arguments have the same leading axes. `carry` is what the last call returned; None at the start of an
        episode. `first` (bool) marks the start of an episode; by default, an episode starts if there is no carry.
        `reward` is the reward of the last action, for policies that read it (RL^2, decision transformers); their own
        actions are in their carry. Without `key`, the action is the mode of the distribution; with a key, it is
        sampled. The function raises ValueError without a mask if the environment has masks, and without a reward after
        the first step if the policy reads rewards.
    """
    agents = (environment.num_agents,) if environment.num_agents else ()
    space, actions = environment.observation_space, environment.action_space
    masked, read = mask_shape(environment) is not None, history_read(policy, environment)

    @jax.jit
    def act_batch(
        params: Params, observation: PyTree, carry: Carry, first: Any, action_mask: Any, key: Any, reward: Any
    ) -> tuple[Array, Carry]:
        batch = _batch_shape(observation, space, agents)
        rows = batch or (1,)
        first = jnp.broadcast_to(carry is None if first is None else first, rows)

        def add_batch(tree: PyTree) -> PyTree:
            return tree if batch else jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)

        carry = initial_carry(policy, environment, rows) if carry is None else add_batch(carry)
        history: dict[str, Array] = {}
        if read:
            carry, previous = carry["policy"], carry["previous_action"]
            reward = jnp.zeros((*rows, *agents)) if reward is None else add_batch(jnp.asarray(reward, jnp.float32))
            history = dict(zip(_HISTORY, clear_first(first, (previous, reward)), strict=True))
        observation, action_mask = add_batch((observation, action_mask))
        inputs = PolicyInput(observation=observation, first=first, action_mask=action_mask, **history)
        carry, distribution = act(policy, params, carry, inputs)
        action = distribution.mode() if key is None else distribution.sample(key)
        carry = {"policy": carry, "previous_action": action} if read else carry
        action = squash_action(action, actions)
        return (action, carry) if batch else jax.tree.map(lambda leaf: leaf[0], (action, carry))

    def act_once(
        params: Params,
        observation: PyTree,
        carry: Carry | None = None,
        first: Array | bool | None = None,
        action_mask: Array | None = None,
        key: Array | None = None,
        reward: Array | float | None = None,
    ) -> tuple[Array, Carry]:
        """Chooses the action for an observation.

        Args:
            observation: observation of one instance, or of a batch; all other arguments have the same leading axes.
            carry: carry that the last call returned; None at the start of an episode.
            first: bool, whether an episode starts; None: it starts if there is no carry.
            action_mask: bool, allowed actions; `timestep.action_mask` of worlds that have masks.
            key: random key for sampling; None: the action is the mode of the policy.
            reward: reward of the last action, for policies that read it.

        Returns:
            The action and the carry for the next call.

        Raises:
            ValueError: the world has masks, and none is given; or the policy reads rewards, and none is given after the
                first step.
        """
        if masked and action_mask is None:
            raise ValueError(
                f"`action_mask` must be given in {environment.name}, which does not allow every action, got None; try "
                "act(observation, carry, action_mask=timestep.action_mask)."
            )
        if "previous_reward" in read and reward is None and carry is not None:
            raise ValueError(
                "`reward` must be given to a policy that reads what its last action paid, got None; try "
                "act(observation, carry, reward=timestep.reward)."
            )
        return act_batch(params, observation, carry, first, action_mask, key, reward)

    return act_once


def initial_carry(policy: Policy, environment: Environment, rows: tuple[int, ...]) -> Carry:
    """Returns the carry of `make_act` at the start of episodes, leaves `[*rows, ...]`."""
    agents = (environment.num_agents,) if environment.num_agents else ()
    carry, actions = policy.initial_carry((*rows, *agents)), environment.action_space
    if not history_read(policy, environment):
        return carry
    return {"policy": carry, "previous_action": jnp.zeros((*rows, *agents, *actions.shape), actions.dtype)}


def mask_shape(environment: Environment) -> tuple[int, ...] | None:
    """Returns the shape of the action masks of one instance; None if every action is always allowed."""
    if isinstance(environment, HostEnvironment):
        return None if environment.num_actions is None else (environment.num_actions,)
    first = jax.eval_shape(lambda key: environment.reset(key, environment.sample_task(key))[1], jax.random.key(0))
    return None if first.action_mask is None else first.action_mask.shape


def history_read(policy: Policy, environment: Environment) -> frozenset[str]:
    """Returns which of `previous_action` and `previous_reward` a policy reads, found by tracing it."""
    agents = (environment.num_agents,) if environment.num_agents else ()
    space, actions = environment.observation_space, environment.action_space
    shape = (1, 1, *agents)

    def of(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype))

    masks = mask_shape(environment)
    fields: dict[str, Any] = {
        "observation": jax.tree.map(
            lambda part: of((*shape, *part.shape), part.dtype), space, is_leaf=lambda part: hasattr(part, "shape")
        ),
        "first": of((1, 1), bool),
        "action_mask": None if masks is None else of((1, 1, *masks), bool),
        "previous_action": of((*shape, *actions.shape), actions.dtype),
        "previous_reward": of(shape, jnp.float32),
    }
    inputs = PolicyInput(**fields)
    params = jax.eval_shape(policy.init, jax.random.key(0))
    carry = jax.eval_shape(lambda: policy.initial_carry(shape[1:]))
    paths = paths_read(policy.apply, params, carry, inputs)
    return frozenset(path[1].name for path in paths if path[0].idx == 2) & frozenset(_HISTORY)


def _batch_shape(observation: PyTree, space: PyTree, agents: tuple[int, ...]) -> tuple[int, ...]:
    """Returns `()` for the observation of one instance and `(B,)` for a batch."""
    shape = jnp.shape(jax.tree.leaves(observation)[0])
    one = (*agents, *jax.tree.leaves(space)[0].shape)
    batch = shape[: len(shape) - len(one)]
    if len(batch) > 1 or (*batch, *one) != shape:
        raise ValueError(f"`observation` must have the shape {list(one)} or {['B', *one]}, got {list(shape)}.")
    return batch
