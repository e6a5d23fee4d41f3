"""Role-conditioned advantages: by seat, against a mean of the past."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.ops.credit import gae_token, gae_turn, reinforce
from jaxagents.ops.spiral import make_role_conditioned, role_conditioned
from jaxagents.types import EpisodeView, TokenStatistics


@pytest.fixture
def games(make_episode):
    """Two games of seats 0 1 0: chips +2 -2 after three turns, then +1 -1 after two."""
    return make_episode(
        reward=[[0, -2, 2], [1, -1, 0]],
        num_tokens=[[1, 2, 1], [2, 1, 0]],
        slot=3,
        agent=jnp.broadcast_to(jnp.array([0, 1, 0])[None, :, None], (2, 3, 3)),
        seat_return=jnp.asarray([[2.0, -2.0], [1.0, -1.0]]),
    )


def of_tokens(credit, episode):
    return np.asarray(credit.advantage)[np.asarray(episode.action_mask)].tolist()


def test_advantages_are_against_the_baseline_of_the_seat(games):
    credit, summary = role_conditioned(jnp.asarray([0.5, -0.25]), EpisodeView(episode=games))
    # Tokens in order: seat 0, seat 1 twice, seat 0; then seat 0 twice, seat 1.
    assert of_tokens(credit, games) == [1.5, -1.75, -1.75, 1.5, 0.5, 0.5, -0.75]
    assert not np.any(np.asarray(credit.advantage)[~np.asarray(games.action_mask)])
    np.testing.assert_array_equal(summary["count"], [2, 2])
    np.testing.assert_array_equal(summary["total"], [3, -3])


def test_earlier_turns_are_discounted(games):
    credit, _ = jax.jit(role_conditioned)(jnp.zeros(2), EpisodeView(episode=games), discount=0.5)
    assert of_tokens(credit, games) == [1, -2, -2, 2, 1, 1, -1]


def test_dropped_games_count_nowhere(games):
    games = games.replace(keep=jnp.asarray([False, True]))
    credit, summary = role_conditioned(jnp.zeros(2), EpisodeView(episode=games))
    assert of_tokens(credit, games) == [0, 0, 0, 0, 1, 1, -1]
    np.testing.assert_array_equal(summary["count"], [1, 1])
    np.testing.assert_array_equal(summary["total"], [1, -1])


def test_a_seat_that_did_not_move_keeps_its_baseline(games):
    # A forfeit in the first turn.
    first = jnp.asarray([[True, False, False]] * 2)
    tokens = first[:, :, None]
    games = games.replace(
        valid=first,
        action_mask=games.action_mask & tokens,
        token_mask=games.token_mask & tokens,
        reward=games.reward * first,
    )
    slot = make_role_conditioned(decay=0.5)
    _, summary = slot.apply(jnp.asarray([8.0, 4.0]), EpisodeView(episode=games))
    np.testing.assert_array_equal(summary["count"], [2, 0])
    # A quarter of 8 and three quarters of the mean of 0 and 1.
    np.testing.assert_allclose(slot.update(jnp.asarray([8.0, 4.0]), summary), [2.375, 4.0])


def test_the_baseline_is_that_of_one_game_after_the_other():
    slot = make_role_conditioned(decay=0.95)
    b = 0.0
    for _ in range(3):  # The same return thrice: the order cannot matter.
        b = 0.95 * b + 0.05 * 2.0
    after = slot.update(slot.init(10), {"count": jnp.asarray([3.0, 0.0]), "total": jnp.asarray([6.0, 0.0])})
    np.testing.assert_allclose(after, [b, 0.0], rtol=1e-6)
    shared = make_role_conditioned(decay=0.5, by_role=False)
    summary = {"count": jnp.asarray([1.0, 1.0]), "total": jnp.asarray([4.0, -2.0])}
    np.testing.assert_allclose(shared.update(jnp.zeros(2), summary), [0.75, 0.75])


def test_reinforce_credits_seats_too(games):
    # Returns to go of the own turns: 2 and 2 for seat 0, -2 for seat 1; then 1 and -1.
    assert of_tokens(reinforce(EpisodeView(episode=games), baseline=0.0), games) == [2, -2, -2, 2, 1, 1, -1]


@pytest.mark.parametrize("estimator", [gae_token, gae_turn])
def test_estimators_that_would_mix_seats_up_are_refused(games, estimator):
    view = EpisodeView(episode=games, policy=TokenStatistics(value=jnp.zeros(games.tokens.shape)))
    with pytest.raises(ValueError, match=f"`environment` must have one seat for {estimator.__name__}, .* got 2 seats"):
        estimator(view)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"num_seats": 0}, "`num_seats` must be at least 1, got 0"), ({"decay": 1.0}, "`decay` must be at least 0")],
)
def test_refused_options(options, message):
    with pytest.raises(ValueError, match=message):
        make_role_conditioned(**options)
