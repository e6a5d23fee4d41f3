"""Cross-play: teams whose members were trained separately, as in ad-hoc teamwork and zero-shot coordination."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxagents.rollouts.evaluate import make_evaluator
from jaxagents.types import Array, Carry, Environment, Params, Policy, PolicyInput, PyTree


@struct.dataclass
class _OneAmongOthers:
    """The first agent acts by one distribution, the others by another.

    Attributes:
        one: distribution of all agents, used for the first one.
        others: distribution of all agents, used for all except the first.
        agent_axis: agent axis of an action, counted from the end.
    """

    one: Any
    others: Any
    agent_axis: int = struct.field(pytree_node=False)

    def mode(self) -> Array:
        return self._choose(self.one.mode(), self.others.mode())

    def sample(self, key: Array) -> Array:
        one_key, others_key = jax.random.split(key)
        return self._choose(self.one.sample(one_key), self.others.sample(others_key))

    def _choose(self, one: Array, others: Array) -> Array:
        shape = [1] * one.ndim
        shape[self.agent_axis] = one.shape[self.agent_axis]
        return jnp.where(jnp.arange(one.shape[self.agent_axis]).reshape(shape) == 0, one, others)


def make_cross_play(
    environment: Environment,
    policy: Policy,
    *,
    num_episodes: int,
    greedy: bool = True,
    level: int | None = None,
) -> Callable[[PyTree, Array], dict[str, Array]]:
    """Makes a function that plays every policy with every other one: `M[i, j]`, agent 0 of i in a team of j.

    Args:
        environment: environment of a team, single instance.
        policy: policy of the whole team, with shared or separate parameters.
        num_episodes: E, number of episodes of every pair, on the same tasks.
        greedy: whether to take the mode of the distribution instead of sampling.
        level: difficulty of the tasks.

    Returns:
        `(params, key) -> dict` of float32 `[P, P, E]`, the results of `rollouts.evaluate.make_evaluator`; the leaves of
        the parameters have a leading axis for the P policies. The diagonal is self-play.

    Raises:
        ValueError: there is no team, or `num_episodes` is not positive.

    References:
        Hu, Lerer, Peysakhovich and Foerster (2020), "Other-Play" for Zero-Shot Coordination, section 5: cross-play.
    """
    if not environment.num_agents:
        raise ValueError(
            f"`environment` must have a team for cross-play, got {environment.name!r} with one agent; try world=lbf."
        )
    agent_axis = -1 - len(environment.action_space.shape)

    def initial_carry(batch_shape: tuple[int, ...]) -> Carry:
        return policy.initial_carry(batch_shape), policy.initial_carry(batch_shape)

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, _OneAmongOthers]:
        parts = [policy.apply(*part, inputs) for part in zip(params, carry, strict=True)]
        (one_carry, one), (others_carry, others) = parts
        return (one_carry, others_carry), _OneAmongOthers(one, others, agent_axis)

    mixed = policy._replace(initial_carry=initial_carry, apply=apply)
    evaluate = make_evaluator(environment, mixed, num_episodes=num_episodes, greedy=greedy, level=level)

    def evaluate_pairs(params: PyTree, key: Array) -> dict[str, Array]:
        def with_one(one: Params) -> dict[str, Array]:
            return jax.lax.map(lambda others: evaluate((one, others), key), params)

        return jax.lax.map(with_one, params)

    return evaluate_pairs
