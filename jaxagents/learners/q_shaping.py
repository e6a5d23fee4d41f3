"""Q-shaping (Wu, 2024) and PVP (Peng et al., 2023): double DQN whose loss is a sum of terms."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxagents.learners.dqn import DQNState, Minimised, make_dqn
from jaxagents.learners.replay import replay_agent
from jaxagents.learners.settings import Bound
from jaxagents.losses.q_shaping import QTermView
from jaxagents.ops.value_distributions import select_action
from jaxagents.policies.epsilon_greedy import make_epsilon_greedy
from jaxagents.types import Agent, Array, Discrete, Environment, Learner, Metrics, Params, QView, Sample
from jaxagents.values.q_function import QFunction

Term = Callable[[QTermView], Array]
_NUM_UPDATES = "num_updates"  # Name under which a sample's steps carry the number of updates to the objective.


def make_q_with_terms(
    q_function: QFunction,
    optimizer: optax.GradientTransformation,
    *,
    terms: Mapping[str, Term],
    axis_name: str | None = None,
    **options: Any,
) -> Learner:
    """Makes a DQN that minimises `mean(weight * sum of terms)`.

    Args:
        q_function: Q-function with expectations, without memory and noise.
        optimizer: an optax transformation.
        terms: terms by name, `(view: QTermView) -> [L, B]`, see `losses.q_shaping`.
        axis_name: see `make_dqn`.
        **options: further arguments of `make_dqn`, except its slots.

    Returns:
        The learner; metrics include the mean of every term. The priority is the temporal difference, whatever the
        terms.

    Raises:
        ValueError: there are no terms, a number is out of its range, or the function is noisy or has a memory.
    """
    if not terms:
        raise ValueError("`terms` must name at least one term, got none; try losses.q_shaping.temporal_difference.")
    if q_function.draw_noise is not None or jax.tree.leaves(q_function.initial_carry((1,))):
        raise ValueError("`value` must be without noise and memory for terms; try noise_scale=null and memory=null.")

    def objective(
        network: Params,
        target_network: Params,
        values: Array,
        view: QView,
        batch: Sample,
        *,
        slots: Mapping[str, Bound],
        share: Array,
    ) -> Minimised:
        del network, target_network, share
        target, chosen = jax.lax.stop_gradient(slots["target"](view)[0]), select_action(values, view.action)
        td_loss, summary = slots["loss"](chosen, target)
        done = view.transition.extras[_NUM_UPDATES]
        q_view = QTermView(q=values, td_loss=td_loss, transition=view.transition, num_updates=done)
        losses = {name: batch.weight[None] * term(q_view) for name, term in terms.items()}
        means = {name: jnp.mean(value) for name, value in losses.items()}
        total, error = sum(means.values()), jnp.abs(target - chosen)
        metrics = {"loss": total, "absolute_error": jnp.mean(error), "q": jnp.mean(values), **means}
        return total, (metrics, jnp.mean(error, axis=0), summary)  # type: ignore[return-value]

    learner = make_dqn(q_function, optimizer, objective=objective, axis_name=axis_name, **options)

    def update(state: DQNState, key: Array, batch: Sample) -> tuple[DQNState, Metrics]:
        transition = batch.transition
        done = jnp.broadcast_to(state.num_updates, transition.terminated.shape)
        transition = transition.replace(extras={**transition.extras, _NUM_UPDATES: done})
        return learner.update(state, key, batch.replace(transition=transition))

    return learner._replace(update=update)


def make_agent(environment: Environment, *, value: Callable[..., QFunction], **options: Any) -> Agent:
    """Assembles Q-learning with terms for an environment.

    Args:
        environment: environment that defines the spaces.
        value: `(observation_space, action_space) -> QFunction`.
        **options: further arguments of `make_q_with_terms` and of `replay_agent`; rollouts must contain what the terms
            read.

    Raises:
        ValueError: actions are not discrete, or settings are inconsistent.
    """
    if not isinstance(environment.action_space, Discrete) or environment.num_agents:
        raise ValueError(
            f"`environment` must have one agent and Discrete actions for Q-learning with terms, got "
            f"{environment.action_space} in {environment.name!r}; try algorithm=sac or algorithm=dqn."
        )
    q_function = value(environment.observation_space, environment.action_space)
    return replay_agent(partial(make_q_with_terms, q_function), make_epsilon_greedy(q_function), environment, **options)
