"""Credit assignment against numbers made by hand, rlax, and the identities between the estimators."""

from functools import partial, wraps

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from jaxagents.ops import credit
from jaxagents.ops.advantages import normalize_advantage
from jaxagents.types import EpisodeView, TokenStatistics


def of_episodes(estimator):
    """Returns the estimator as a function of episodes and values."""

    @wraps(estimator)
    def estimate(episode, value=None, **options):
        return estimator(EpisodeView(episode=episode, policy=TokenStatistics(value=value)), **options)

    return estimate


# Compiled: one program instead of dozens of small ones. A test below says that it changes nothing.
rloo, grpo, dr_grpo, opo = (
    jax.jit(of_episodes(estimator)) for estimator in (credit.rloo, credit.grpo, credit.dr_grpo, credit.opo)
)
STATIC = ("axis_name", "normalize")
reinforce = jax.jit(of_episodes(credit.reinforce), static_argnames=STATIC)
gae_token, gae_turn = (
    jax.jit(of_episodes(estimator), static_argnames=(*STATIC, "bootstrap"))
    for estimator in (credit.gae_token, credit.gae_turn)
)
OUTCOME = [rloo, grpo, dr_grpo, opo]
WITH_VALUE = [gae_token, gae_turn]
ALL = [reinforce, *OUTCOME, *WITH_VALUE]


def outcomes(make_episode, returns, group=None, **options):
    """Returns episodes of one turn of two sampled tokens with the given returns."""
    return make_episode([[r] for r in returns], [[2]] * len(returns), group=group, **options)


def per_row(advantage):
    """Returns the advantage of the first sampled token of every row."""
    return advantage[:, 0, 1]


@pytest.fixture(scope="module")
def episode(make_episode):
    """Three rows of two turns: complete, over after one turn, and with nothing sampled at all."""
    return make_episode([[1.0, 4.0], [2.0, 0.0], [0.0, 0.0]], [[2, 1], [3, 0], [0, 0]])


@pytest.fixture(scope="module")
def value(episode):
    return jnp.asarray(np.random.default_rng(0).normal(size=episode.tokens.shape), jnp.float32)


def test_reinforce_by_hand(episode):
    actual = reinforce(episode, discount=0.5, baseline=0.0)
    assert actual.target is None
    # Returns to go: 1 + 0.5 * 4, 4; 2.
    expected = [[[0, 3, 3, 0], [0, 4, 0, 0]], [[0, 2, 2, 2], [0, 0, 0, 0]], [[0] * 4] * 2]
    np.testing.assert_allclose(actual.advantage, expected)
    # The mean of the three turns that took place is 3; a number is subtracted as it is.
    where = np.asarray(episode.action_mask)
    np.testing.assert_allclose(reinforce(episode, discount=0.5).advantage, (np.array(expected) - 3.0) * where)
    constant = reinforce(episode, discount=0.5, baseline=jnp.float32(1.5)).advantage
    np.testing.assert_allclose(constant, (np.array(expected) - 1.5) * where)


def test_rloo_by_hand(make_episode):
    # Row 0 against the mean 3.5 of 2 and 5, row 1 against 3, row 2 against 1.5; a group of one has no others.
    episode = outcomes(make_episode, [1.0, 2.0, 5.0, 9.0], group=[0, 0, 0, 3])
    np.testing.assert_allclose(per_row(rloo(episode).advantage), [-2.5, -1.0, 3.5, 0.0], rtol=1e-6)


def test_opo_by_hand(make_episode):
    """Lengths 1, 3 and 4 of returns 2, 0 and 1: a baseline of 6 / 8 where the mean is 1; a group of one has none."""
    returns, length = [2.0, 0.0, 1.0, 7.0], [1, 3, 4, 2]
    episode = make_episode([[r] for r in returns], [[n] for n in length], group=[3, 3, 3, 0], slot=5)
    np.testing.assert_allclose(per_row(opo(episode).advantage), [1.25, -0.75, 0.25, 0.0], rtol=1e-6)
    equal = make_episode([[r] for r in returns], [[2]] * 4, group=[3, 3, 3, 0], slot=5)
    np.testing.assert_allclose(opo(equal).advantage, dr_grpo(equal).advantage, atol=1e-6)


