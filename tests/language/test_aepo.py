"""Which episodes control samples replace, and when the collector takes hot, cold or no ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.bandit import make_environment
from jaxagents.language.aepo import UNKNOWN, make_entropy_control_collector, mix_in, sampled_entropy
from jaxagents.types import Episode

KEY = jax.random.key(2)


def make_episodes(success, group, first_token):
    """Makes episodes of one token, whose ids count up from `first_token`."""
    rows = len(success)
    on, zeros = jnp.ones((rows, 1), bool), jnp.zeros((rows, 1))
    whole = zeros.astype(jnp.int32)
    masks = dict.fromkeys(("valid", "action_valid", "terminated"), on)
    masks |= dict.fromkeys(("token_mask", "action_mask"), on[:, :, None])
    return Episode(
        prompt_tokens=whole,
        prompt_mask=on,
        tokens=first_token + jnp.arange(rows, dtype=jnp.int32)[:, None, None],
        thought_mask=~on[:, :, None],
        truncated=~on,
        position=whole[:, :, None],
        agent=whole[:, :, None],
        sampling_log_prob=zeros[:, :, None],
        reward=zeros,
        behavior_log_prob=-jnp.arange(1.0, rows + 1.0)[:, None, None],
        fingerprint=whole.astype(jnp.uint32),
        success=jnp.asarray(success, bool),
        group=jnp.asarray(group, jnp.int32),
        **masks,
    )


BATCH = make_episodes([0, 0, 0, 0, 0], [0, 0, 1, 1, 1], 0)
# Group 7 all succeeded and teaches nothing, group 8 is mixed.
CONTROL = make_episodes([1, 1, 0, 1, 1], [7, 7, 8, 8, 8], 10)


@pytest.mark.parametrize(
    ("limit", "tokens"), [(0, [0, 1, 2, 3, 4]), (1, [0, 1, 2, 3, 13]), (2, [0, 1, 2, 14, 13]), (9, [0, 1, 2, 14, 13])]
)
def test_successes_of_mixed_groups_take_the_last_places(limit, tokens):
    mixed, replaced = jax.jit(mix_in)(BATCH, CONTROL, jnp.int32(limit))
    assert mixed.tokens[:, 0, 0].tolist() == tokens
    assert replaced.tolist() == mixed.control.tolist() == [token >= 10 for token in tokens]
    assert mixed.success.tolist() == replaced.tolist()
    assert mixed.group.tolist() == [8 if token >= 10 else group for token, group in zip(tokens, [0, 0, 1, 1, 1])]


def test_entropy_is_the_mean_of_minus_log_prob():
    assert float(sampled_entropy(BATCH).value) == 3.0


SETTINGS = {"num_groups": 8, "group_size": 4, "target_entropy": 0.5, "max_control": 4, "control_share": 0.5}


@pytest.fixture(scope="module")
def coin_bandit(speak):
    """Returns a bandit whose success is a coin, and a policy."""
    bandit = make_environment(num_pulls=1)

    def step(key, state, action):
        state, timestep = bandit.step(key, state, action)
        return state, timestep.replace(info=timestep.info | {"success": jax.random.bernoulli(key)})

    return dataclasses.replace(bandit, step=step), speak(bandit)


@pytest.fixture(scope="module")
def collect(coin_bandit):
    environment, policy = coin_bandit
    collector = make_entropy_control_collector(environment, policy, **SETTINGS)
    params = policy.init(KEY)
    return collector, jax.jit(lambda state: collector.collect(state, params, KEY)), collector.init(KEY, params)


@pytest.mark.exhaustive
def test_hot_samples_below_the_target_and_half_as_many_cold_ones_above(collect):
    collector, step, start = collect
    assert collector.steps_per_collect == 8 * 4 + 4 * 4 and (start["entropy"] == UNKNOWN).all()
    state, episode, metrics = step(start)
    assert not episode.control.any() and float(metrics["control_fraction"]) == 0.0
    entropy = float(metrics["sampled_entropy"].value)
    np.testing.assert_allclose(state["entropy"], entropy, rtol=1e-6)
    np.testing.assert_allclose(metrics["entropy_error"], abs(entropy - 0.5), rtol=1e-5)
    for last, temperature, most in ((0.4, 1.2, 4), (0.6, 0.8, 2)):
        _, mixed, metrics = step(start | {"entropy": jnp.full(8, last)})
        control = np.asarray(mixed.control)
        assert float(metrics["temperature"]) == np.float32(temperature)
        assert 0 < control.sum() <= most and mixed.success[control].all()
        assert (np.asarray(mixed.group)[control] >= 8).all() and (np.asarray(mixed.group)[~control] < 8).all()
        np.testing.assert_array_equal(np.asarray(mixed.tokens)[~control], np.asarray(episode.tokens)[~control])
        # Of other temperature, but judged as the policy itself.
        ratio = np.asarray(mixed.behavior_log_prob - mixed.sampling_log_prob)
        assert (np.abs(ratio[control]).max(axis=(1, 2)) > 1e-4).all() and (ratio[~control] == 0.0).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("last", [0.4, 0.6])
def test_eight_devices_choose_what_one_does(collect, coin_bandit, last):
    """Of four further groups, each of eight devices plays one, and four go to waste."""
    _, step, start = collect
    alone, episode, metrics = step(start | {"entropy": jnp.full(8, last)})
    environment, policy = coin_bandit
    collector = make_entropy_control_collector(environment, policy, **SETTINGS, axis_name="devices")
    mapped = jax.vmap(collector.collect, in_axes=(0, None, None), axis_name="devices")
    apart = jax.tree.map(lambda leaf: leaf.reshape(8, -1), start | {"entropy": jnp.full(8, last)})
    together, episodes, result = jax.jit(mapped)(apart, policy.init(KEY), KEY)
    assert episode.control.any()
    for name in ("tokens", "group", "success", "control", "valid"):
        joined = np.asarray(getattr(episodes, name)).reshape(getattr(episode, name).shape)
        np.testing.assert_array_equal(joined, getattr(episode, name), err_msg=name)
    np.testing.assert_allclose(together["entropy"].reshape(-1), alone["entropy"], rtol=1e-6)
    np.testing.assert_allclose(result["entropy_error"], np.full(8, metrics["entropy_error"]), rtol=1e-5)
    np.testing.assert_allclose(result["rounds"], np.full(8, (8 + 8) / (8 + 4)))
    assert "rounds" not in metrics


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_control": 0}, "`max_control` must be at least 1, got 0."),
        ({"target_entropy": -0.5}, "`target_entropy` must not be negative, got -0.5; try 0.5."),
        ({"control_share": 1.5}, r"`control_share` must be in \(0, 1\], got 1.5; try 0.25."),
        (
            {"low_temperature": 2.0},
            "`low_temperature` must be positive and at most `high_temperature`, got 2.0 and 1.2",
        ),
    ],
)
def test_refused_settings(settings, message):
    options = {"num_groups": 2, "group_size": 2, "target_entropy": 0.5, "max_control": 1} | settings
    with pytest.raises(ValueError, match=message):
        make_entropy_control_collector(None, None, **options)
