"""Shaped rewards against numbers made by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops import reward_shaping
from jaxagents.ops.seats import own_return_to_go
from jaxagents.types import EpisodeView


@pytest.fixture(scope="module")
def episode(make_episode):
    """Row 0 says three and then one token, row 1 two and then nothing; the first turn of row 0 was no action."""
    return make_episode(
        [[1.0, 2.0], [3.0, 0.0]], [[3, 1], [2, 0]], action_valid=jnp.array([[False, True], [True, False]])
    )


SHAPED = [
    (partial(reward_shaping.invalid_action_penalty, penalty=0.25), [[0.75, 2.0], [3.0, 0.0]]),
    (reward_shaping.score_reached, [[0.0, 3.0], [3.0, 0.0]]),  # All that was earned so far, nothing for no action.
    # Nothing up to one token, all of it from three on.
    (partial(reward_shaping.soft_overlong_penalty, max_tokens=3, buffer_tokens=2), [[0.0, 2.0], [2.5, 0.0]]),
    (
        partial(reward_shaping.soft_overlong_penalty, max_tokens=2, buffer_tokens=1, penalty=0.5),
        [[0.5, 2.0], [2.5, 0.0]],
    ),
    # The second turn of row 0 gained one; row 1 has no second turn.
    (partial(reward_shaping.self_correction_bonus, coefficient=10.0), [[1.0, 12.0], [3.0, 0.0]]),
    (partial(reward_shaping.only_turn, turn=0), [[1.0, 0.0], [3.0, 0.0]]),
    (partial(reward_shaping.only_turn, turn=1), [[0.0, 2.0], [0.0, 0.0]]),
    (reward_shaping.at_the_end, [[0.0, 3.0], [3.0, 0.0]]),
]


def test_a_seat_pays_the_other_with_the_last_turn_of_each(make_episode):
    # Row 0: turns of the seats 0, 1, 0; row 1: 1, 0, and nothing.
    agent = jnp.repeat(jnp.asarray([[[0], [1], [0]], [[1], [0], [0]]]), 4, axis=2)
    game = make_episode([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]], [[1, 1, 1], [1, 1, 0]], agent=agent)
    game = game.replace(seat_return=jnp.asarray([[4.0, 2.0], [5.0, 4.0]]))
    shaped = reward_shaping.seat_handicap(EpisodeView(episode=game), amount=0.5)
    np.testing.assert_allclose(shaped, [[1.0, 2.5, 2.5], [4.5, 4.5, 0.0]])
    # In sum over the own turns, seat 0 pays seat 1.
    before, after = (own_return_to_go(game.replace(reward=reward)) for reward in (game.reward, shaped))
    np.testing.assert_allclose(after - before, [[-0.5, 0.5, -0.5], [0.5, -0.5, 0.0]])


@pytest.mark.parametrize(("shape", "expected"), SHAPED)
def test_by_hand(episode, shape, expected):
    np.testing.assert_allclose(shape(EpisodeView(episode=episode)), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(shape)(EpisodeView(episode=episode)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "shape",
    [
        reward_shaping.invalid_action_penalty,
        partial(reward_shaping.soft_overlong_penalty, max_tokens=2, buffer_tokens=1),
    ],
)
def test_no_penalty_no_change(episode, shape):
    np.testing.assert_array_equal(shape(EpisodeView(episode=episode), penalty=0.0), episode.reward)


def test_the_penalty_may_be_traced(episode):
    compiled = jax.jit(
        lambda episode, penalty: reward_shaping.invalid_action_penalty(EpisodeView(episode=episode), penalty=penalty)
    )
    np.testing.assert_allclose(compiled(episode, 0.1), [[0.9, 2.0], [3.0, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(compiled(episode, 1.0), [[0.0, 2.0], [3.0, 0.0]], rtol=1e-6)
    assert compiled._cache_size() == 1


def test_turning_right_into_wrong_costs_what_the_reverse_earns(make_episode):
    episode = make_episode([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], [[1, 1]] * 4)
    actual = reward_shaping.self_correction_bonus(EpisodeView(episode=episode), coefficient=2.0)
    np.testing.assert_allclose(actual, [[0.0, 3.0], [1.0, -2.0], [1.0, 1.0], [0.0, 0.0]])


@pytest.mark.parametrize("turn", [-1, 2])
def test_turns_that_episodes_do_not_have_are_refused(episode, turn):
    with pytest.raises(ValueError, match=rf"`turn` must be in \[0, 2\), the turns of an episode, got {turn}"):
        reward_shaping.only_turn(EpisodeView(episode=episode), turn=turn)
