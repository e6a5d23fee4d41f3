"""Relabelling: recorded actions are played again, also for the task that they happened to solve."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import guess_number
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.relabeling import make_relabeling, recorded_words

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def numbers():
    return guess_number.make_environment((7,), max_steps=3)


@pytest.fixture(scope="module")
def policy(numbers, speak):
    return speak(numbers, thought_tokens=8)


@pytest.fixture(scope="module")
def recorded(numbers, policy):
    """Sixteen noisy episodes."""
    return jax.jit(make_demonstrations(numbers, policy, noise=0.6))(KEY, jnp.arange(16))


@pytest.fixture(scope="module")
def relabel(numbers, policy):
    return jax.jit(make_relabeling(numbers, policy))


def test_an_episode_of_the_same_task_is_the_same(relabel, recorded):
    again = relabel(KEY, recorded)
    for name in ("token_mask", "action_mask", "thought_mask", "reward", "success", "valid"):
        np.testing.assert_array_equal(getattr(again, name), getattr(recorded, name), err_msg=name)
    tokens = [np.where(one.token_mask, one.tokens, -1) for one in (again, recorded)]
    np.testing.assert_array_equal(*tokens)
    prints = [np.where(one.valid, one.fingerprint, 0) for one in (again, recorded)]
    np.testing.assert_array_equal(*prints)


def test_what_ran_out_of_room_is_no_action(relabel, policy, recorded):
    ends = recorded.action_mask & (recorded.tokens == policy.tokenizer.marks["end"]) & ~recorded.thought_mask
    ends = ends.at[:, 1:].set(False)
    cut = recorded.replace(action_mask=recorded.action_mask & ~ends, token_mask=recorded.token_mask & ~ends)
    assert recorded.action_valid[:, 0].any() and not relabel(KEY, cut).action_valid[:, 0].any()


def test_in_hindsight_the_last_guess_was_right(relabel, numbers, policy, recorded):
    actions, _ = recorded_words(policy, recorded)
    last = jnp.sum(recorded.valid, axis=1) - 1
    guess = jnp.asarray([int(word) if word.isdigit() else 0 for word in numbers.text.words])
    task = recorded.task | {"secret": guess[actions[jnp.arange(16), last, 0]]}
    assert not bool(recorded.success.all())
    relabeled = relabel(KEY, recorded, task)
    assert bool(relabeled.success.all()) and bool((relabeled.reward.sum(axis=1) == 1).all())
    assert bool((relabeled.valid.sum(axis=1) <= recorded.valid.sum(axis=1)).all())
