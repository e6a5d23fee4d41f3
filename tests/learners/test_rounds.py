"""Rounds of imitation and reinforcement: whose turn it is, what acts, and from which parameters each begins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxagents.learners.raft import make_iterated
from jaxagents.learners.rounds import make_rounds
from jaxagents.types import Learner, Mean

KEY = jax.random.key(2)


@struct.dataclass
class Added:
    """Stands for what is learned: a sum, and steps since the learner began."""

    params: jax.Array
    num_steps: jax.Array


def adder(amount, name):
    """Makes a learner that adds `amount` to its parameters."""

    def init(key, start=None):
        params = jnp.float32(0.0) if start is None else getattr(start, "params", start)
        return Added(params=params, num_steps=jnp.int32(0))

    def update(state, key, batch):
        metrics = {"loss": jnp.float32(amount), name: Mean(total=jnp.float32(3.0), count=jnp.float32(2.0))}
        return Added(params=state.params + amount, num_steps=state.num_steps + 1), metrics

    return Learner(init=init, update=update)


@pytest.fixture
def batch(make_episode):
    episode = make_episode(np.zeros((4, 1)), np.ones((4, 1)), group=np.arange(4))
    return episode.replace(success=jnp.ones(4, bool))


def make_learner(batch, restart):
    """Two batches to imitate, in three steps of 1 each, and three to reinforce, each of which adds 100."""
    counts = {"num_collects": 2, "num_steps": 3, "batch_size": 2, "capacity": 8}
    imitation = make_iterated(adder(1.0, "imitated"), batch, restart=restart, **counts)
    return make_rounds(imitation, adder(100.0, "reinforced"), num_collects=2, num_reinforced=3)


@pytest.mark.parametrize(
    ("restart", "expected"),
    [
        (True, [7, 10, 110, 210, 310, 310, 10, 110, 210, 310]),
        (False, [7, 10, 110, 210, 310, 310, 313, 413, 513, 613]),
    ],
)
def test_turns_are_taken_and_parameters_handed_over(batch, restart, expected):
    """By hand, from 7: a batch changes nothing, the second one adds 3, to the start or to what was reinforced."""
    learner = make_learner(batch, restart)
    update, state, params, steps = jax.jit(learner.update), learner.init(KEY, jnp.float32(7.0)), [], []
    for _ in expected:
        state, metrics = update(state, KEY, batch)
        assert learner.acting is None or float(learner.acting(state)) == float(state.params)
        params.append(float(state.params))
        steps.append(int(state.reinforcement.num_steps))
        assert float(state.reinforcement.params) == float(state.params)
    assert params == expected
    assert steps == [0, 0, 1, 2, 3, 0, 0, 1, 2, 3]  # The reinforcement begins anew in every round.


def test_metrics_count_in_their_own_turn(batch):
    learner = make_learner(batch, True)
    state, updates = learner.init(KEY, jnp.float32(7.0)), []
    for _ in range(3):
        state, metrics = jax.jit(learner.update)(state, KEY, batch)
        updates.append({name: (float(metric.total), float(metric.count)) for name, metric in metrics.items()})
    # Before the imitation is due, and when the reinforcement's turn is, there is nothing to tell of it.
    assert [one["imitated"] for one in updates] == [(0.0, 0.0), (9.0, 6.0), (0.0, 0.0)]
    assert [one["reinforced"] for one in updates] == [(0.0, 0.0), (0.0, 0.0), (3.0, 2.0)]
    assert [one["stored"] for one in updates] == [(4.0, 1.0), (8.0, 1.0), (0.0, 0.0)]


def test_a_state_of_its_own_kind_is_taken_up(batch):
    learner = make_learner(batch, True)
    state = learner.init(KEY, jnp.float32(7.0))
    for _ in range(3):
        state, _ = jax.jit(learner.update)(state, KEY, batch)
    again = learner.init(KEY, state)
    assert float(again.params) == float(again.reinforcement.params) == float(state.params) == 110.0


def test_rounds_must_have_both_parts(batch):
    with pytest.raises(ValueError, match="`num_reinforced` must be at least 1, got 0"):
        make_rounds(adder(1.0, "imitated"), adder(1.0, "reinforced"), num_collects=1, num_reinforced=0)
