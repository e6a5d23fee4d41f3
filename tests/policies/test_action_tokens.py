"""Actions number by number and in one pass: bins, losses by hand, and the order of what is chosen."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.torsos import MLP
from jaxagents.policies.action_tokens import (
    bin_of,
    decoding_objective,
    make_parallel_policy,
    make_token_policy,
    middle_of,
)
from jaxagents.types import Box, PolicyInput
from tests.fakes import make_sample

KEY = jax.random.key(0)
SPACES = Box((2,)), Box((3,), -1.0, 1.0)
ENCODER = MLP((8,), activation="relu")


def given(rows):
    return PolicyInput(observation=jax.random.normal(KEY, (rows, 1, 2)), first=jnp.ones((rows, 1), bool))


def test_bins_are_equal_parts_of_the_range():
    np.testing.assert_array_equal(bin_of(jnp.array([-1.0, -0.51, -0.49, 0.0, 0.99, 1.0]), 4), [0, 0, 1, 2, 3, 3])
    np.testing.assert_allclose(middle_of(jnp.arange(4), 4), [-0.75, -0.25, 0.25, 0.75])
    np.testing.assert_array_equal(bin_of(middle_of(jnp.arange(7), 7), 7), np.arange(7))


def biased(policy, bias):
    """The policy whose head says `bias` whatever it sees."""
    params = jax.tree.map(jnp.zeros_like, policy.init(KEY))
    return params | {"head": {"params": params["head"]["params"] | {"bias": jnp.asarray(bias)}}}


def test_losses_by_hand():
    observation, action = jnp.zeros((1, 2)), jnp.array([[-0.9, 0.1, 0.9]])
    numbers = make_parallel_policy(*SPACES, encoder=ENCODER)
    loss = numbers.loss(biased(numbers, [0.1, 0.1, 0.1]), observation, action)
    np.testing.assert_allclose(loss, [(1.0 + 0.0 + 0.8) / 3], rtol=1e-5)
    logits = [0.0, np.log(3.0)]  # a quarter and three
    expected = [-(np.log(0.25) + 2 * np.log(0.75)) / 3]  # bins 0, 1, 1
    tokens = make_token_policy(*SPACES, encoder=ENCODER, num_bins=2)
    np.testing.assert_allclose(tokens.loss(biased(tokens, logits), observation, action), expected, rtol=1e-5)
    bins = make_parallel_policy(*SPACES, encoder=ENCODER, num_bins=2)
    np.testing.assert_allclose(bins.loss(biased(bins, logits * 3), observation, action), expected, rtol=1e-5)


def test_a_token_depends_on_those_before_it_and_on_no_other():
    policy = make_token_policy(*SPACES, encoder=ENCODER, num_bins=4)
    params, observation = policy.init(KEY), jnp.ones((1, 2))

    def of(*action):
        return 3.0 * float(policy.loss(params, observation, jnp.array([action]))[0])

    # What the last number adds depends on the first one, and all actions together have probability one.
    change = [of(first, 0.1, 0.9) - of(first, 0.1, -0.9) for first in (-0.9, 0.9)]
    assert abs(change[0] - change[1]) > 1e-4
    terms = [
        sum(np.exp(-of(first, second, third)) for second, third in itertools.product((-0.9, -0.4, 0.1, 0.6), repeat=2))
        for first in (-0.9, -0.4, 0.1, 0.6)
    ]
    np.testing.assert_allclose(np.sum(terms), 1.0, rtol=1e-5)
    # Numbers of one bin are one token.
    assert of(0.6, 0.1, 0.1) == of(0.9, 0.1, 0.1)


def test_decoding_takes_the_likeliest_token_given_those_chosen():
    policy = make_token_policy(*SPACES, encoder=ENCODER, num_bins=4)
    params, inputs = policy.init(KEY), given(5)
    action = np.tanh(np.asarray(jax.jit(policy.apply)(params, (), inputs)[1].mode()))
    middles = np.asarray(middle_of(jnp.arange(4), 4))
    for row, chosen_row in enumerate(action[:, 0]):
        observation = inputs.observation[row]
        for place in range(3):
            # Of actions alike before the place, the likelihood up to it is highest for what was chosen: terms after it
            # are cancelled by summing over all that can follow.
            scores = []
            for middle in middles:
                start = (*chosen_row[:place], middle)
                whole = jnp.asarray([(*start, *rest) for rest in itertools.product(middles, repeat=2 - place)])
                seen = jnp.broadcast_to(observation, (len(whole), 2))
                scores.append(np.sum(np.exp(-3 * np.asarray(policy.loss(params, seen, whole)))))
            np.testing.assert_allclose(chosen_row[place], middles[int(np.argmax(scores))], atol=1e-3)


@pytest.mark.parametrize("num_bins", [None, 4])
def test_one_pass_gives_all_numbers(num_bins):
    policy = make_parallel_policy(*SPACES, encoder=ENCODER, num_bins=num_bins)
    bias = [0.5, -0.5, 0.0] if num_bins is None else [0, 0, 0, 1.0, 1.0, 0, 0, 0, 0, 1.0, 0, 0]
    _, distribution = policy.apply(biased(policy, bias), (), given(2))
    expected = [0.5, -0.5, 0.0] if num_bins is None else [0.75, -0.75, -0.25]
    np.testing.assert_allclose(np.tanh(distribution.mode()), np.broadcast_to(expected, (2, 1, 3)), atol=1e-5)


def test_the_objective_is_the_loss_of_squashed_actions():
    policy = make_parallel_policy(*SPACES, encoder=ENCODER)
    params, shape = policy.init(KEY), (1, 4)
    sample = make_sample(shape, observation=jnp.ones((*shape, 2)), action=jnp.full((*shape, 3), 0.3))
    given = decoding_objective(policy, params, KEY, sample)
    expected = policy.loss(params, sample.transition.observation, jnp.full((*shape, 3), np.tanh(0.3)))
    assert given.shape == shape
    np.testing.assert_allclose(given, expected, rtol=1e-6)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="`num_bins` must be at least 2, got 1; try 256"):
        make_token_policy(*SPACES, encoder=ENCODER, num_bins=1)
    with pytest.raises(ValueError, match="`action_space` must be bounded"):
        make_parallel_policy(SPACES[0], Box((3,)), encoder=ENCODER)
    with pytest.raises(ValueError, match="`observation_space` must be a Box of rank 1"):
        make_parallel_policy(Box((2, 2)), SPACES[1], encoder=ENCODER)