def test_grpo_by_hand(make_episode):
    # Means 1 and 4, standard deviations 1 and 2.
    episode = outcomes(make_episode, [0.0, 2.0, 2.0, 6.0, 9.0], group=[0, 0, 5, 5, 6])
    np.testing.assert_allclose(per_row(grpo(episode).advantage), [-1.0, 1.0, -1.0, 1.0, 0.0], rtol=1e-5)
    np.testing.assert_allclose(
        per_row(grpo(episode, epsilon=1.0).advantage), [-1 / 2, 1 / 2, -2 / 3, 2 / 3, 0.0], rtol=1e-6
    )


def test_dr_grpo_by_hand(make_episode):
    episode = outcomes(make_episode, [0.0, 2.0, 2.0, 6.0, 9.0], group=[0, 0, 5, 5, 6])
    np.testing.assert_allclose(per_row(dr_grpo(episode).advantage), [-1.0, 1.0, -2.0, 2.0, 0.0], rtol=1e-6)


def test_credit_of_groups_is_what_verl_computes(make_episode):
    """Printed by volcengine/verl at commit b178a3c, verl/trainer/ppo/core_algos.py, for the inputs of the tests above.

    RLOO (477), OPO (529), GRPO (267) and, without its standard deviation, Dr. GRPO. A group of one has no credit here,
    and its return there; verl's deviation is that of the sample, larger by sqrt(2) in groups of two.
    """
    grouped = outcomes(make_episode, [1.0, 2.0, 5.0], group=[0, 0, 0])
    np.testing.assert_allclose(per_row(rloo(grouped).advantage), [-2.5, -1.0, 3.5], rtol=1e-6)
    lengths = make_episode([[2.0], [0.0], [1.0]], [[1], [3], [4]], group=[3, 3, 3], slot=5)
    np.testing.assert_allclose(per_row(opo(lengths).advantage), [1.25, -0.75, 0.25], rtol=1e-6)
    pairs = outcomes(make_episode, [0.0, 2.0, 2.0, 6.0], group=[0, 0, 5, 5])
    np.testing.assert_allclose(per_row(dr_grpo(pairs).advantage), [-1.0, 1.0, -2.0, 2.0], rtol=1e-6)
    verl = np.array([-0.70710629, 0.70710629, -0.70710653, 0.70710653])
    np.testing.assert_allclose(per_row(grpo(pairs).advantage), np.sqrt(2.0) * verl, rtol=1e-5)


def test_outcomes_are_discounted_and_go_to_all_turns(episode):
    # Returns 3, 2 and 0 in one group: the mean is 5 / 3.
    actual = dr_grpo(episode, discount=0.5).advantage
    expected = np.where(episode.action_mask, np.array([3.0, 2.0, 0.0])[:, None, None] - 5 / 3, 0.0)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_rloo_is_dr_grpo_times_g_over_g_minus_1(make_episode):
    returns = np.random.default_rng(1).normal(size=9)
    group = np.array([2, 1, 1, 2, 2, 2, 2, 1, 2])
    episode = outcomes(make_episode, returns, group=group)
    count = np.bincount(group)[group]
    expected = per_row(dr_grpo(episode).advantage) * count / np.maximum(count - 1, 1)
    np.testing.assert_allclose(per_row(rloo(episode).advantage), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("scale", "offset"), [(10.0, 0.0), (0.5, -3.0)])
def test_grpo_forgets_scale_and_offset(make_episode, scale, offset):
    returns = np.array([0.3, -1.2, 2.5, 0.9])
    expected = grpo(outcomes(make_episode, returns)).advantage
    actual = grpo(outcomes(make_episode, scale * returns + offset)).advantage
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("estimator", OUTCOME)
def test_equal_returns_have_exactly_no_advantage(make_episode, estimator):
    np.testing.assert_array_equal(estimator(outcomes(make_episode, [0.1] * 7)).advantage, 0.0)


@pytest.mark.parametrize("estimator", OUTCOME)
def test_order_of_rows_and_names_of_groups_do_not_matter(make_episode, estimator):
    returns, group = np.array([1.0, 4.0, 2.0, 8.0, 3.0, 0.0]), np.array([0, 1, 0, 1, 1, 2])
    order = np.array([4, 2, 5, 0, 3, 1])
    expected = per_row(estimator(outcomes(make_episode, returns, group=group)).advantage)
    actual = per_row(estimator(outcomes(make_episode, returns[order], group=group[order] * 7 + 3)).advantage)
    np.testing.assert_allclose(actual, expected[order], rtol=1e-6)


