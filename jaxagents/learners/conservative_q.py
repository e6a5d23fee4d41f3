"""Conservative Q-learning of discrete actions: DQN of a fixed data set that is wary of what the data lack."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxagents.learners.dqn import make_dqn
from jaxagents.learners.q_values import values_of_sample
from jaxagents.learners.replay import replay_agent
from jaxagents.losses.q import conservative_term, double_q_target, q_target
from jaxagents.ops.value_distributions import select_action
from jaxagents.policies.epsilon_greedy import make_epsilon_greedy
from jaxagents.types import Agent, Array, Environment, Learner, Params, PyTree, Sample
from jaxagents.values.q_function import QFunction


def make_conservative_q(
    q_function: QFunction,
    optimizer: optax.GradientTransformation,
    *,
    coefficient: float = 1.0,
    axis_name: str | None = None,
    **options: Any,
) -> Learner:
    """Makes DQN that adds `coefficient (log sum_a exp Q(s, a) - Q(s, a_data))` to its loss.

    Args:
        q_function: of expectations, without noise.
        optimizer: an optax transformation.
        coefficient: alpha, in units of the value; not below 0.
        axis_name: see `make_dqn`.
        **options: further arguments of `make_dqn`, but for its slots.

    Returns:
        The learner.

    Raises:
        ValueError: a number is out of its range, or the function is noisy.

    References:
        Kumar et al. (2020), Conservative Q-learning for offline reinforcement learning, equation 4.
    """
    if coefficient < 0.0:
        raise ValueError(f"`coefficient` must not be below 0, got {coefficient}; try 1.")
    if q_function.draw_noise is not None:
        raise ValueError("`value` must be without noise for conservative Q-learning; try noise_scale=null.")

    def objective(
        network: Params,
        target_network: Params,
        batch: Sample,
        *,
        discount: Array,
        loss: Callable[..., tuple[Array, dict[str, PyTree]]],
        double: bool,
    ) -> tuple[Array, tuple[dict[str, Array], Array, dict[str, PyTree]]]:
        values, view = values_of_sample(
            q_function,
            network,
            target_network,
            batch,
            jax.random.key(0),  # Of the noise, of which there is none.
            discount=discount,
            num_steps=None,
            burn_in=0,
            axis_name=axis_name,
        )
        target = jax.lax.stop_gradient((double_q_target if double else q_target)(view))
        chosen = select_action(values, view.action)
        losses, noted = loss(chosen, target)
        term, error = conservative_term(values, view, coefficient=coefficient), jnp.abs(target - chosen)
        total = jnp.mean(batch.weight[None] * (losses + term))
        metrics = {"loss": total, "conservative_term": jnp.mean(term), "absolute_error": jnp.mean(error)}
        return total, (metrics | {"q": jnp.mean(values)}, jnp.mean(error, axis=0), noted)

    return make_dqn(q_function, optimizer, objective=objective, axis_name=axis_name, **options)


def make_agent(environment: Environment, *, value: Callable[..., QFunction], **options: Any) -> Agent:
    """Assembles conservative Q-learning for an environment.

    Args:
        environment: gives the spaces.
        value: `(observation_space, action_space) -> QFunction`.
        **options: of `make_conservative_q` and of `replay_agent`.
    """
    q_function = value(environment.observation_space, environment.action_space)
    make_learner = partial(make_conservative_q, q_function)
    return replay_agent(make_learner, make_epsilon_greedy(q_function), environment, **options)
