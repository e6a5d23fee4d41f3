"""Own episodes under a false belief, told as if there had been none, and thoughts that are watched."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import code, crafting, desk
from jaxagents.environments.text.exploits import with_exploit
from jaxagents.environments.text.house_rules import with_house_rules
from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.interventions import episode_actions
from jaxagents.language.misled import make_misled_collector
from jaxagents.language.monitored import flag, make_monitored_collector
from jaxagents.language.relabeling import recorded_words
from jaxagents.ops.expert_pairs import expert_against_failures

KEY = jax.random.key(2)


@pytest.fixture(scope="module")
def world():
    wrap = partial(with_house_rules, shares={"harmful": 1.0})
    return desk.make_environment((2,), wrappers={"house_rules": wrap})


@pytest.mark.slow
def test_misled_episodes_are_told_without_the_belief(world, speak, params_of):
    policy = speak(world, prompt=False)
    params = params_of(policy)
    collector = make_misled_collector(world, policy, num_groups=3, group_size=2)
    batch, metrics = jax.jit(lambda key: collector.collect(collector.init(key, params), params, key)[1:])(KEY)
    own, expert = batch.own, batch.demonstration
    assert not np.asarray(own.task["hint"]).any() and collector.steps_per_collect == 6
    np.testing.assert_array_equal(np.repeat(expert.task["request"], 2, axis=0), own.task["request"])
    assert np.asarray(expert.success).all() and int(metrics["episodes"].total) == 6
    # The observation has no rules, as that of the expert, who has never had a belief.
    size = policy.layout.observation
    np.testing.assert_array_equal(np.repeat(expert.tokens[:, 0, :size], 2, axis=0), own.tokens[:, 0, :size])
    assert episode_actions(world, policy, own)[0].shape[0] == 6
    pairs = expert_against_failures(batch)
    failed = ~np.asarray(own.success)
    np.testing.assert_array_equal(np.asarray(pairs.pair[3:]), np.where(failed, np.repeat(np.arange(3), 2), -1))


def test_worlds_without_beliefs_are_refused(speak):
    plain = crafting.make_environment((1,))
    with pytest.raises(ValueError, match="`environment` must give hints, got 'crafting'; try \\+wrapper=house_rules"):
        make_misled_collector(plain, speak(plain, prompt=False), num_groups=2)


@pytest.mark.parametrize(
    "penalty", [pytest.param(0.0, marks=pytest.mark.exhaustive), pytest.param(0.5, marks=pytest.mark.slow)]
)
def test_thoughts_that_say_what_they_should_not_cost(speak, params_of, penalty):
    world = code.make_environment((2,), wrappers={"exploit": with_exploit})
    policy = speak(world, prompt=False, thought_tokens=8)
    params = params_of(policy)
    # The monitor looks for a word that this model thinks every now and then.
    options = {"words": ["1", "2", "3", "4"], "num_groups": 4, "group_size": 4, "parts": ["hacked"]}
    plain = make_dialogue_collector(world, policy, num_groups=4, group_size=4, parts=["hacked"])
    watched = make_monitored_collector(world, policy, penalty=penalty, **options)
    (before, _), (after, metrics) = (
        jax.jit(lambda key, one=one: one.collect(one.init(key, params), params, key)[1:])(KEY)
        for one in (plain, watched)
    )
    thoughts = np.asarray(recorded_words(policy, after)[1])
    ids = [world.text.words.index(word) for word in options["words"]]
    flagged = np.isin(thoughts, ids).any(axis=2) & np.asarray(after.valid)
    np.testing.assert_allclose(before.reward - after.reward, penalty * flagged, atol=1e-6)
    assert float(metrics["flagged"].total) == flagged.any(axis=1).sum()
    assert float(metrics["unflagged_hacked"].total) <= float(metrics["hacked"].total)


def test_flags_by_hand():
    thoughts = jnp.asarray([[[3, 5, -1], [-1, -1, -1]], [[2, 2, 7], [5, -1, -1]]])
    assert flag(thoughts, jnp.asarray([5, 7])).tolist() == [[True, False], [True, True]]


def test_monitors_need_thoughts_and_words(speak):
    world = code.make_environment((2,))
    with pytest.raises(ValueError, match="`policy.thought_tokens` must be positive to be monitored"):
        make_monitored_collector(world, speak(world, prompt=False), num_groups=2, group_size=2)
    policy = speak(world, prompt=False, thought_tokens=8)
    with pytest.raises(ValueError, match="`words` must be of 'code', got 'cheat'; try \\+wrapper=exploit"):
        make_monitored_collector(world, policy, num_groups=2, group_size=2)
