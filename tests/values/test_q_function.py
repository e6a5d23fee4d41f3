"""Shapes, independence and scaling of action values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import CNN, MLP
from jaxagents.ops.value_distributions import CategoricalValues, QuantileValues, expected_values
from jaxagents.types import Box, Discrete, PolicyInput
from jaxagents.values.distributions import categorical, implicit_quantiles, quantiles
from jaxagents.values.q_function import make_q_function, make_twin_q


def given(observation, **fields):
    return PolicyInput(observation=observation, first=jnp.zeros(observation.shape[:2], bool), **fields)


@pytest.mark.parametrize("dueling", [False, True])
def test_values_of_all_actions_of_every_step(dueling):
    q_function = make_q_function(Box((3,)), Discrete(4), encoder=MLP((8,)), dueling=dueling)
    params = q_function.init(jax.random.key(0))
    observation = jax.random.normal(jax.random.key(1), (5, 2, 3))
    carry, q = q_function.apply(params, (), given(observation))
    assert carry == q_function.initial_carry((2,)) == () and q_function.draw_noise is None
    assert q.shape == (5, 2, 4) and q.dtype == jnp.float32
    _, one = q_function.apply(params, (), given(observation[3:4, 1:]))
    np.testing.assert_allclose(one[0, 0], q[3, 1], rtol=1e-5, atol=1e-6)
    _, jitted = jax.jit(q_function.apply)(params, (), given(observation))
    np.testing.assert_allclose(jitted, q, rtol=1e-5, atol=1e-6)


def test_images_of_bytes_are_read():
    q_function = make_q_function(Box((6, 6, 2), 0, 255, np.uint8), Discrete(3), encoder=CNN((4,), hidden_sizes=(8,)))
    _, q = q_function.apply(q_function.init(jax.random.key(0)), (), given(jnp.ones((1, 2, 6, 6, 2), jnp.uint8)))
    assert q.shape == (1, 2, 3)


@pytest.mark.slow
def test_memory_remembers_until_the_episode_is_over():
    q_function = make_q_function(Box((3,)), Discrete(2), encoder=MLP((4,)), memory=GRU(hidden_size=5))
    params, carry = q_function.init(jax.random.key(0)), q_function.initial_carry((1,))
    observation = jnp.stack([jnp.ones((1, 3)), jnp.zeros((1, 3)), jnp.zeros((1, 3))])
    first = jnp.array([[True], [False], [True]])
    carry, q = q_function.apply(params, carry, given(observation).replace(first=first))
    assert carry.shape == (1, 5) and not np.allclose(q[1], q[2])
    _, afresh = q_function.apply(params, jnp.zeros((1, 5)), given(observation[:1] * 0.0))
    np.testing.assert_allclose(q[2], afresh[0], rtol=1e-5)


def test_memory_reads_what_was_done_and_paid_before():
    q_function = make_q_function(Box((3,)), Discrete(2), encoder=MLP((4,)), memory=GRU(hidden_size=5), history=True)
    params, carry = q_function.init(jax.random.key(0)), q_function.initial_carry((1,))
    assert params["torso"]["memory"]["params"]["input_kernel"].shape[0] == 4 + 2 + 1
    inputs = given(jnp.ones((1, 1, 3)), previous_action=jnp.ones((1, 1), jnp.int32), previous_reward=jnp.ones((1, 1)))

    def values(**fields):
        return np.asarray(q_function.apply(params, carry, inputs.replace(**fields))[1])

    assert not np.allclose(values(), values(previous_action=jnp.zeros((1, 1), jnp.int32)))
    assert not np.allclose(values(), values(previous_reward=jnp.zeros((1, 1))))
    # Before the first step of an episode, there was neither action 0 nor any other.
    opening = values(first=jnp.ones((1, 1), bool))
    forgotten = values(first=jnp.ones((1, 1), bool), previous_action=jnp.zeros((1, 1), jnp.int32))
    np.testing.assert_array_equal(opening, forgotten)
    assert not np.allclose(opening, values(previous_action=jnp.zeros((1, 1), jnp.int32)))
    with pytest.raises(
        ValueError, match="`memory` must be chosen for a Q-function of `history` .* got null; try policy"
    ):
        make_q_function(Box((3,)), Discrete(2), encoder=MLP((4,)), history=True)
    with pytest.raises(ValueError, match="`previous_action` must be kept for `history`, got None"):
        q_function.apply(params, carry, given(jnp.ones((1, 1, 3))))


KINDS = {
    "categorical": (categorical(low=-1.0, high=3.0, num_atoms=5), CategoricalValues, (4, 5)),
    "quantiles": (quantiles(num_quantiles=6), QuantileValues, (4, 6)),
    "implicit": (implicit_quantiles(num_acting_fractions=7, num_cosines=3), QuantileValues, (4, 7)),
}


@pytest.mark.parametrize("noise_scale", [None, 0.5])
@pytest.mark.parametrize("name", KINDS)
def test_distributions_of_every_action(name, noise_scale):
    distribution, kind, shape = KINDS[name]
    q_function = make_q_function(
        Box((3,)), Discrete(4), encoder=MLP((8,)), dueling=True, noise_scale=noise_scale, distribution=distribution
    )
    params, observation = q_function.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (5, 2, 3))
    apply = jax.jit(q_function.apply)
    _, values = apply(params, (), given(observation))
    assert isinstance(values, kind) and jax.tree.leaves(values)[0].shape == (5, 2, *shape)
    np.testing.assert_allclose(expected_values(values), values.mean())
    assert values.mean().shape == (5, 2, 4)
    if q_function.draw_noise is None:
        assert name != "implicit" and noise_scale is None
        return
    noise = jax.vmap(lambda key: q_function.draw_noise(key, 5), out_axes=1)(jax.random.split(jax.random.key(2), 2))
    assert all(leaf.shape[:2] == (5, 2) for leaf in jax.tree.leaves(noise))
    assert set(noise) == {"weights"} - ({"weights"} if noise_scale is None else set()) | (
        {"fractions"} if name == "implicit" else set()
    )
    _, drawn = apply(params, (), given(observation, noise=noise))
    assert not np.allclose(drawn.mean(), values.mean())
    # With an axis of agents, whose noise is that of the step.
    _, team = apply(params, (), given(observation[:, :, None], noise=noise))
    np.testing.assert_allclose(team.mean()[:, :, 0], drawn.mean(), rtol=1e-4, atol=1e-5)


def test_implicit_quantiles_depend_on_their_fractions_alone():
    """The quantile at a fraction is the same, whatever the others are."""
    distribution = implicit_quantiles(num_fractions=2, num_cosines=4)
    q_function = make_q_function(Box((3,)), Discrete(2), encoder=MLP((8,)), distribution=distribution)
    params, observation = q_function.init(jax.random.key(0)), jnp.ones((1, 1, 3))
    pairs = ([0.2, 0.9], [0.9, 0.4])
    quantiles = [
        q_function.apply(params, (), given(observation, noise={"fractions": jnp.array([[pair]])}))[1] for pair in pairs
    ]
    np.testing.assert_allclose(quantiles[0].fractions, [[pairs[0]]], rtol=1e-6)
    np.testing.assert_allclose(quantiles[0].quantiles[..., 1], quantiles[1].quantiles[..., 0], rtol=1e-5)
    assert not np.allclose(quantiles[0].quantiles[..., 0], quantiles[1].quantiles[..., 1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: categorical(low=1.0, high=1.0), "`low` must be less than `high`, and both finite, got 1.0 and 1.0"),
        (lambda: categorical(low=0.0, high=float("inf")), "`low` must be less than `high`, and both finite"),
        (lambda: categorical(low=0.0, high=1.0, num_atoms=1), "`num_atoms` must be at least 2, got 1"),
        (lambda: quantiles(num_quantiles=0), "`num_quantiles` must be at least 1, got 0"),
        (lambda: implicit_quantiles(num_acting_fractions=0), "`num_acting_fractions` must be at least 1, got 0"),
        (
            lambda: make_q_function(Box((3,)), Discrete(2), encoder=MLP(), noise_scale=0.0),
            "`noise_scale` must be positive, got 0.0",
        ),
    ],
)
def test_refuses_distributions_without_room(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_twins_differ_and_are_functions_of_observation_and_action():
    twin_q = make_twin_q(Box((3,)), Box((2,), -2.0, 2.0), encoder=MLP((8,)))
    params = twin_q.init(jax.random.key(0))
    observation, action = jnp.ones((4, 5, 3)), jnp.ones((4, 5, 2))
    q = twin_q.apply(params, observation, action)
    assert q.shape == (2, 4, 5)
    assert np.all(np.abs(q[0] - q[1]) > 1e-4)
    gradients = jax.grad(lambda o, a: twin_q.apply(params, o, a).sum(), (0, 1))(observation, action)
    assert all(np.all(np.any(gradient != 0.0, axis=-1)) for gradient in gradients)


def test_each_twin_learns_from_its_own_value():
    twin_q = make_twin_q(Box((3,)), Box((1,), -1.0, 1.0), encoder=MLP((4,)))
    params = twin_q.init(jax.random.key(0))
    gradient = jax.grad(lambda p: twin_q.apply(p, jnp.ones((1, 3)), jnp.ones((1, 1)))[0].sum())(params)
    assert all(np.all(leaf[1] == 0.0) for leaf in jax.tree.leaves(gradient))
    assert any(np.any(leaf[0] != 0.0) for leaf in jax.tree.leaves(gradient))


def test_actions_are_seen_squashed():
    """What the environment does not tell apart, the values do not: all actions far out are its bound."""
    observation = jnp.array([[0.3, -0.2]])
    unit = make_twin_q(Box((2,)), Box((1,), -1.0, 1.0), encoder=MLP((4,)))
    wide = make_twin_q(Box((2,)), Box((1,), 10.0, 30.0), encoder=MLP((4,)))
    params = unit.init(jax.random.key(0))
    far, further = (unit.apply(params, observation, jnp.array([[action]])) for action in (20.0, 1000.0))
    np.testing.assert_array_equal(far, further)
    np.testing.assert_array_equal(wide.apply(params, observation, jnp.array([[20.0]])), far)
    assert np.all(np.abs(far - unit.apply(params, observation, jnp.array([[-20.0]]))) > 1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_q_function(Box((3,)), Box((1,), -1.0, 1.0), encoder=MLP()), "`action_space` must be Discrete"),
        (lambda: make_twin_q(Box((3,)), Discrete(2), encoder=MLP()), "`action_space` must be a Box of rank 1"),
        (lambda: make_twin_q(Box((3, 3)), Box((1,), -1.0, 1.0), encoder=MLP()), "`observation_space` must be a Box"),
        (lambda: make_twin_q(Box((3,)), Box((1,)), encoder=MLP()), "`action_space` must be bounded"),
    ],
)
def test_refuses_other_spaces(make, message):
    with pytest.raises(ValueError, match=message):
        make()
