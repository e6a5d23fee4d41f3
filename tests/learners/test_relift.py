"""Reinforcement with supervised steps in between: what waits, in which order, and when it is used."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

from jaxagents.environments.text.arithmetic import make_environment
from jaxagents.language.demonstrations import make_demonstrated_collector
from jaxagents.learners import relift
from jaxagents.losses.aggregation import token_mean
from jaxagents.losses.token_policy_gradient import plain
from jaxagents.ops.credit import rloo
from jaxagents.types import Demonstrated, Episode, Learner

KEY = jax.random.key(3)


@struct.dataclass
class Counts:
    """Stands for parameters and optimiser state: what was seen."""

    params: dict
    opt_state: jax.Array


def make_batch(marks, success):
    """Returns demonstrations with these marks as tokens, and own episodes with these successes `[n, G]`."""
    success = jnp.asarray(success)

    def episodes(tokens, success):
        nothing = jnp.zeros((tokens.shape[0], 1))
        flags = jnp.ones_like(nothing, bool)
        return Episode(
            prompt_tokens=tokens,
            prompt_mask=flags,
            **dict.fromkeys(("token_mask", "action_mask", "thought_mask"), flags[:, :, None]),
            **dict.fromkeys(("tokens", "position", "agent"), tokens[:, :, None]),
            **dict.fromkeys(("behavior_log_prob", "sampling_log_prob"), nothing[:, :, None]),
            reward=nothing,
            fingerprint=tokens,
            **dict.fromkeys(("valid", "action_valid", "terminated", "truncated"), flags),
            success=success,
            group=tokens[:, 0],
        )

    return Demonstrated(
        own=episodes(jnp.zeros((success.size, 1), jnp.int32), success.reshape(-1)),
        demonstration=episodes(jnp.asarray(marks, jnp.int32)[:, None], jnp.ones(len(marks), bool)),
    )


def note_shown(state, key, demonstrations, axis_name=None):
    shown = demonstrations.tokens[:, 0, 0]
    if axis_name is not None:
        shown = jax.lax.all_gather(shown, axis_name, tiled=True)
    return state.replace(params={**state.params, "shown": shown}), {}


def count_own(state, key, own):
    return state.replace(params={**state.params, "own": state.params["own"] + 1}), {"loss": jnp.float32(0.5)}


def every_task(success, key):
    return jnp.ones(success.shape[0], bool)


def make_counting(batch, **options):
    def init(key, params=None):
        return Counts(params={"own": jnp.int32(0), "shown": jnp.full(2, -1)}, opt_state=jnp.int32(0))

    defaults = {"choose": relift.unsolved, "batch_size": 2, "capacity": 4}
    note = partial(note_shown, axis_name=options.get("axis_name"))
    return relift.make_interleaved(
        Learner(init=init, update=count_own), Learner(init=init, update=note), batch, **defaults | options
    )


@pytest.mark.exhaustive
def test_demonstrations_of_unsolved_tasks_wait_until_there_are_enough():
    # Task 1 of the first batch and tasks 3, 4, 5 of the second are unsolved; the newest two are shown, two stay.
    first = make_batch([0, 1], [[True, False], [False, False]])
    second = make_batch([3, 4, 5], [[False, False]] * 3)
    third = make_batch([6, 7, 8], [[True, False]] * 3)
    learner = make_counting(first)
    state = learner.init(KEY)
    state, metrics = learner.update(state, KEY, first)
    assert (float(metrics["demonstrations"]), float(metrics["waiting"])) == (0.0, 1.0)
    assert float(metrics["demonstrated_fraction"].value) == 0.5 and float(metrics["loss"]) == 0.5
    np.testing.assert_array_equal(state.params["shown"], [-1, -1])
    state, metrics = learner.update(state, KEY, second)
    assert (float(metrics["demonstrations"]), float(metrics["waiting"])) == (2.0, 2.0)
    np.testing.assert_array_equal(state.params["shown"], [3, 4])
    state, metrics = learner.update(state, KEY, third)
    np.testing.assert_array_equal(state.params["shown"], [5, 1])
    assert (float(metrics["demonstrations"]), float(metrics["waiting"])) == (2.0, 0.0)
    state, metrics = learner.update(state, KEY, third)
    assert float(metrics["demonstrations"]) == 0.0 and int(state.params["own"]) == 4


def test_the_oldest_are_forgotten_when_the_queue_is_full():
    batch = make_batch([0, 1, 2, 3, 4], [[False]] * 5)
    learner = make_counting(batch, capacity=3)
    state, metrics = jax.jit(learner.update)(learner.init(KEY), KEY, batch)
    np.testing.assert_array_equal(state.params["shown"], [0, 1])
    assert float(metrics["waiting"]) == 1.0


@pytest.mark.slow
def test_two_devices_share_what_one_shows():
    batch = make_batch([0, 1, 2, 3], [[False], [True], [False], [False]])
    one = make_counting(batch)
    alone, metrics = one.update(one.init(KEY), KEY, batch)
    several = make_counting(batch, axis_name="device")
    halves = jax.tree.map(lambda leaf: leaf.reshape(2, -1, *leaf.shape[1:]), batch)
    update = jax.pmap(several.update, axis_name="device", in_axes=(None, None, 0), devices=jax.devices()[:2])
    state, both = update(several.init(KEY), KEY, halves)
    np.testing.assert_array_equal(state.params["shown"], [alone.params["shown"]] * 2)
    np.testing.assert_array_equal(state.waiting.tokens, [alone.waiting.tokens] * 2)
    assert both["waiting"].tolist() == [float(metrics["waiting"])] * 2 == [1.0, 1.0]


def test_choices():
    success = jnp.array([[True, False], [False, False], [True, True], [False, False]])
    assert relift.unsolved(success, KEY).tolist() == [False, True, False, True]
    assert relift.no_task(success, KEY).tolist() == [False] * 4
    drawn = jax.vmap(partial(relift.as_many_as_unsolved, success))(jax.random.split(KEY, 64))
    assert (np.asarray(drawn).sum(axis=1) == 2).all()
    np.testing.assert_allclose(np.asarray(drawn).mean(axis=0), 0.5, atol=0.25)


def test_queues_that_hold_no_batch_are_refused():
    with pytest.raises(ValueError, match="`capacity` must be at least `batch_size`, and both positive, got 1 and 2"):
        make_counting(make_batch([0], [[False]]), capacity=1)


@pytest.fixture(scope="module")
def sums():
    """Returns a world of one turn."""
    return make_environment(num_digits=(1,), num_terms=(2,), operations=("+",))


@pytest.fixture(scope="module")
def agent(sums, speak):
    return relift.make_agent(
        sums,
        policy=partial(speak, context_turns=1, prompt=False),
        optimizer=lambda steps: optax.adam(1e-2),
        choose=every_task,
        batch_size=4,
        capacity=8,
        advantage=rloo,
        loss=plain,
        aggregation=token_mean,
    )


@pytest.mark.exhaustive
def test_a_language_agent_imitates_and_reinforces_each_with_moments_of_its_own(sums, agent):
    collector = make_demonstrated_collector(sums, agent.policy, num_groups=4, group_size=2)
    learner = agent.make_learner(collector, 3)
    state = learner.init(KEY)

    @jax.jit
    def train(state):
        _, batch, _ = collector.collect(collector.init(KEY, state.params), state.params, KEY)
        return learner.update(state, KEY, batch)

    after, metrics = train(state)
    assert float(metrics["demonstrations"]) == 4.0 and np.isfinite(float(metrics["loss"]))
    assert int(after.inner.opt_state[0].count) == int(after.opt_state[0].count) == 1
    shown, earned = (jax.tree.leaves(state[0].mu) for state in (after.opt_state, after.inner.opt_state))
    assert all(np.abs(one).max() > 0.0 for one in map(np.asarray, shown)) and any(
        not np.allclose(one, other) for one, other in zip(shown, earned)
    )


@pytest.mark.exhaustive
def test_episodes_without_demonstrations_are_refused(sums, agent):
    from jaxagents.language.collect import make_dialogue_collector

    collector = make_dialogue_collector(sums, agent.policy, num_groups=2, group_size=2)
    with pytest.raises(ValueError, match="`collector` must give own episodes and demonstrations, got .* Episode"):
        agent.make_learner(collector, 3)
