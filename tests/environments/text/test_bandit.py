"""The bandit with named arms: what is seen and paid, what names are worth, and which tasks there are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import bandit
from jaxagents.environments.text.words import sentence

KEY = jax.random.key(0)
# Phoenix (0) has the mean 0.9 and is the best, yeti (15) has 0.1, hydra (4) 0.5 and a bit.
TASK = {
    "names": jnp.asarray([15, 0, 4], jnp.int32),
    "ranks": jnp.asarray([0, 15, 8], jnp.int32),
    "level": jnp.asarray(0, jnp.int32),
}


@functools.cache
def functions(**options):
    environment = bandit.make_environment(num_arms=(3,), min_gaps=(0.0,), **options)
    return environment, jax.jit(environment.reset), jax.jit(environment.step)


def play(names, **options):
    environment, reset, step = functions(**options)
    state, timestep = reset(KEY, TASK)
    timesteps = [timestep]
    for i, name in enumerate(names):
        state, timestep = step(
            jax.random.key(i), state, jnp.asarray(environment.text.actions[bandit.NAMES.index(name)])
        )
        timesteps.append(timestep)
    return environment, state, timesteps


def test_arms_and_outcomes_are_seen_in_words():
    environment, state, timesteps = play(["phoenix", "golem", "yeti"], noise=0.0, num_pulls=3)
    texts = [sentence(environment.text.words, t.observation) for t in timesteps]
    arms = "arms yeti phoenix hydra ."
    assert texts == [
        arms,
        f"{arms} phoenix pays 9 .",
        f"{arms} nothing happens .",
        f"{arms} yeti pays 1 .",
    ]
    assert [bool(t.info["valid"]) for t in timesteps] == [True, True, False, True]
    np.testing.assert_allclose([t.reward for t in timesteps], [0.0, 0.9, 0.0, 0.1], rtol=1e-6)
    assert [bool(t.terminated) for t in timesteps] == [False, False, False, True]
    assert environment.render(state) == "> yeti 0.10\n  phoenix 0.90\n  hydra 0.53"


def test_success_is_the_best_arm_in_the_last_pull():
    for names, success in ((("phoenix", "yeti"), False), (("yeti", "phoenix"), True), (("phoenix", "golem"), False)):
        _, _, timesteps = play(names, noise=0.0, num_pulls=2, reward="sparse")
        assert [bool(t.info["success"]) for t in timesteps] == [False, False, success]
        assert [float(t.reward) for t in timesteps] == [0.0, 0.0, float(success)]


@pytest.mark.parametrize("distribution", ["gaussian", "bernoulli"])
def test_payoffs_have_the_mean_of_the_name(distribution):
    environment, reset, _ = functions(distribution=distribution, noise=0.1)
    state, _ = reset(KEY, TASK)
    action = jnp.asarray(environment.text.actions[bandit.NAMES.index("hydra")])
    pull = jax.jit(jax.vmap(lambda key: environment.step(key, state, action)[1].reward))
    rewards = np.asarray(pull(jax.random.split(KEY, 2000)))
    # Four standard deviations of the mean: 4 * 0.5 / sqrt(2000).
    np.testing.assert_allclose(rewards.mean(), bandit.MEANS[8], atol=0.045)
    points = {round(reward * 10) for reward in rewards.tolist()}
    assert points == {0, 10} if distribution == "bernoulli" else points <= set(range(11)) and len(points) > 4


@functools.cache
def sample(informative_names, num_tasks=256):
    environment = bandit.make_environment((2, 4), (0.3, 0.0), informative_names=informative_names)
    levels = jnp.arange(num_tasks, dtype=jnp.int32) % 2
    return jax.device_get(jax.jit(jax.vmap(environment.sample_task))(jax.random.split(KEY, num_tasks), levels))


def test_arms_are_as_many_and_as_far_apart_as_the_level_says():
    task = sample(True)
    counts = (task["names"] >= 0).sum(axis=1)
    np.testing.assert_array_equal(counts, np.where(task["level"] == 0, 2, 4))
    np.testing.assert_array_equal(task["names"] >= 0, task["ranks"] >= 0)
    ranks = np.sort(task["ranks"], axis=1)
    # The means are 0.8 / 15 apart: 0.3 takes six ranks.
    assert (ranks[:, -1] - ranks[:, -2])[task["level"] == 0].min() == 6
    assert (ranks[:, -1] - ranks[:, -2])[task["level"] == 1].min() == 1
    assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in task["names"])
    best = np.argmax(task["ranks"], axis=1)
    assert set(best[task["level"] == 1].tolist()) == {0, 1, 2, 3}


def test_names_keep_their_quality_unless_they_do_not():
    def qualities(task):
        pairs = zip(task["names"].ravel().tolist(), task["ranks"].ravel().tolist())
        return {pair for pair in pairs if pair[0] >= 0}

    assert len(qualities(sample(True))) == 16
    assert len(qualities(sample(False))) > 100


def test_best_weights_count_sets():
    # Below rank r there are r ranks, of which three others are taken; a gap of six ranks leaves r - 5.
    assert bandit.best_weights(4, 0.0).tolist()[:5] == [0, 0, 0, 1, 4]
    assert bandit.best_weights(2, 0.3).tolist()[4:9] == [0, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_arms": (1,)}, "`num_arms` must be from 2 to 16"),
        ({"num_arms": (17,)}, "`num_arms` must be from 2 to 16"),
        ({"num_arms": (2,)}, "`min_gaps` must be one per number of arms"),
        ({"num_arms": (2,), "min_gaps": (0.9,)}, "`min_gaps` must leave room for 2 arms"),
        ({"num_arms": (14,), "min_gaps": (0.3,)}, "`min_gaps` must leave room for 14 arms"),
        ({"num_pulls": 0}, "`num_pulls` must be at least 1"),
        ({"distribution": "cauchy"}, '`distribution` must be "gaussian" or "bernoulli"'),
        ({"noise": -0.1}, "`noise` must be at least 0"),
        ({"reward": "regret"}, '`reward` must be "sparse" or "dense"'),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(ValueError, match=message):
        bandit.make_environment(**options)
