"""Altered instructions: one number differs, the screens are the same, and the episode does not meet them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import shop
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.exevrm import change_one, make_altered_instructions

KEY, ROWS = jax.random.key(3), 32
REQUEST = 6  # Columns of the mark and `want mug steel below 6`.


@pytest.fixture(scope="module")
def batch(speak):
    """Returns the policy, noisy episodes of groups of four, and what is told again."""
    world = shop.make_environment((1,), max_steps=5)
    policy = speak(world, context_turns=1, prompt=False)
    episode = jax.jit(make_demonstrations(world, policy, noise=0.3))(KEY, jnp.arange(ROWS))
    episode = episode.replace(group=jnp.arange(ROWS) // 4)
    alter = jax.jit(make_altered_instructions(world, policy))
    return policy, episode, alter


def test_one_number_comes_from_another_task():
    task, other = ({"a": jnp.array(a), "b": jnp.array(b)} for a, b in (([1, 2, 3], 3), ([1, 5, 3], 4)))
    changed = jax.jit(jax.vmap(change_one, in_axes=(0, None, None)))(jax.random.split(KEY, 64), task, other)
    found = {(*row, b) for row, b in zip(np.asarray(changed["a"]).tolist(), np.asarray(changed["b"]).tolist())}
    assert found == {(1, 5, 3, 3), (1, 2, 3, 4)}
    same = change_one(KEY, task, task)
    assert jax.tree.all(jax.tree.map(lambda one, two: bool((one == two).all()), same, task))


@pytest.mark.slow
def test_episodes_fit_altered_instructions_and_do_not_meet_them(batch):
    policy, episode, alter = batch
    altered = alter(KEY, episode)
    near = np.asarray(altered.valid).any(axis=1)
    assert 5 <= near.sum() < np.asarray(episode.success).sum() < ROWS  # Some successes meet the other one, too.
    assert np.asarray(episode.success)[near].all() and not np.asarray(altered.success)[near].any()
    numbers = [
        np.concatenate([np.asarray(one.task["wish"]), np.asarray(one.task["below"])[:, None]], axis=1)
        for one in (episode, altered)
    ]
    differ = (numbers[0] != numbers[1]).sum(axis=1)
    assert (differ <= 1).all() and (differ[near] == 1).all()
    for name in ("valid", "action_valid", "action_mask", "token_mask"):
        np.testing.assert_array_equal(*(np.asarray(getattr(one, name))[near] for one in (altered, episode)))
    tokens = [np.where(one.token_mask, one.tokens, 0)[near] for one in (altered, episode)]
    np.testing.assert_array_equal(tokens[0][..., REQUEST:], tokens[1][..., REQUEST:])
    assert (tokens[0][..., :REQUEST] != tokens[1][..., :REQUEST]).any(axis=2)[np.asarray(episode.valid)[near]].all()
    # By hand: what is bought is on the last screen, its price behind its traits.
    last = np.asarray(episode.valid).sum(axis=1) - 1
    size = policy.layout.observation
    for row in np.flatnonzero(near):
        words = policy.lexicon.text(jnp.asarray(read(policy, episode, row, last[row], size))).split()
        screen = words[5:]
        price = next(int(word) for word in screen if word.isdigit())
        for wish, meets in ((numbers[0][row], True), (numbers[1][row], False)):
            asked = [shop.WORDS[word] for word in wish[:2]]
            assert (all(word in screen for word in asked) and price < wish[-1]) == meets, (words, asked)


def read(policy, episode, row, turn, size):
    """Returns the words of an observation."""
    tokens, mask = episode.tokens[row, turn, :size], episode.token_mask[row, turn, :size]
    mask &= ~jnp.isin(tokens, jnp.asarray(list(policy.tokenizer.marks.values())))
    return policy.lexicon.parse(tokens, mask, size)[0]


def test_groups_are_altered_alike_wherever_they_are(batch):
    _, episode, alter = batch
    half = jax.tree.map(lambda leaf: leaf[ROWS // 2 :], episode)
    whole, part = alter(KEY, episode), alter(KEY, half)
    jax.tree.map(lambda one, two: np.testing.assert_array_equal(one[ROWS // 2 :], two), whole.task, part.task)
    others = alter(jax.random.key(4), episode).task  # Drawn anew for every batch.
    assert any((one != two).any() for one, two in zip(jax.tree.leaves(others), jax.tree.leaves(whole.task)))


def test_nothing_is_told_of_failures(batch):
    _, episode, alter = batch
    failed = alter(KEY, episode.replace(success=jnp.zeros(ROWS, bool)))
    assert not np.asarray(failed.valid).any()
