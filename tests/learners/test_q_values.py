"""Values along sequences: what a memory holds there, what is beyond the ends of episodes, and who draws which noise."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners.dqn import make_dqn
from jaxagents.learners.q_values import values_of_sample
from jaxagents.losses.q import q_target
from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import MLP
from jaxagents.ops.value_distributions import expected_values
from jaxagents.types import Box, Discrete, PolicyInput, Sample
from jaxagents.values.distributions import implicit_quantiles
from jaxagents.values.q_function import QFunction, make_q_function
from tests.fakes import make_transition

KEY = jax.random.key(0)


def apply_sum(params, carry, inputs):
    """The value of an action is its parameter times the sum of the observations of the episode."""

    def step(total, step_inputs):
        observation, first = step_inputs
        total = jnp.where(first, 0.0, total) + observation
        return total, total

    carry, total = jax.lax.scan(step, carry, (inputs.observation, inputs.first))
    return carry, params[None, None] * total[..., None]


SUM = QFunction(init=lambda key: jnp.array([1.0, 2.0]), apply=apply_sum, initial_carry=jnp.zeros)
# No memory: the value of an action is its parameter times the observation.
NOW = QFunction(
    init=SUM.init, apply=lambda params, carry, inputs: (carry, params[None, None] * inputs.observation[..., None])
)
OPTIONS = {"discount": jnp.float32(0.5), "num_steps": 1, "burn_in": 0, "axis_name": None}


def column(values, dtype=jnp.float32):
    """Returns `[S, 1]`."""
    return jnp.asarray(values, dtype)[:, None]


# The second step is cut off, and the last one terminates.
STEPS = make_transition(
    observation=column([1.0, 10.0, 100.0, 1000.0]),
    action=column([0, 1, 0, 1], jnp.int32),
    reward=column([1.0, 2.0, 3.0, 4.0]),
    terminated=column([0, 0, 0, 1], bool),
    truncated=column([0, 1, 0, 0], bool),
    next_observation=column([10.0, 20.0, 1000.0, 2000.0]),
    first=column([0, 0, 1, 0], bool),
)


def sample(transition, carry=(), batch_size=1):
    return Sample(transition=transition, weight=jnp.ones(batch_size), carry=carry)


def test_memory_burns_in_from_the_stored_carry_by_hand():
    """The carry before the first step was 5."""
    online, target = jnp.array([1.0, 2.0]), jnp.array([10.0, 20.0])
    batch = sample(STEPS, jnp.array([5.0]))
    values, view = values_of_sample(SUM, online, target, batch, KEY, **(OPTIONS | {"burn_in": 1}))
    totals = np.array([16.0, 100.0, 1100.0])
    successors = np.array([36.0, 1100.0, 3100.0])  # The true one of the step that is cut off, 16 + 20.
    np.testing.assert_allclose(values[:, 0], totals[:, None] * [1.0, 2.0])
    np.testing.assert_allclose(view.target_values[:, 0], totals[:, None] * [10.0, 20.0])
    np.testing.assert_allclose(view.next_values[:, 0], successors[:, None] * [10.0, 20.0])
    np.testing.assert_allclose(view.next_selector[:, 0], successors[:, None] * [1.0, 2.0])
    np.testing.assert_array_equal(view.action[:, 0], [1, 0, 1])
    np.testing.assert_allclose(view.reward[:, 0], [2.0, 3.0, 4.0])
    np.testing.assert_allclose(view.discount[:, 0], [0.5, 0.5, 0.0])


def test_every_step_has_its_n_step_target_by_hand():
    values, view = values_of_sample(NOW, jnp.ones(2), jnp.ones(2), sample(STEPS), KEY, **(OPTIONS | {"num_steps": 2}))
    np.testing.assert_allclose(values[:, 0, 0], [1.0, 10.0, 100.0])
    np.testing.assert_allclose(view.reward[:, 0], [1.0 + 0.5 * 2.0, 2.0, 3.0 + 0.5 * 4.0])
    np.testing.assert_allclose(view.discount[:, 0], [0.25, 0.5, 0.0])
    np.testing.assert_allclose(view.next_values[:, 0, 0], [20.0, 20.0, 2000.0])


@pytest.mark.exhaustive
def test_memory_is_a_row_of_steps_like_any_other():
    """Values of a recurrent network are those of one step after the other, whatever is burnt in."""
    q_function = make_q_function(Box((3,)), Discrete(2), encoder=MLP((4,)), memory=GRU(hidden_size=3))
    network, target = q_function.init(KEY), q_function.init(jax.random.key(1))
    generator = np.random.default_rng(0)
    transition = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (4, 2)), STEPS)
    seen, following = (jnp.asarray(generator.normal(size=(4, 2, 3)), jnp.float32) for _ in range(2))
    batch = sample(transition.replace(observation=seen, next_observation=following), jnp.full((2, 3), 0.5), 2)
    evaluate = partial(values_of_sample, q_function)
    whole, burnt = (
        jax.jit(partial(evaluate, **(OPTIONS | {"burn_in": burn_in})))(network, target, batch, KEY)
        for burn_in in (0, 2)
    )
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x[2:], y, rtol=1e-5, atol=1e-6),
        (whole[0], whole[1].next_values, whole[1].next_selector),
        (burnt[0], burnt[1].next_values, burnt[1].next_selector),
    )
    # No gradient flows through what is burnt in, and none to the targets.
    to_seen = jax.grad(
        lambda seen: evaluate(
            network,
            target,
            batch.replace(transition=batch.transition.replace(observation=seen)),
            KEY,
            **(OPTIONS | {"burn_in": 2}),
        )[0].sum()
    )(seen)
    assert np.all(to_seen[:2] == 0.0) and np.all(np.any(to_seen[2:] != 0.0, axis=-1))


def test_priority_mixes_the_largest_and_the_mean_error():
    """Errors of 2 - 10, 3 - 100 and 4 - 2 * 1000 and a share of 0.9."""
    learner = make_dqn(NOW, optax.sgd(0.0), discount=0.0, num_steps=1, burn_in=1, priority_max_share=0.9)
    state = learner.init(KEY, {"network": jnp.array([1.0, 2.0])})
    _, metrics = learner.update(state, KEY, sample(STEPS))
    errors = np.array([2.0 * 10.0 - 2.0, 100.0 - 3.0, 2.0 * 1000.0 - 4.0])
    np.testing.assert_allclose(metrics["priority"], [0.9 * errors.max() + 0.1 * errors.mean()], rtol=1e-6)


@pytest.mark.exhaustive
def test_noise_is_that_of_the_sequence_on_any_number_of_devices():
    q_function = make_q_function(
        Box((3,)),
        Discrete(2),
        encoder=MLP((4,)),
        noise_scale=0.5,
        distribution=implicit_quantiles(num_fractions=3, num_cosines=2),
    )
    network = q_function.init(KEY)
    transition = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (4, 4)), STEPS)
    seen = jnp.ones((4, 4, 3))
    batch = sample(transition.replace(observation=seen, next_observation=seen), batch_size=4)
    values, view = jax.jit(partial(values_of_sample, q_function, **OPTIONS))(network, network, batch, KEY)
    # The input is the same everywhere; noise differs between steps, sequences, networks and places.
    for tree in (values, view.target_values, view.next_values, view.next_selector):
        assert np.unique(np.round(np.asarray(expected_values(tree))[..., 0], 6)).size == 16
    assert not np.allclose(values.mean(), view.target_values.mean())
    assert not np.allclose(view.next_values.mean(), view.next_selector.mean())
    halves = jax.tree.map(lambda leaf: jnp.stack(jnp.split(leaf, 2, axis=leaf.ndim > 1)), batch)
    halves = halves.replace(weight=jnp.ones((2, 2)))
    of_device = partial(values_of_sample, q_function, **(OPTIONS | {"axis_name": "device"}))
    split, _ = jax.jit(jax.vmap(of_device, (None, None, 0, None), axis_name="device"))(network, network, halves, KEY)
    joined = np.concatenate(np.asarray(split.quantiles), axis=1)
    np.testing.assert_allclose(joined, values.quantiles, rtol=1e-5)


@pytest.mark.slow
def test_implicit_quantiles_are_of_as_many_fractions_as_in_the_paper():
    """N = 6 for what is predicted and for its targets; the mean of 2 others chooses the action of the successor."""
    distribution = implicit_quantiles(num_fractions=6, num_acting_fractions=2, num_cosines=2)
    q_function = make_q_function(Box(()), Discrete(2), encoder=MLP((4,), observation_ndim=0), distribution=distribution)
    network, target = q_function.init(KEY), q_function.init(jax.random.key(1))
    values, view = values_of_sample(q_function, network, target, sample(STEPS), KEY, **OPTIONS)
    shapes = [each.quantiles.shape[-1] for each in (values, view.next_values, view.next_target_selector)]
    assert shapes == [6, 6, 2] and view.next_selector.quantiles.shape[-1] == 2
    assert q_function.draw_noise(KEY, 4)["fractions"].shape == (4, 2)
    # The target network chooses, by its own fractions.
    noise = {"fractions": view.next_target_selector.fractions}
    seen = PolicyInput(observation=STEPS.next_observation, first=STEPS.first, noise=noise)
    np.testing.assert_allclose(
        view.next_target_selector.quantiles, q_function.apply(target, (), seen)[1].quantiles, rtol=1e-5
    )
    others = view.next_target_selector.replace(quantiles=-view.next_target_selector.quantiles)
    chosen, least = (q_target(view.replace(next_target_selector=selector)) for selector in (others, None))
    worst = jnp.argmin(view.next_target_selector.mean(), axis=-1)
    expected = view.next_values.select(worst).backup(view.reward, view.discount)
    np.testing.assert_allclose(chosen, expected, rtol=1e-5)
    assert not np.allclose(chosen, least)


@pytest.mark.parametrize(("num_steps", "burn_in", "way_out"), [(5, 0, 5), (1, 4, 5), (None, 4, 5), (3, 2, 5)])
def test_refuses_sequences_that_are_too_short(num_steps, burn_in, way_out):
    with pytest.raises(ValueError, match=f"`sequence_length` must be at least .*, got 4 for .*; try {way_out}"):
        values_of_sample(
            NOW,
            jnp.ones(2),
            jnp.ones(2),
            sample(STEPS),
            KEY,
            **(OPTIONS | {"num_steps": num_steps, "burn_in": burn_in}),
        )
