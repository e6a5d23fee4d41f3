"""A learner of an adapter: the frozen parameters stay as they are, and nothing of their size is kept for them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners import adapted, supervised
from jaxagents.learners.combinators import params_to_act
from jaxagents.networks.adapters import Adapter, combine, full, lora
from jaxagents.types import Collector

ADAPTER = lora(pattern="kernel$", rank=2)
NO_COLLECTOR = Collector(init=None, collect=None, steps_per_collect=1, divided_option="num_rows")


def num_elements(tree):
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(tree))


@pytest.fixture(scope="module")
def agent(lake, speak):
    inner = partial(supervised.make_agent, optimizer=lambda num_updates: optax.adam(1e-2))
    policy = partial(speak, num_turns=2, context_turns=1)
    return adapted.make_agent(lake, inner=inner, adapter=ADAPTER, policy=policy, only_success=False)


@pytest.fixture(scope="module")
def episodes(lake, agent):
    from jaxagents.language.demonstrations import make_demonstrations

    return jax.jit(make_demonstrations(lake, agent.policy))(jax.random.key(1), jnp.arange(4, dtype=jnp.int32))


def test_only_the_adapter_learns(agent, episodes):
    learner = agent.make_learner(NO_COLLECTOR, 4)
    state = jax.jit(learner.init)(jax.random.key(0))
    assert set(state.params) == {"base", "adapter"}
    # Adam keeps two numbers for every parameter that learns, and none of the frozen ones.
    assert num_elements(state.inner.opt_state) < 2.5 * num_elements(state.params["adapter"])
    after, metrics = jax.jit(learner.update)(state, jax.random.key(1), episodes)
    assert metrics["gradient_norm"] > 0.0
    jax.tree.map(np.testing.assert_array_equal, after.base, state.base)
    moved = [np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (after.inner.params, state.inner.params)))]
    assert any(moved)
    jax.tree.map(np.testing.assert_array_equal, params_to_act(learner, after), after.params)


def test_parameters_of_an_adapter_may_be_a_tuple(lake, speak):
    # Learners with partners act with a tuple, too, of their own parameters and the partner's.
    two = Adapter(
        init=lambda key, params: (ADAPTER.init(key, params), jnp.zeros(())),
        merge=lambda params, own: ADAPTER.merge(params, own[0]),
    )
    inner = partial(supervised.make_agent, optimizer=lambda num_updates: optax.adam(1e-2))
    policy = partial(speak, num_turns=2, context_turns=1)
    learner = adapted.make_agent(lake, inner=inner, adapter=two, policy=policy).make_learner(NO_COLLECTOR, 4)
    state = learner.init(jax.random.key(0))
    acting = params_to_act(learner, state)
    assert set(acting) == {"base", "adapter"} and len(acting["adapter"]) == 2
    jax.tree.map(np.testing.assert_array_equal, acting, state.params)


@pytest.mark.slow
def test_it_goes_on_from_states_and_parameters(agent):
    learner = agent.make_learner(NO_COLLECTOR, 4)
    state = learner.init(jax.random.key(0))
    again = learner.init(jax.random.key(5), state)
    jax.tree.map(np.testing.assert_array_equal, again.params, state.params)
    again = learner.init(jax.random.key(5), state.params)
    jax.tree.map(np.testing.assert_array_equal, again.params, state.params)
    plain = learner.init(jax.random.key(5), state.base)  # Of a stage without adapters.
    jax.tree.map(np.testing.assert_array_equal, plain.base, state.base)
    merged = ADAPTER.merge(plain.base, plain.params["adapter"])
    jax.tree.map(np.testing.assert_array_equal, merged, state.base)


@pytest.mark.exhaustive
def test_policies_of_arrays_and_critics():
    from jaxagents.environments.adapters.gymnax import make_environment
    from jaxagents.learners import ppo
    from jaxagents.networks.torsos import MLP
    from jaxagents.policies.actor_critic import make_actor_critic
    from jaxagents.rollouts.unroll import make_rollout_collector

    environment = make_environment("CartPole-v1")
    policy = partial(make_actor_critic, encoder=MLP(hidden_sizes=(8, 8)))
    inner = partial(ppo.make_agent, optimizer=lambda num_updates: optax.adam(1e-2), num_minibatches=1)
    adapter = {"lora": lora(pattern="actor.*kernel$", rank=1), "critic": full(pattern="critic")}
    agent = adapted.make_agent(environment, inner=inner, adapter=adapter, policy=policy)
    collector = make_rollout_collector(environment, agent.policy, num_envs=4, num_steps=8)
    learner = agent.make_learner(collector, 2)
    state = learner.init(jax.random.key(0))
    merged = combine(adapter).merge(state.params["base"], state.params["adapter"])
    jax.tree.map(np.testing.assert_array_equal, merged, state.base)
    collected = collector.init(jax.random.key(1), params_to_act(learner, state))
    _, batch, _ = jax.jit(collector.collect)(collected, params_to_act(learner, state), jax.random.key(2))
    after, _ = jax.jit(learner.update)(state, jax.random.key(3), batch)
    jax.tree.map(np.testing.assert_array_equal, after.base, state.base)
    for name in ("lora", "critic"):
        parts = [state.params["adapter"][name] for state in (state, after)]
        assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, parts), strict=True))
