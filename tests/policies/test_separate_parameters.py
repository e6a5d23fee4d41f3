"""Parameters of its own for every agent, of policies, actor-critics and action values."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.recurrent import GRU
from jaxagents.networks.teams import Entry
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import as_policy, make_actor_critic
from jaxagents.policies.teams import separate_parameters
from jaxagents.types import Box, Discrete, PolicyInput
from jaxagents.values.q_function import make_q_function

KEY = jax.random.key(0)
ONE = make_actor_critic(Box((3,)), Discrete(2), encoder=MLP((4,)), memory=GRU(hidden_size=5))
Q = make_q_function(Box((3,)), Discrete(2), encoder=MLP((4,)))


@pytest.mark.slow
def test_every_agent_acts_by_its_own_parameters():
    team, shape = separate_parameters(ONE, 2), (3, 4, 2)
    params, carry = team.init(KEY), jax.tree.map(lambda leaf: leaf + 0.5, team.initial_carry((4, 2)))
    observation = jax.random.normal(KEY, (*shape, 3))
    first = jnp.zeros((3, 4), bool).at[1, 2].set(True)
    mask = jnp.ones((*shape, 2), bool).at[0, 0, 1, 0].set(False)
    new_carry, distribution, value = team.apply(
        params, carry, PolicyInput(observation=observation, first=first, action_mask=mask)
    )
    for agent in range(2):
        own = jax.tree.map(lambda leaf, agent=agent: leaf[agent], params)
        own_carry = jax.tree.map(lambda leaf, agent=agent: leaf[:, agent], carry)
        expected = ONE.apply(
            own,
            own_carry,
            PolicyInput(observation=observation[:, :, agent], first=first, action_mask=mask[:, :, agent]),
        )
        actual = new_carry, distribution, value
        for index, (a, b) in enumerate(zip(actual, expected, strict=True)):
            jax.tree.map(
                lambda x, y, axis=1 if index == 0 else 2, agent=agent: np.testing.assert_allclose(
                    jnp.take(x, agent, axis=axis), y, rtol=1e-5
                ),
                a,
                b,
            )
    assert not np.allclose(value[:, :, 0], value[:, :, 1])
    _, same = as_policy(team).apply(params, carry, PolicyInput(observation=observation, first=first, action_mask=mask))
    np.testing.assert_array_equal(same.logits, distribution.logits)


def test_action_values_of_every_agent():
    team = separate_parameters(Q, 2)
    params, observation = team.init(KEY), jax.random.normal(KEY, (3, 4, 2, 3))
    inputs = PolicyInput(observation=observation, first=jnp.zeros((3, 4), bool))
    _, q = team.apply(params, (), inputs)
    assert q.shape == (3, 4, 2, 2)
    for agent in range(2):
        own = jax.tree.map(lambda leaf, agent=agent: leaf[agent], params)
        _, expected = Q.apply(own, (), inputs.replace(observation=observation[:, :, agent]))
        np.testing.assert_allclose(q[:, :, agent], expected, rtol=1e-5)


def test_other_numbers_of_agents_are_refused():
    with pytest.raises(ValueError, match="`num_agents` must be at least 1 .* got 0; try sharing"):
        separate_parameters(ONE, 0)
    team = separate_parameters(ONE, 2)
    observation, first = jnp.ones((1, 1, 3, 3)), jnp.ones((1, 1), bool)
    with pytest.raises(ValueError, match=r"`observation` must be \[T, B, 2, ...\] .* got 3 agents"):
        team.apply(team.init(KEY), team.initial_carry((1, 3)), PolicyInput(observation=observation, first=first))


@pytest.mark.exhaustive
def test_critics_that_see_more_than_actors():
    space = {"own": Box((2,)), "team": Box((3,))}
    own, team = Entry("own", MLP((4,))), Entry("team", MLP((4,)))
    make = partial(make_actor_critic, space, Discrete(2), encoder=own, critic_encoder=team)
    actor_critic = make()
    params = actor_critic.init(KEY)
    observation = {"own": jnp.ones((1, 1, 2, 2)), "team": jnp.ones((1, 1, 2, 3))}
    other = observation | {"team": jnp.zeros((1, 1, 2, 3))}
    first = jnp.ones((1, 1), bool)
    _, distribution, value = actor_critic.apply(params, ((), ()), PolicyInput(observation=observation, first=first))
    _, same, changed = actor_critic.apply(params, ((), ()), PolicyInput(observation=other, first=first))
    np.testing.assert_array_equal(distribution.logits, same.logits)
    assert not np.allclose(value, changed)
    with pytest.raises(ValueError, match="`critic_encoder` must be null when `shared` is true; try `shared: false`"):
        make(shared=True)
