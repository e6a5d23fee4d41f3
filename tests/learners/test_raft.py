"""Iterated imitation: what is stored, when it is learned, and from which parameters."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

from jaxagents.language.collect import make_dialogue_collector
from jaxagents.learners import raft
from jaxagents.learners.supervised import make_supervised
from jaxagents.ops.imitation import successful
from jaxagents.types import Demonstrated, EpisodeView, Learner, Mean

KEY = jax.random.key(5)


@struct.dataclass
class Seen:
    """Stands for what is learned: how often every mark was shown, and steps."""

    params: jax.Array
    num_steps: jax.Array


def note(state, key, episode, axis_name=None):
    seen = jnp.zeros(10).at[episode.fingerprint[:, 0]].add(1.0)
    seen = seen if axis_name is None else jax.lax.psum(seen, axis_name)
    loss = Mean(total=jnp.float32(3.0), count=jnp.float32(2.0))
    state = state.replace(params=state.params + seen, num_steps=state.num_steps + 1)
    return state, {"loss": loss, "gradient_norm": jnp.float32(0.5)}


def make_learner(example, axis_name=None, **options):
    """Makes the learner of batches like `example` that counts what it imitates."""

    def init(key, start=None):
        params = jnp.zeros(10) if start is None else getattr(start, "params", start)
        return Seen(params=params, num_steps=jnp.int32(0))

    imitation = Learner(init=init, update=partial(note, axis_name=axis_name))
    defaults = {"num_collects": 1, "num_steps": 1, "batch_size": 2, "capacity": 4}
    return raft.make_iterated(imitation, example, axis_name=axis_name, **defaults | options)


@pytest.fixture
def batch(make_episode):
    """Returns `(marks, success) -> Episode`."""

    def make(marks, success):
        marks = np.asarray(marks, np.uint32)
        episode = make_episode(np.zeros((len(marks), 1)), np.ones((len(marks), 1)), group=np.arange(len(marks)))
        return episode.replace(fingerprint=jnp.asarray(marks)[:, None], success=jnp.asarray(success, bool))

    return make


def test_an_iteration_plays_first_and_imitates_only_what_it_chose(batch):
    first, second = batch([1, 2], [True, False]), batch([3, 4], [False, True])
    learner = make_learner(first, num_collects=2, num_steps=3)
    update = jax.jit(learner.update)
    state, metrics = update(learner.init(KEY), KEY, first)
    assert float(metrics["stored"]) == 1.0 and float(metrics["selected_fraction"].value) == 0.5
    assert float(metrics["loss"].count) == 0.0 and not state.params.any()
    state, metrics = update(state, KEY, second)
    # Three steps of both successes; means over the steps.
    np.testing.assert_array_equal(state.params, [0, 3, 0, 0, 3, 0, 0, 0, 0, 0])
    assert (float(metrics["loss"].total), float(metrics["loss"].count)) == (9.0, 6.0)
    assert float(metrics["gradient_norm"].value) == 0.5
    assert update._cache_size() == 1


@pytest.mark.parametrize("forget", [True, False])
def test_earlier_iterations_are_forgotten_or_kept(batch, forget):
    """One success an iteration, steps of two episodes: the second step is of the new one twice, or of both."""
    learner = make_learner(batch([1], [True]), batch_size=2, forget=forget)
    state = learner.init(KEY)
    state, _ = learner.update(state, KEY, batch([1], [True]))
    assert state.params[1] == 2.0  # A single episode fills a step in rotation.
    state, metrics = learner.update(state, KEY, batch([2], [True]))
    assert float(metrics["stored"]) == (1.0 if forget else 2.0)
    assert state.params[1:3].tolist() == ([2.0, 2.0] if forget else [3.0, 1.0])


def test_restarts_begin_from_the_start_and_others_go_on(batch):
    one = batch([1], [True])
    start = Seen(params=jnp.full(10, 5.0), num_steps=jnp.int32(9))
    anew, on = (make_learner(one, batch_size=1, restart=restart) for restart in (True, False))
    ends = []
    for learner in (anew, on):
        state = learner.init(KEY, start)
        for _ in range(3):
            state, _ = learner.update(state, KEY, one)
        ends.append(state)
    assert [float(end.params[1]) for end in ends] == [6.0, 8.0] and [float(end.params[0]) for end in ends] == [5.0, 5.0]
    assert [int(end.inner.num_steps) for end in ends] == [1, 3]


def test_nothing_is_learned_from_nothing(batch):
    none = batch([1, 2], [False, False])
    learner = make_learner(none)
    state, metrics = learner.update(learner.init(KEY), KEY, none)
    assert int(state.inner.num_steps) == 0 and float(metrics["loss"].count) == 0.0


def test_the_newest_are_stored(batch):
    learner = make_learner(batch([1, 2, 3], [True] * 3), capacity=4, forget=False)
    state = learner.init(KEY)
    state, _ = learner.update(state, KEY, batch([1, 2, 3], [True] * 3))
    state, _ = learner.update(state, KEY, batch([4, 5, 6], [True, False, True]))
    assert state.store.fingerprint[:, 0].tolist() == [4, 6, 1, 2] and state.filled.all()


def test_demonstrations_stay_and_are_the_first_ones(batch):
    def both(marks):
        return Demonstrated(own=batch([0, 0], [False, False]), demonstration=batch(marks, [True] * 2))

    learner = make_learner(both([7, 8]), num_demonstrations=3, num_steps=4, batch_size=3)
    state = learner.init(KEY)
    state, _ = learner.update(state, KEY, both([7, 8]))
    assert int(state.num_stored) == 2 and float(state.params[7:9].sum()) == 12.0
    before = state.params
    state, _ = learner.update(state, KEY, both([9, 6]))
    assert state.demonstrations.fingerprint[:, 0].tolist() == [7, 8, 9] and int(state.num_stored) == 3
    np.testing.assert_array_equal((state.params - before)[6:], [0, 4, 4, 4])


def test_steps_draw_every_episode_equally_often(batch):
    marks = batch([1, 2, 3, 4], [True] * 4)
    learner = make_learner(marks, num_steps=200, batch_size=2)
    state, _ = jax.jit(learner.update)(learner.init(KEY), KEY, marks)
    assert float(state.params.sum()) == 400.0
    np.testing.assert_allclose(state.params[1:5], 100.0, atol=20.0)


def test_two_devices_imitate_what_one_does(batch):
    whole = batch([1, 2, 3, 4], [True, False, True, True])
    one, several = make_learner(whole, num_steps=5), make_learner(whole, axis_name="device", num_steps=5)
    alone, metrics = one.update(one.init(KEY), KEY, whole)
    halves = jax.tree.map(lambda leaf: leaf.reshape(2, -1, *leaf.shape[1:]), whole)
    update = jax.pmap(several.update, axis_name="device", in_axes=(None, None, 0), devices=jax.devices()[:2])
    state, both = update(several.init(KEY), KEY, halves)
    np.testing.assert_array_equal(state.params, [alone.params] * 2)
    np.testing.assert_array_equal(state.store.fingerprint, [alone.store.fingerprint] * 2)
    assert both["stored"].tolist() == [float(metrics["stored"])] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_collects": 0}, "`num_collects` must be at least 1, got 0"),
        ({"num_demonstrations": 2}, "`num_demonstrations` must be 0 without an expert beside, got 2; try collector"),
    ],
)
def test_refused(batch, options, message):
    with pytest.raises(ValueError, match=message):
        make_learner(batch([1], [True]), **options)


@pytest.mark.slow
def test_a_language_agent_imitates_its_successes_as_supervised_training_does(lake, speak, params_of):
    """One iteration of one step on all successes is the supervised step on them."""
    agent = raft.make_agent(
        lake,
        policy=speak,
        optimizer=lambda steps: optax.sgd(0.1),
        num_collects=1,
        num_steps=1,
        batch_size=4,
        capacity=16,
    )
    collector = make_dialogue_collector(lake, agent.policy, num_groups=4, group_size=4)
    params = params_of(agent.policy)
    _, batch, _ = jax.jit(lambda key: collector.collect(collector.init(key, params), params, key))(KEY)
    batch = batch.replace(success=jnp.arange(16) % 4 == 1)  # Four successes fill the step.
    learner = agent.make_learner(collector, 1)
    state, _ = jax.jit(learner.update)(learner.init(KEY, params), KEY, batch)
    plain = make_supervised(agent.policy.model, optax.sgd(0.1))
    chosen = jax.tree.map(lambda leaf: leaf[1::4], batch)
    assert successful(EpisodeView(episode=chosen)).all()
    expected, _ = jax.jit(plain.update)(plain.init(KEY, params), KEY, chosen)
    for one, other in zip(jax.tree.leaves(state.params), jax.tree.leaves(expected.params), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
