"""Entropies at temperatures, the choice among them, and runs at the temperature that was chosen."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.temperatures import choose_temperature, make_entropy_scan, make_tempered_collector
from jaxagents.learners import policy_gradient, tempered
from jaxagents.losses.aggregation import token_mean
from jaxagents.losses.token_policy_gradient import ppo_clip
from jaxagents.ops.credit import rloo
from jaxagents.types import Learner

KEY = jax.random.key(5)
TWO_MOVES = jnp.array([0.0, np.log(3.0), -40.0, -40.0])  # A quarter and three quarters.
FOUR_MOVES = jnp.array([0.3, 0.0, -0.2, 0.1])
GROUPS = {"num_groups": 2, "group_size": 4}


def test_entropies_of_two_moves_by_hand(lake, wanderer):
    """Half of the tokens end a move, and are certain; moves are (1/4, 3/4), and at 1/2 (1/10, 9/10)."""
    scan = jax.jit(make_entropy_scan(lake, wanderer, num_episodes=3))
    entropies = scan(TWO_MOVES, KEY, jnp.array([0.5, 1.0, 2.0]))
    np.testing.assert_allclose(entropies, [0.3250830 / 2, 0.5623351 / 2, 0.6568220 / 2], atol=2e-3)


def test_the_nearest_entropy_is_taken():
    choose = partial(choose_temperature, np.array([0.05, 0.2, 0.7]), (0.4, 0.6, 0.8), tolerance=0.3)
    assert [choose(target=target) for target in (0.0, 0.3, 0.46, 0.9)] == [np.float32(t) for t in (0.4, 0.6, 0.8, 0.8)]


@pytest.mark.parametrize("entropies", [(0.05, 0.7), (float("nan"), float("nan"))])
def test_a_target_out_of_reach_is_told_with_what_was_measured(entropies):
    measured = f"got 0.3 and {entropies[0]:g} at 0.5, {entropies[1]:g} at 1"
    with pytest.raises(ValueError, match=f"`target` must be within 0.1 of the entropy .* {measured}"):
        choose_temperature(np.array(entropies), (0.5, 1.0), target=0.3, tolerance=0.1)


@pytest.mark.exhaustive
def test_a_run_begins_at_the_temperature_of_the_target(lake, wanderer):
    """Half of the entropy of two moves is 0.163 at 0.5, 0.281 at 1 and 0.328 at 2."""
    make = partial(make_tempered_collector, lake, wanderer, temperatures=(0.5, 1.0, 2.0), num_episodes=4, **GROUPS)
    chosen = [
        jax.jit(make(target=target, tolerance=0.05).init)(KEY, TWO_MOVES)["temperature"] for target in (0.16, 0.29)
    ]
    np.testing.assert_array_equal(chosen, [[0.5, 0.5], [1.0, 1.0]])
    with pytest.raises(jax.errors.JaxRuntimeError, match="0.163 at 0.5, 0.281 at 1, 0.328 at 2"):
        jax.block_until_ready(jax.jit(make(target=0.8).init)(KEY, TWO_MOVES))
    both = jax.jit(jax.vmap(make(target=0.28).init))(jax.random.split(KEY), jnp.stack([TWO_MOVES, TWO_MOVES * 2.0]))
    np.testing.assert_array_equal(both["temperature"], [[1.0, 1.0], [2.0, 2.0]])


@pytest.mark.exhaustive
def test_an_update_is_that_of_a_policy_that_is_scored_at_the_temperature(lake, wanderer):
    """The learner with a fixed temperature is the oracle: same episodes, same step, and a ratio of 1."""
    slots = {"advantage": rloo, "loss": partial(ppo_clip, clip_epsilon=0.2), "aggregation": token_mean}
    options = slots | {"policy": lambda _: wanderer, "optimizer": lambda steps: optax.sgd(1.0)}

    def update(agent, collector):
        learner = agent.make_learner(collector, 1)
        state = learner.init(KEY, FOUR_MOVES)
        _, episode, result = jax.jit(collector.collect)(collector.init(KEY, FOUR_MOVES), state.params, KEY)
        episode = episode.replace(reward=jnp.where(episode.valid, episode.tokens[..., -2] * 1.0, 0.0))
        state, metrics = jax.jit(learner.update)(state, KEY, episode)
        return state.params, episode, metrics, result

    fixed = policy_gradient.make_agent(lake, temperature=0.5, **options)
    expected, drawn, *_ = update(fixed, make_dialogue_collector(lake, wanderer, temperature=0.5, **GROUPS))
    collector = make_tempered_collector(lake, wanderer, temperature=0.5, **GROUPS)
    params, episode, metrics, result = update(tempered.make_agent(lake, **options), collector)
    np.testing.assert_array_equal(episode.tokens, drawn.tokens)
    np.testing.assert_allclose(episode.behavior_log_prob, drawn.sampling_log_prob, atol=1e-5)
    np.testing.assert_allclose(params, expected, atol=1e-5)
    assert np.abs(expected - FOUR_MOVES).max() > 0.01
    assert abs(float(metrics["approximate_kl"].value)) < 1e-6
    assert float(result["temperature"].value) == 0.5


def test_settings_that_cannot_be(lake, wanderer):
    with pytest.raises(ValueError, match=r"`temperatures` must be positive, got \(0.0, 1.0\)"):
        make_tempered_collector(lake, wanderer, temperatures=(0.0, 1.0), **GROUPS)
    with pytest.raises(ValueError, match="`partner` must be false"):
        make_tempered_collector(lake, wanderer, partner=True, **GROUPS)
    plain = make_dialogue_collector(lake, wanderer, **GROUPS)
    learner = tempered.with_temperature(lambda temperature: Learner(init=None, update=None))
    _, episode, _ = jax.eval_shape(plain.collect, plain.init(KEY, TWO_MOVES), TWO_MOVES, KEY)
    with pytest.raises(ValueError, match="try collector=tempered"):
        learner.update(None, KEY, episode)
