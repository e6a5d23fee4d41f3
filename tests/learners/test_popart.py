"""PopArt: units of values by hand, outputs that they do not change, gradients in their units, and PPO with it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners.popart import rescale_values, with_value_scale
from jaxagents.learners.ppo import make_ppo
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import make_actor_critic
from jaxagents.types import ActorCritic, Box, Discrete, PolicyInput
from tests.fakes import make_rollout

KEY = jax.random.key(0)
INNER = make_actor_critic(Box((2,)), Discrete(2), encoder=MLP((3,)))
SCALED = with_value_scale(INNER)
OBSERVATION = jnp.array([[[1.0, -2.0], [0.5, 3.0], [0.0, 1.0]]])


def value_of(params, actor_critic=SCALED):
    inputs = PolicyInput(observation=OBSERVATION, first=jnp.zeros((1, 3), bool))
    return actor_critic.apply(params, ((), ()), inputs)[2]


def test_units_follow_the_targets_and_no_value_changes():
    params = SCALED.init(KEY)
    np.testing.assert_allclose(value_of(params), value_of(params["network"], INNER), rtol=1e-6)
    after = rescale_values(params, jnp.array([[400.0, 0.0, 800.0]]), 0.5)
    # Half of the mean 400, and of the mean square 800,000 / 3, plus half of 1.
    np.testing.assert_allclose(after["returns"]["mean"], 200.0)
    np.testing.assert_allclose(after["returns"]["square"], 400_000 / 3 + 0.5, rtol=1e-6)
    np.testing.assert_allclose(value_of(after), value_of(params), atol=2e-4)
    later = rescale_values(after, jnp.array([-5.0]), 0.9)
    np.testing.assert_allclose(value_of(later), value_of(params), atol=5e-4)
    # What the network says has moved: (value - mean) / scale.
    scale = np.sqrt(400_000 / 3 + 0.5 - 200.0**2)
    np.testing.assert_allclose(value_of(after["network"], INNER), (value_of(params) - 200.0) / scale, rtol=1e-4)


def test_gradients_are_those_of_errors_in_units_of_the_scale():
    params = rescale_values(SCALED.init(KEY), jnp.array([400.0, 0.0, 800.0]), 1.0)
    target, scale = jnp.array([[100.0, 900.0, 0.0]]), np.sqrt(800_000 / 3 - 400.0**2)

    def raw(params):
        return 0.5 * jnp.sum(jnp.square(value_of(params) - target))

    def in_units(network):
        return 0.5 * jnp.sum(jnp.square(value_of(network, INNER) - (target - 400.0) / scale))

    found, expected = jax.grad(raw)(params), jax.grad(in_units)(params["network"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), found["network"], expected)
    assert not any(jax.tree.leaves(found["returns"]))


def rollout(reward):
    """Returns one step that terminates: the target of every step is its reward."""
    ones = jnp.ones((1, 3))
    return make_rollout(
        carry=SCALED.initial_carry((3,)),
        observation=OBSERVATION,
        action=jnp.zeros((1, 3), jnp.int32),
        behavior_log_prob=jnp.log(0.5 * ones),
        reward=jnp.asarray([reward]),
        terminated=ones > 0,
        first=ones > 0,
    )


def test_ppo_learns_in_units_of_its_targets():
    options = {"num_epochs": 1, "num_minibatches": 1, "value_coefficient": 1.0}
    learner = make_ppo(SCALED, optax.sgd(0.1), popart_rate=1.0, **options)
    before = learner.init(KEY)
    after, _ = jax.jit(learner.update)(before, KEY, rollout([1000.0, 0.0, 2000.0]))
    scale = np.sqrt(5e6 / 3 - 1e6)
    np.testing.assert_allclose(after.params["returns"]["mean"], 1000.0, rtol=1e-6)
    # The bias goes by the mean error in units of the scale: the targets have a mean of 0 in them.
    values = (np.asarray(value_of(before.params)) - 1000.0) / scale
    bias = after.params["network"]["critic"]["head"]["params"]["Dense_0"]["bias"][0]
    np.testing.assert_allclose(bias, (0.0 - 1000.0) / scale - 0.1 * np.mean(values), rtol=1e-4)


def test_rewards_a_thousand_times_as_large_are_learned_from_alike():
    learner = make_ppo(SCALED, optax.sgd(0.1), num_epochs=2, num_minibatches=1, popart_rate=0.3)
    update, ends = jax.jit(learner.update), []
    for unit in (1.0, 1000.0):
        state = learner.init(KEY)
        start = {"mean": jnp.float32(0.0), "square": jnp.float32(unit**2)}
        state = state.replace(params={**state.params, "returns": start})
        for reward in ([1.0, 0.0, 2.0], [0.5, -1.0, 3.0], [0.0, 0.0, 4.0]):
            state, _ = update(state, KEY, rollout([unit * number for number in reward]))
        ends.append(state.params)
    small, large = ends
    assert float(small["returns"]["mean"]) > 0.5
    np.testing.assert_allclose(large["returns"]["mean"], 1000.0 * small["returns"]["mean"], rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), large["network"], small["network"]
    )
    np.testing.assert_allclose(value_of(large), 1000.0 * value_of(small), rtol=1e-3, atol=1e-2)
    moved = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), small["network"], SCALED.init(KEY)["network"])
    assert min(jax.tree.leaves(moved)) > 1e-4, moved


def test_policies_without_a_linear_layer_of_values_are_refused():
    table = ActorCritic(init=lambda key: {"critic": {}}, initial_carry=lambda shape: (), apply=None)
    with pytest.raises(ValueError, match="`popart_rate` must be null for a policy without a linear layer of values"):
        with_value_scale(table)
