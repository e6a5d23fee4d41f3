"""Credit, filters and metrics of games of two seats: what one wins the other loses, and neither is lost in a sum."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.language.collect import dialogue_metrics, own_return
from jaxagents.ops import credit, gigpo, group_filters, rloo_turn
from jaxagents.ops.episodes import acting_seats, seat_returns
from jaxagents.ops.group_metrics import group_metrics
from jaxagents.ops.seat_discounts import reinforce_by_seat
from jaxagents.types import EpisodeView

# Seats 0 1 0 take turns in one group of two games, in another one of two that end alike.
RETURNS = [[2.0, -2.0], [-1.0, 1.0], [1.0, -1.0], [1.0, -1.0]]


@pytest.fixture(scope="module")
def games(make_episode):
    return make_episode(
        reward=[[0, loss, win] for win, loss in RETURNS],
        num_tokens=[[1, 2, 1]] * 4,
        group=[0, 0, 1, 1],
        slot=3,
        agent=jnp.broadcast_to(jnp.array([0, 1, 0])[None, :, None], (4, 3, 3)),
        seat_return=jnp.asarray(RETURNS),
        fingerprint=jnp.broadcast_to(jnp.array([5, 7, 9], jnp.uint32)[None], (4, 3)),
    )


def by_turn(estimate, games):
    """Returns the advantage of every turn, after checking that all of its tokens have it."""
    advantage = np.asarray(estimate.advantage)
    np.testing.assert_array_equal(advantage, np.where(games.action_mask, advantage[:, :, 1:2], 0.0))
    return advantage[:, :, 1]


def test_returns_are_of_a_seat(games):
    np.testing.assert_array_equal(seat_returns(games), RETURNS)
    # The last turn of seat 0 is its second.
    np.testing.assert_array_equal(seat_returns(games, 0.5)[:, 0], [1.0, -0.5, 0.5, 0.5])


@pytest.mark.exhaustive
def test_groups_compare_a_seat_with_itself(games):
    view = EpisodeView(episode=games)
    # Returns 2 and -1 of seat 0, -2 and 1 of seat 1.
    expected = [[1.5, -1.5, 1.5], [-1.5, 1.5, -1.5], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(by_turn(credit.dr_grpo(view), games), expected)
    np.testing.assert_allclose(by_turn(credit.rloo(view), games), 2.0 * np.array(expected))
    np.testing.assert_allclose(by_turn(credit.grpo(view, epsilon=1e-9), games), np.sign(expected), rtol=1e-5)
    np.testing.assert_allclose(by_turn(gigpo.gigpo(view, step_weight=0.0), games), expected)
    # All turns of a seat in a state have its return; here the last one alone has a reward.
    step = gigpo.gigpo(view, episode_weight=0.0, discount=1.0)
    np.testing.assert_allclose(by_turn(step, games), expected)
    turns = rloo_turn.rloo_turn(view, discount=1.0)
    np.testing.assert_allclose(by_turn(turns, games), 2.0 * np.array(expected))


def test_the_same_state_of_another_seat_is_another_anchor(games):
    alike = games.replace(fingerprint=jnp.zeros_like(games.fingerprint))
    step = gigpo.gigpo(EpisodeView(episode=alike), episode_weight=0.0, discount=1.0)
    expected = [[1.5, -1.5, 1.5], [-1.5, 1.5, -1.5], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(by_turn(step, games), expected)


def test_groups_in_which_one_seat_wins_what_the_other_loses_are_informative(games):
    view = EpisodeView(episode=games)
    assert group_filters.informative_groups(view).tolist() == [True, True, False, False]
    assert group_filters.top_variance(view, fraction=0.5).tolist() == [True, True, False, False]
    # Deviations 1.5 of either seat in one group, none in the other.
    np.testing.assert_allclose(group_metrics(games)["group_return_deviation"].value, 0.75)


@pytest.mark.exhaustive
def test_seats_that_a_partner_took_are_compared_with_nobody(games):
    # The policy has seat 0 in the first game and seat 1 in the second, and so on.
    own = jnp.broadcast_to(jnp.array([0, 1, 0])[None], (4, 3)) == jnp.arange(4)[:, None] % 2
    against = games.replace(action_mask=games.action_mask & own[:, :, None])
    assert acting_seats(against).tolist() == [[True, False], [False, True]] * 2
    view = EpisodeView(episode=against)
    np.testing.assert_array_equal(credit.dr_grpo(view).advantage, 0.0)
    assert not group_filters.informative_groups(view).any()
    np.testing.assert_array_equal(own_return(against), [2.0, 1.0, 1.0, -1.0])
    metrics = dialogue_metrics(against)
    np.testing.assert_allclose(metrics["episode_return"].value, 0.75)
    np.testing.assert_allclose(metrics["return_player_1"].value, -0.75)


def test_seats_look_differently_far_ahead(games):
    """Seat 0 has two turns, of which the first is worth half of the second; means of the seats are 0.5625 and -0.75."""
    view = EpisodeView(episode=games)
    estimate = reinforce_by_seat(view, discounts=(0.5, 0.25), normalize=False)
    returns = np.array([[1.0, -2.0, 2.0], [-0.5, 1.0, -1.0], [0.5, -1.0, 1.0], [0.5, -1.0, 1.0]])
    np.testing.assert_allclose(by_turn(estimate, games), returns - [[0.5625, -0.75, 0.5625]], rtol=1e-6)
    # A game that was dropped counts in no mean, and has no advantage.
    dropped = games.replace(keep=jnp.asarray([False, True, True, True]))
    estimate = reinforce_by_seat(EpisodeView(episode=dropped), discounts=(0.5, 0.25), normalize=False)
    expected = returns - [[0.25, -1.0 / 3.0, 0.25]]
    np.testing.assert_allclose(by_turn(estimate, dropped), expected * [[0], [1], [1], [1]], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="one for each of the 2 seats, got 1"):
        reinforce_by_seat(view, discounts=[0.5])
