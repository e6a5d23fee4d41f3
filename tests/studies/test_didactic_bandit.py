"""The didactic bandit: reference and objectives by hand, and that few steps already learn."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.studies import didactic_bandit
from jaxagents.studies.didactic_bandit import Samples

LOG_PROB = jnp.log(jnp.array([[[0.5, 0.25, 0.125]]]))
REWARD = jnp.array([[[0.2, 1.0, 0.0]]])
SAMPLES = Samples(
    action=jnp.array([[[3, 4, 5]]]),
    reward=REWARD,
    reference_log_prob=jnp.log(jnp.array([[[0.25, 0.25, 0.25]]])),
)


def test_the_reference_lies_low_and_piles_up_at_its_ends():
    probability = np.exp(didactic_bandit.reference_log_prob())
    np.testing.assert_allclose(probability.sum(), 1.0, rtol=1e-5)
    # P(tanh x > 0.98) = 1/2 - arctan((2.29756 + 0.7) / 0.4) / pi.
    np.testing.assert_allclose(probability[-1], 0.04223, atol=2e-5)
    inner = probability[5:95]
    assert 15 <= 5 + inner.argmax() <= 25 and probability[:50].sum() > 0.7


def test_the_bump():
    rewards = np.asarray(didactic_bandit.bump(70.0))
    assert rewards.argmax() == 70
    np.testing.assert_allclose(rewards[[60, 70, 90]], [np.exp(-1.0), 1.0, np.exp(-4.0)], rtol=1e-6)


def test_objectives_by_hand():
    half, quarter, eighth = np.log([0.5, 0.25, 0.125])
    best = didactic_bandit.best_of_n(LOG_PROB, SAMPLES, negative=0.5)
    np.testing.assert_allclose(best, [[-quarter + 0.25 * (half + eighth)]], rtol=1e-6)
    weighted = didactic_bandit.reward_weighted(LOG_PROB, SAMPLES, temperature=0.5)
    np.testing.assert_allclose(weighted[0, 0], -np.exp([0.4, 2.0, 0.0]) * [half, quarter, eighth], rtol=1e-6)
    advantage = (np.array([0.2, 1.0, 0.0]) - 0.4) / 0.4320494
    plain = didactic_bandit.reinforce(LOG_PROB, SAMPLES)
    np.testing.assert_allclose(plain[0, 0], -advantage * [half, quarter, eighth], rtol=1e-4)


def test_pairs_are_won_by_reward():
    # Log-ratios log 2, 0 and -log 2; wins: second over first, second over third, first over third; the target is 1.
    loss = didactic_bandit.ipo_of_pairs(LOG_PROB, SAMPLES, coefficient=0.5)
    two = np.log(2.0)
    np.testing.assert_allclose(loss, [[((-two - 1) ** 2 + (two - 1) ** 2 + (2 * two - 1) ** 2) / 3]], rtol=1e-6)
    ties = SAMPLES.replace(reward=jnp.zeros_like(REWARD))
    assert float(didactic_bandit.ipo_of_pairs(LOG_PROB, ties)[0, 0]) == 0.0


@pytest.mark.exhaustive
@pytest.mark.parametrize("on_policy", [True, False])
def test_few_rounds_already_help_with_the_near_bump(on_policy):
    settings = {"num_states": 2, "group_size": 4, "num_rounds": 3, "num_inner_steps": 10, "learning_rate": 1e-2}
    result = didactic_bandit.run(0, objective=didactic_bandit.best_of_n, on_policy=on_policy, **settings)
    again = partial(didactic_bandit.best_of_n, negative=0.0)
    same = didactic_bandit.run(0, objective=again, on_policy=on_policy, **settings)
    # Another program: its rounding grows from round to round.
    for name in ("reward_curve_near", "reward_curve_far"):
        np.testing.assert_allclose(same[name][0], result[name][0], rtol=1e-2)
    assert len(result["reward_curve_near"]) == 3
    np.testing.assert_allclose(result["reward_curve_far"][-1], result["reward_far"], rtol=1e-5)
    expected = float(np.exp(didactic_bandit.reference_log_prob()) @ np.asarray(didactic_bandit.bump(20.0)))
    assert result["reward_near"] > expected + 0.1
    assert result["kl_near"] > 0 and result["reverse_kl_near"] > 0 and 0 < result["entropy_near"] < np.log(100)


def test_groups_without_pairs_are_refused():
    with pytest.raises(ValueError, match="`group_size` must be at least 2, got 1"):
        didactic_bandit.run(0, objective=didactic_bandit.best_of_n, on_policy=True, group_size=1)
    with pytest.raises(ValueError, match="`num_rounds` must be at least 1, got 0"):
        didactic_bandit.run(0, objective=didactic_bandit.best_of_n, on_policy=True, num_rounds=0)
