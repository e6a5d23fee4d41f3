"""Planning of continuous actions by shooting: sequences of actions are tried, here in the environment itself."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxagents.ops.checks import check_counts
from jaxagents.ops.distributions import is_bounded
from jaxagents.types import Array, Box, Carry, Discrete, Environment, Params, Policy, State, TimeStep

Update = Callable[[Array, Array, Array, Array], tuple[Array, Array]]
"""`(sequences [N, H, D], scores [N], mean [H, D], scale [H, D]) -> (mean, scale)` of what is tried next."""


class Planner(NamedTuple):
    """Functions that choose actions given the state of the environment, for one instance; callers vmap.

    Attributes:
        init: `() -> carry`, at the beginning of an episode.
        plan: `(params, key, carry, state, timestep) -> (carry, action)`, the action in units of the environment.
    """

    init: Callable[[], Carry]
    plan: Callable[[Params, Array, Carry, State, TimeStep], tuple[Carry, Array]]


def make_shooting_planner(
    environment: Environment,
    policy: Policy | None = None,
    *,
    update: Update,
    horizon: int,
    num_candidates: int,
    num_iterations: int = 1,
    scale: float = 0.5,
    discount: float = 1.0,
) -> Planner:
    """Makes a planner that tries normally distributed sequences of actions, and takes the first action of their mean.

    The next step starts from the plan for the later steps.

    Args:
        environment: single instance with bounded continuous actions; it is its own model, including its randomness.
        policy: not used.
        update: function such as `cross_entropy` (CEM) or `path_integral` (MPPI).
        horizon: H, length of a sequence.
        num_candidates: N, number of sequences per iteration.
        num_iterations: number of iterations per step.
        scale: scale of the initial distribution in every step, in units of half the range of an action.
        discount: discount per step in the sum of rewards.

    Returns:
        The planner.

    Raises:
        ValueError: a size is not positive, or the actions are not bounded.

    References:
        Rubinstein and Kroese (2004), The cross-entropy method; Chua et al. (2018), PETS, section 5; Williams et al.
        (2017), Information theoretic MPC, algorithm 2.
    """
    del policy
    space = bounded_box(
        environment.action_space,
        scale=scale,
        horizon=horizon,
        num_candidates=num_candidates,
        num_iterations=num_iterations,
    )
    middle, half = 0.5 * (space.high + space.low), 0.5 * (space.high - space.low)

    def score(key: Array, state: State, actions: Array) -> Array:
        def step(carry: tuple[State, Array], inputs: tuple[Array, Array]) -> tuple[tuple[State, Array], Array]:
            state, alive = carry
            state, timestep = environment.step(inputs[0], state, inputs[1])
            over = timestep.terminated | timestep.truncated
            return (state, alive & ~over), jnp.where(alive, timestep.reward, 0.0)

        start = (state, jnp.ones((), bool))
        _, rewards = jax.lax.scan(step, start, (jax.random.split(key, horizon), actions))
        return jnp.sum(rewards * discount ** jnp.arange(horizon))

    def plan(params: Params, key: Array, mean: Array, state: State, timestep: TimeStep) -> tuple[Array, Array]:
        del params, timestep
        mean = shoot(
            lambda key, tried: score(key, state, middle + half * tried),
            key,
            mean,
            update=update,
            num_candidates=num_candidates,
            num_iterations=num_iterations,
            scale=scale,
        )
        return shift(mean), middle + half * mean[0]

    return Planner(init=lambda: jnp.zeros((horizon, *space.shape)), plan=plan)


def bounded_box(space: Discrete | Box, *, scale: float, **sizes: int) -> Box:
    """Returns the action space if shooting can be used with it; refuses others, and budgets of zero.

    Args:
        space: space of the actions.
        scale: see `shoot`.
        **sizes: budgets by name.

    Returns:
        The space.

    Raises:
        ValueError: the actions are not bounded, or a number is not positive.
    """
    check_counts(**sizes)
    if not isinstance(space, Box) or not is_bounded(space):
        raise ValueError(f"`action_space` must be a bounded Box for shooting, got {space}; try `make_tree_search`.")
    if scale <= 0.0:
        raise ValueError(f"`scale` must be positive, got {scale}; try 0.5.")
    return space


def shoot(
    score: Callable[[Array, Array], Array],
    key: Array,
    mean: Array,
    *,
    update: Update,
    num_candidates: int,
    num_iterations: int,
    scale: float,
) -> Array:
    """Computes the mean of normally distributed sequences of actions, after some updates towards better ones.

    Args:
        score: `(key, sequence [H, D]) -> float32 []`, the higher the better; actions are in [-1, 1]. All sequences of
            an iteration share one key, so that only their actions differ.
        key: PRNG key.
        mean: float32 `[H, D]`, mean of the first sequences.
        update: see `make_shooting_planner`.
        num_candidates: N, number of sequences per iteration.
        num_iterations: number of updates of the distribution.
        scale: initial standard deviation, in units of half the range of an action.

    Returns:
        float32 `[H, D]`.
    """

    def iterate(carry: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], None]:
        mean, deviation = carry
        noise_key, step_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, (num_candidates, *mean.shape))
        tried = jnp.clip(mean[None] + deviation[None] * noise, -1.0, 1.0)
        scores = jax.vmap(score, in_axes=(None, 0))(step_key, tried)
        return update(tried, scores, mean, deviation), None

    keys = jax.random.split(key, num_iterations)
    (mean, _), _ = jax.lax.scan(iterate, (mean, jnp.full_like(mean, scale)), keys)
    return mean


def shift(mean: Array) -> Array:
    """Returns a plan `[H, D]` shifted by one step, with zeros for the last step."""
    return jnp.concatenate([mean[1:], jnp.zeros_like(mean[:1])])


def cross_entropy(
    sequences: Array, scores: Array, mean: Array, scale: Array, *, num_elites: int, min_scale: float = 0.05
) -> tuple[Array, Array]:
    """Computes mean and standard deviation of the best sequences (CEM).

    Args:
        sequences: float `[N, H, D]`.
        scores: float `[N]`; scores that are not finite count as the worst.
        mean: not used.
        scale: not used.
        num_elites: number of best sequences that are used.
        min_scale: lower bound of the standard deviation.

    Returns:
        The mean and the standard deviation, `[H, D]`.

    Raises:
        ValueError: there are no elites, or fewer sequences than elites.

    References:
        Rubinstein and Kroese (2004), The cross-entropy method.
    """
    del mean, scale
    if not 1 <= num_elites <= len(sequences):
        raise ValueError(
            f"`num_elites` must be at least 1 and at most `num_candidates`, got {num_elites} of {len(sequences)}."
        )
    finite = jnp.where(jnp.isfinite(scores), scores, -jnp.inf)
    elites = sequences[jax.lax.top_k(finite, num_elites)[1]]
    return jnp.mean(elites, axis=0), jnp.maximum(jnp.std(elites, axis=0), min_scale)


def path_integral(
    sequences: Array, scores: Array, mean: Array, scale: Array, *, temperature: float
) -> tuple[Array, Array]:
    """Computes the mean of all sequences, weighted by `softmax(scores / temperature)` (MPPI).

    Args:
        sequences: float `[N, H, D]`.
        scores: float `[N]`; sequences with scores that are not finite do not count.
        mean: not used.
        scale: float `[H, D]`, unchanged.
        temperature: temperature of the softmax, in units of the return.

    Returns:
        The mean and the scale, `[H, D]`.

    Raises:
        ValueError: the temperature is not positive.

    References:
        Williams et al. (2017), Information theoretic MPC for model-based reinforcement learning, equation 26.
    """
    del mean
    if temperature <= 0.0:
        raise ValueError(f"`temperature` must be positive, got {temperature}; try 1.0.")
    weights = jax.nn.softmax(jnp.where(jnp.isfinite(scores), scores, -jnp.inf) / temperature)
    return jnp.tensordot(weights, sequences, axes=1), scale