@pytest.mark.parametrize("estimator", [reinforce, *OUTCOME])
def test_dropped_rows_change_nothing_for_the_others(make_episode, estimator):
    keep = jnp.array([True, False, True, True])
    whole = outcomes(make_episode, [1.0, 1000.0, 2.0, 6.0], keep=keep)
    actual = per_row(estimator(whole).advantage)
    expected = per_row(estimator(outcomes(make_episode, [1.0, 2.0, 6.0])).advantage)
    np.testing.assert_allclose(actual[keep], expected, rtol=1e-6)
    assert actual[1] == 0.0


def test_token_advantages_by_hand(episode):
    value = jnp.zeros(episode.tokens.shape).at[0, (0, 0, 1), (1, 2, 1)].set(jnp.array([0.5, 1.0, 2.0]))
    # What a value head says about observations and padding is of no account.
    value = jnp.where(episode.action_mask, value, jnp.nan).at[1].set(0.0)
    actual = gae_token(episode, value, discount=0.5, trace_decay=0.5)
    # Rewards 0, 1, 4 at the tokens: delta = (0.5 - 0.5, 1 + 1 - 1, 4 - 2); the trace decays by a quarter.
    np.testing.assert_allclose(actual.advantage[0], [[0, 0.375, 1.5, 0], [0, 2, 0, 0]])
    np.testing.assert_allclose(actual.target[0], [[0, 0.875, 2.5, 0], [0, 4, 0, 0]])
    # Row 1: 2 at the last of three tokens, without values.
    np.testing.assert_allclose(actual.advantage[1], [[0, 2 / 16, 2 / 4, 2], [0, 0, 0, 0]])
    np.testing.assert_array_equal(actual.advantage[2], 0.0)


def test_turn_advantages_by_hand(episode):
    # Only the value at the first sampled token of a turn is used.
    value = jnp.full(episode.tokens.shape, jnp.nan).at[0, (0, 1), (1, 1)].set(jnp.array([0.5, 2.0]))
    value = value.at[1, 0, 1].set(3.0)
    actual = gae_turn(episode, value, discount=0.5, trace_decay=0.5)
    # delta = (1 + 1 - 0.5, 4 - 2) and 2 - 3.
    np.testing.assert_allclose(actual.advantage[0], [[0, 2, 2, 0], [0, 2, 0, 0]])
    np.testing.assert_allclose(actual.target[0], [[0, 2.5, 2.5, 0], [0, 4, 0, 0]])
    np.testing.assert_allclose(actual.advantage[1], [[0, -1, -1, -1], [0, 0, 0, 0]])
    np.testing.assert_allclose(actual.target[1], [[0, 2, 2, 2], [0, 0, 0, 0]])


@pytest.mark.parametrize("seed", [0, 1])
def test_token_advantages_agree_with_rlax_on_the_sampled_tokens_alone(make_episode, seed):
    generator = np.random.default_rng(seed)
    num_tokens = np.append(generator.integers(1, 4, size=4), 0)
    reward = generator.normal(size=5) * (num_tokens > 0)
    episode = make_episode([reward], [num_tokens])
    value = generator.normal(size=episode.tokens.shape).astype(np.float32)
    sampled = np.asarray(episode.action_mask[0])
    flat_reward = np.zeros(sampled.sum(), np.float32)
    flat_reward[np.cumsum(num_tokens[:4]) - 1] = reward[:4]
    discount = np.full(sampled.sum(), 0.9, np.float32)
    discount[-1] = 0.0
    expected = rlax.truncated_generalized_advantage_estimation(
        jnp.asarray(flat_reward), jnp.asarray(discount), 0.8, jnp.asarray(np.append(value[0][sampled], 0.0))
    )
    actual = gae_token(episode, jnp.asarray(value), discount=0.9, trace_decay=0.8).advantage[0][sampled]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_one_token_per_turn_makes_tokens_and_turns_the_same(make_episode):
    episode = make_episode([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]], [[1, 1, 1], [1, 1, 0]])
    value = jnp.asarray(np.random.default_rng(2).normal(size=episode.tokens.shape), jnp.float32)
    options = {"discount": 0.9, "trace_decay": 0.7}
    token, turn = gae_token(episode, value, **options), gae_turn(episode, value, **options)
    np.testing.assert_allclose(token.advantage, turn.advantage, rtol=1e-6)
    np.testing.assert_allclose(token.target, turn.target, rtol=1e-6)


@pytest.mark.parametrize("estimator", WITH_VALUE)
def test_undiscounted_whole_traces_are_returns_minus_values(episode, value, estimator):
    actual = estimator(episode, value)
    # Returns to go: 5, then 4; 2.
    returns = np.array([[[0, 5, 5, 0], [0, 4, 0, 0]], [[0, 2, 2, 2], [0, 0, 0, 0]], [[0] * 4] * 2])
    np.testing.assert_allclose(actual.target, returns, rtol=1e-5)


