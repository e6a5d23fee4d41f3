"""Adaptation at test time: margins and neighbours by hand, and that what is learned of one task is forgotten."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments.text import lists
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.learners.supervised import make_supervised
from jaxagents.training.tt_si import make_test_time_evaluator, margin, nearest

KEY = jax.random.key(2)


def test_margins_by_hand():
    """Two different actions of three, mean log-probabilities -1 and -2; three equal ones; padding is unread."""
    tokens = jnp.array([[[7, 8, 0]], [[7, 8, 5]], [[9, 0, 0]], [[4, 0, 0]], [[4, 0, 0]], [[4, 0, 1]]])
    mask = jnp.array([[[1, 1, 0]], [[1, 1, 0]], [[1, 0, 0]], [[1, 0, 0]], [[1, 0, 0]], [[1, 0, 0]]], bool)
    log_prob = jnp.array(
        [[[-0.5, -1.5, -9]], [[-0.5, -1.5, 0]], [[-2, 0, 0]], [[-1, 0, 0]], [[-1, 0, 0]], [[-1, 0, 0]]]
    )
    got = margin(SimpleNamespace(tokens=tokens, action_mask=mask, behavior_log_prob=log_prob), 3)
    np.testing.assert_allclose(got, [(np.e - 1) / (np.e + 1), 1.0], rtol=1e-6)


def test_neighbours_share_tokens_in_the_same_places():
    def of(*rows):
        tokens = jnp.array([[row + [3]] for row in rows])
        return SimpleNamespace(tokens=tokens, token_mask=tokens != 0)

    pool = of([1, 2, 4, 0], [2, 1, 4, 0], [1, 2, 9, 0], [5, 5, 5, 0])
    assert nearest(of([1, 2, 4, 0], [5, 5, 4, 0]), pool, 4, 2).tolist() == [[0, 2], [3, 0]]


@pytest.fixture(scope="module")
def results(speak):
    """Of a policy that has learned the form of answers."""
    world = lists.make_environment((4,), operations=("reverse",))
    policy = speak(world, context_turns=1, prompt=False)
    shown = jax.jit(make_demonstrations(world, policy))(KEY, jnp.arange(64, dtype=jnp.int32))
    learner = make_supervised(policy.model, optax.adam(1e-2))
    state, _ = jax.jit(
        lambda state: jax.lax.scan(lambda state, _: learner.update(state, KEY, shown), state, None, 100)
    )(learner.init(KEY))

    def run(**options):
        options = {"num_episodes": 6, "pool": 16, "num_candidates": 4, "learning_rate": 0.01, "greedy": True} | options
        return jax.jit(make_test_time_evaluator(world, policy, **options))(state.params, KEY)

    return run


@pytest.mark.exhaustive
def test_a_policy_that_is_sure_is_left_alone(results):
    got = results(threshold=0.0)
    np.testing.assert_array_equal(got["success"], got["base_success"])
    assert not got["adapted"].any() and (got["margin"] >= 0.0).all() and (got["margin"] <= 1.0).all()


@pytest.mark.exhaustive
def test_what_is_learned_of_a_task_is_forgotten_before_the_next_one(results):
    """Every task is answered as if it were alone."""
    got, fewer = (results(threshold=1.1, labels="expert", num_steps=10, num_episodes=count) for count in (6, 3))
    assert got["adapted"].all()
    for name in ("success", "episode_return", "margin"):
        np.testing.assert_allclose(got[name][:3], fewer[name], rtol=1e-4)


@pytest.mark.exhaustive
def test_steps_of_no_length_change_no_answer(results):
    got = results(threshold=1.1, learning_rate=0.0)
    assert got["adapted"].all()
    np.testing.assert_array_equal(got["success"], got["base_success"])


@pytest.mark.parametrize("options", [{"num_neighbours": 17}, {"labels": "any"}])
def test_what_cannot_be_is_refused(results, options):
    with pytest.raises(ValueError, match="`num_neighbours` must be at most `pool` and `labels` own or expert"):
        results(**options)
