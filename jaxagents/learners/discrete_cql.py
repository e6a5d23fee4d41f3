"""CQL for discrete actions (Kumar et al., 2020): DQN on fixed data, which keeps the values of unseen actions low."""

from collections.abc import Callable
from functools import partial
from typing import Any

from jaxagents.learners.q_shaping import Term, make_q_with_terms
from jaxagents.learners.replay import replay_agent
from jaxagents.losses.q_shaping import conservative_term, temporal_difference
from jaxagents.policies.epsilon_greedy import make_epsilon_greedy
from jaxagents.types import Agent, Environment
from jaxagents.values.q_function import QFunction


def make_agent(
    environment: Environment, *, value: Callable[..., QFunction], coefficient: float = 1.0, **options: Any
) -> Agent:
    """Assembles DQN with `coefficient (log sum_a exp Q(s, a) - Q(s, a_data))` added to its loss.

    Args:
        environment: environment that defines the spaces.
        value: `(observation_space, action_space) -> QFunction`, see `make_q_with_terms`.
        coefficient: alpha, in units of the value; non-negative.
        **options: further arguments of `make_q_with_terms` and of `replay_agent`.

    Raises:
        ValueError: a number is out of its range, or see `make_q_with_terms`.

    References:
        Kumar et al. (2020), Conservative Q-learning for offline reinforcement learning, equation 4.
    """
    if coefficient < 0.0:
        raise ValueError(f"`coefficient` must not be below 0, got {coefficient}; try 1.")
    q_function = value(environment.observation_space, environment.action_space)
    held_down = partial(conservative_term, coefficient=coefficient)
    terms: dict[str, Term] = {"td": temporal_difference, "conservative_term": held_down}
    make_learner = partial(make_q_with_terms, q_function, terms=terms)
    return replay_agent(make_learner, make_epsilon_greedy(q_function), environment, **options)
