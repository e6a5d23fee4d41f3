"""Policies that plan every action in a learned model of the world (model predictive control, PETS)."""

from functools import partial

import jax
import jax.numpy as jnp

from jaxagents.ops.distributions import TanhNormal, unsquash
from jaxagents.ops.rows import where_rows
from jaxagents.search.planning import Update, bounded_box, shift, shoot
from jaxagents.types import Array, Box, Carry, Params, Policy, PolicyInput
from jaxagents.values.dynamics import Dynamics


def make_model_predictive_policy(
    observation_space: Box,
    action_space: Box,
    *,
    dynamics: Dynamics,
    update: Update,
    horizon: int,
    num_candidates: int,
    num_iterations: int = 1,
    num_particles: int = 1,
    scale: float = 0.5,
    discount: float = 1.0,
    exploration_scale: float = 0.1,
) -> Policy:
    """Makes a policy that tries sequences of actions in a model, and takes the first action of its plan.

    Its memory is the plan for the following steps, from which the next plan starts; an episode starts with zeros. In
    deterministic evaluations, every step draws the same sequences around its plan.

    Args:
        observation_space: not used; it is that of the model.
        action_space: space of a bounded vector.
        dynamics: model, whose parameters are those of the policy.
        update: function such as `search.planning.cross_entropy` (CEM) or `path_integral` (MPPI).
        horizon: H, length of a sequence. Paper: about 30.
        num_candidates: N, number of sequences per iteration. Paper: 500.
        num_iterations: number of iterations per step. Paper: 5.
        num_particles: P, number of simulated outcomes of a sequence in each member of the model. Paper: 20 in total.
        scale: scale of the initial distribution in every step, in units of half the range of an action.
        discount: discount per step in the sum of rewards.
        exploration_scale: standard deviation of the action around the plan, before squashing. Paper: none.

    Returns:
        The policy.

    Raises:
        ValueError: a number is not positive, or the actions are not bounded.

    References:
        Chua et al. (2018), Deep reinforcement learning in a handful of trials using probabilistic dynamics models,
        algorithm 1 and section 5 (TS-infinity: a particle stays in its member of the ensemble).
        Williams et al. (2017), Information theoretic MPC for model-based reinforcement learning, algorithm 2.

    Deviation: the model predicts rewards and ends, whereas the paper knows the rewards; the standard deviation of the
        distribution is not bounded by the distance to the limits of the actions; instead, sequences are clipped.
    """
    del observation_space
    sizes = {"horizon": horizon, "num_candidates": num_candidates, "num_iterations": num_iterations}
    bounded_box(action_space, scale=scale, **sizes, num_particles=num_particles)
    if exploration_scale <= 0.0:
        raise ValueError(f"`exploration_scale` must be positive, got {exploration_scale}; try 0.1.")
    low, high = float(action_space.low), float(action_space.high)

    def plan(params: Params, key: Array, mean: Array, observation: Array) -> Array:
        def score(key: Array, tried: Array) -> Array:
            actions = unsquash(tried, low=-1.0, high=1.0)
            estimate = partial(expected_return, num_particles=num_particles, discount=discount)
            return estimate(dynamics, params, key, observation, actions)

        counts = {"num_candidates": num_candidates, "num_iterations": num_iterations}
        return shoot(score, key, mean, update=update, scale=scale, **counts)

    def apply(params: Params, carry: Carry, inputs: PolicyInput) -> tuple[Carry, TanhNormal]:
        keys = inputs.noise
        if keys is None:
            keys = jnp.broadcast_to(jax.random.key(0), inputs.first.shape)

        def step(mean: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            observation, first, keys = inputs
            mean = where_rows(first, jnp.zeros_like(mean), mean)
            mean = jax.vmap(partial(plan, params))(keys, mean, observation.astype(jnp.float32))
            return jax.vmap(shift)(mean), mean[:, 0]

        carry, action = jax.lax.scan(step, carry, (inputs.observation, inputs.first, keys))
        loc = unsquash(action, low=-1.0, high=1.0)
        distribution = TanhNormal(loc=loc, scale=jnp.full_like(loc, exploration_scale), low=low, high=high)
        return carry, distribution.mask(inputs.action_mask)

    return Policy(
        init=dynamics.init,
        initial_carry=lambda batch_shape: jnp.zeros((*batch_shape, horizon, *action_space.shape)),
        apply=apply,
        draw_noise=jax.random.split,
    )


def expected_return(
    dynamics: Dynamics,
    params: Params,
    key: Array,
    observation: Array,
    actions: Array,
    *,
    num_particles: int = 1,
    discount: float = 1.0,
) -> Array:
    """Estimates the return of a sequence of actions by particles, each of which stays in one member of the model.

    Rewards after a particle's end do not count.

    Args:
        dynamics: model with E members.
        params: parameters of the model.
        key: PRNG key.
        observation: float32 `[D]`, initial observation.
        actions: float32 `[H, A]`, before squashing.
        num_particles: P, number of particles in each member.
        discount: per step.

    Returns:
        The mean over E P particles, float32 `[]`.
    """

    def follow(member: Params, key: Array) -> Array:
        def step(carry: tuple[Array, Array], inputs: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
            observation, alive = carry
            key, action = inputs
            predicted = jax.tree.map(lambda leaf: leaf[0], dynamics.apply(member, observation, action))
            observation, reward, ends = predicted.sample(key, observation)
            return (observation, alive & ~ends), jnp.where(alive, reward, 0.0)

        start = observation, jnp.ones((), bool)
        _, rewards = jax.lax.scan(step, start, (jax.random.split(key, len(actions)), actions))
        return jnp.sum(rewards * discount ** jnp.arange(len(actions)))

    members = jax.tree.map(lambda leaf: leaf[:, None], params)  # Each member becomes an ensemble of one.
    num_members = jax.tree.leaves(params)[0].shape[0]
    keys = jax.random.split(key, (num_members, num_particles))
    return jnp.mean(jax.vmap(jax.vmap(follow, (None, 0)))(members, keys))