@pytest.mark.parametrize("estimator", WITH_VALUE)
def test_only_episodes_that_were_cut_off_are_bootstrapped(make_episode, estimator):
    bootstrap = {"bootstrap_value": jnp.array([10.0, 20.0])}
    shape = ([[1.0], [1.0]], [[1], [1]])
    none = jnp.zeros((2, 1, 4))
    terminated = estimator(make_episode(*shape, **bootstrap), none, discount=0.5, bootstrap=True)
    np.testing.assert_allclose(per_row(terminated.advantage), [1.0, 1.0])
    truncated = estimator(make_episode(*shape, **bootstrap, terminated=False), none, discount=0.5, bootstrap=True)
    np.testing.assert_allclose(per_row(truncated.advantage), [6.0, 11.0])
    # Without that value a cut is an end, and where nobody asks for it.
    alone = estimator(make_episode(*shape, terminated=False), none, discount=0.5, bootstrap=True)
    np.testing.assert_allclose(per_row(alone.advantage), [1.0, 1.0])
    ended = estimator(make_episode(*shape, **bootstrap, terminated=False), none, discount=0.5)
    np.testing.assert_allclose(per_row(ended.advantage), [1.0, 1.0])
    np.testing.assert_allclose(ended.target, alone.target)


@pytest.mark.parametrize("estimator", WITH_VALUE)
def test_values_are_required(episode, estimator):
    with pytest.raises(ValueError, match=f"`view.policy.value` must be there for {estimator.__name__}, got None"):
        estimator(episode, None)


@pytest.mark.parametrize("estimator", [reinforce, *WITH_VALUE])
def test_normalized_over_sampled_tokens(episode, value, estimator):
    raw, normalized = estimator(episode, value), estimator(episode, value, normalize=True)
    expected = normalize_advantage(raw.advantage, episode.action_mask)
    np.testing.assert_allclose(normalized.advantage, expected, rtol=1e-5, atol=1e-6)
    if raw.target is not None:
        np.testing.assert_array_equal(normalized.target, raw.target)


@pytest.mark.parametrize("estimator", [reinforce, *(partial(e, normalize=True) for e in WITH_VALUE)])
def test_devices_share_their_statistics(make_episode, estimator):
    # Unequal numbers of turns and tokens per device, which a mean of means would get wrong.
    episode = make_episode([[1.0, 4.0], [2.0, 0.0], [3.0, 0.0], [0.0, 0.0]], [[2, 1], [3, 1], [1, 0], [0, 0]])
    value = jnp.asarray(np.random.default_rng(0).normal(size=episode.tokens.shape), jnp.float32)
    split = jax.tree.map(lambda leaf: leaf.reshape(2, 2, *leaf.shape[1:]), (episode, value))
    parts = jax.vmap(partial(estimator, axis_name="device"), axis_name="device")(*split)
    whole = estimator(episode, value).advantage
    np.testing.assert_allclose(parts.advantage.reshape(whole.shape), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", ALL)
def test_zero_off_the_mask_and_finite_whatever_lies_there(episode, value, estimator):
    junk = episode.replace(reward=jnp.where(episode.valid, episode.reward, jnp.nan))
    actual = estimator(junk, jnp.where(episode.action_mask, value, jnp.inf))
    for per_token in jax.tree.leaves(actual):
        np.testing.assert_array_equal(np.asarray(per_token)[~np.asarray(episode.action_mask)], 0.0)
        assert np.isfinite(per_token).all()
        assert np.abs(per_token[:2]).max() > 0.0


@pytest.mark.parametrize("estimator", ALL)
def test_jit_changes_nothing_and_numbers_do_not_recompile(episode, value, estimator):
    fresh = jax.jit(lambda episode, value, discount: estimator.__wrapped__(episode, value, discount=discount))
    for discount in (0.9, 0.5):
        actual = fresh(episode, value, discount)
    assert fresh._cache_size() == 1
    expected = estimator.__wrapped__(episode, value, discount=discount)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", WITH_VALUE)
def test_no_gradient_flows_to_values(episode, value, estimator):
    def total(value):
        actual = estimator(episode, value)
        return jnp.sum(actual.advantage) + jnp.sum(actual.target)

    np.testing.assert_array_equal(jax.grad(total)(value), 0.0)
