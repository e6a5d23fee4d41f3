"""Programs from a collector that counts and a learner that adds, worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxagents.training.program import (
    REPLICATED,
    counted_units,
    make_program,
    over_seeds,
    report,
    run_updates,
    stage_keys,
)
from jaxagents.types import Array, Collector, Count, Learner, Mean

KEY = jax.random.key(0)


@struct.dataclass
class Adder:
    params: Array
    memory: Array


def collect(state, params, key):
    """Gives as many ones as there were calls before, beside the parameters and a random number."""
    calls = state["calls"] + 1
    count = calls[0].astype(jnp.float32)
    metrics = {"length": Mean(total=count * count, count=count - 1.0), "sum": jnp.sum(calls)}
    metrics |= {"turns": Count(10 * calls[0]), "episodes": Count(jnp.int32(2))}
    return state | {"calls": calls}, {"ones": calls, "seen": params, "noise": jax.random.bits(key) >> 8}, metrics


def update(state, key, batch):
    params = state.params + jnp.sum(batch["ones"]).astype(jnp.float32)
    metrics = {
        "seen": batch["seen"],
        "collect_noise": batch["noise"].astype(jnp.float32),
        "learn_noise": (jax.random.bits(key) >> 8).astype(jnp.float32),
    }
    return state.replace(params=params), metrics


COLLECTOR = Collector(
    init=lambda key, params: {
        "calls": jnp.zeros(2, jnp.int32),
        "start": jnp.broadcast_to(params, (2,)),
        "noise": jax.random.bits(key, (2,)),
    },
    collect=collect,
    steps_per_collect=14,
)


def init_learner(key, params=None):
    return Adder(params=jax.random.uniform(key) if params is None else params, memory=jnp.zeros(4))


LEARNER = Learner(init=init_learner, update=update)
PROGRAM = make_program(COLLECTOR, LEARNER)
RUN = jax.jit(lambda state, num_updates: run_updates(PROGRAM, state, num_updates))


@pytest.fixture(scope="module")
def start():
    return jax.jit(PROGRAM.init)(KEY, jnp.float32(10.0))


@pytest.fixture(scope="module")
def three(start):
    """Returns states and metrics of three updates, one at a time."""
    states, metrics, one = [start], [], jax.jit(PROGRAM.update)
    for _ in range(3):
        state, update_metrics = one(states[-1])
        states.append(state)
        metrics.append(update_metrics)
    return states, metrics


def test_start_gives_parameters_to_both_and_keys_to_each(start):
    assert PROGRAM.steps_per_update == 14 and PROGRAM.num_seeds == 0
    assert float(start.learner.params) == 10.0 and int(start.update) == 0
    np.testing.assert_array_equal(start.collector["start"], 10.0)
    fresh = jax.jit(PROGRAM.init)(KEY)
    assert 0.0 <= float(fresh.learner.params) < 1.0
    np.testing.assert_array_equal(fresh.collector["start"], fresh.learner.params)
    np.testing.assert_array_equal(fresh.collector["noise"], start.collector["noise"])
    assert len(set(np.asarray(start.collector["noise"]).tolist())) == 2


def test_updates_collect_then_learn_and_name_their_metrics(three):
    states, metrics = three
    assert [int(state.update) for state in states] == [0, 1, 2, 3]
    # The batches sum to 2, 4 and 6.
    assert [float(state.learner.params) for state in states] == [10.0, 12.0, 16.0, 22.0]
    assert set(metrics[0]) == {
        *("rollout/length", "rollout/sum", "rollout/turns", "rollout/episodes"),
        *("train/seen", "train/collect_noise", "train/learn_noise"),
    }
    assert [float(update_metrics["train/seen"]) for update_metrics in metrics] == [10.0, 12.0, 16.0]
    noise = [float(m[name]) for m in metrics for name in ("train/collect_noise", "train/learn_noise")]
    assert len(set(noise)) == 6
    for state in states:
        np.testing.assert_array_equal(jax.random.key_data(state.key), jax.random.key_data(states[0].key))


def test_runs_merge_their_metrics_exactly(start, three):
    states, metrics = three
    state, means = RUN(start, 3)
    jax.tree.map(np.testing.assert_array_equal, jax.random.key_data(state.key), jax.random.key_data(states[3].key))
    jax.tree.map(np.testing.assert_array_equal, state.replace(key=()), states[3].replace(key=()))
    # Totals 1 + 4 + 9 over counts 0 + 1 + 2, not the mean of the means.
    assert (float(means["rollout/length"].total), float(means["rollout/length"].count)) == (14.0, 3.0)
    assert (float(means["rollout/sum"].value), float(means["rollout/sum"].count)) == (4.0, 3.0)
    assert float(means["train/seen"].value) == pytest.approx((10.0 + 12.0 + 16.0) / 3.0)
    np.testing.assert_allclose(
        means["train/learn_noise"].value, np.mean([float(m["train/learn_noise"]) for m in metrics]), rtol=1e-6
    )


def test_any_number_of_updates_is_the_same_program(start, three):
    states, _ = three
    assert float(RUN(start, 1)[0].learner.params) == 12.0
    halfway = RUN(start, 2)[0]
    jax.tree.map(np.testing.assert_array_equal, halfway.replace(key=()), states[2].replace(key=()))
    # Two and one are three.
    last, means = RUN(halfway, 1)
    jax.tree.map(np.testing.assert_array_equal, last.replace(key=()), states[3].replace(key=()))
    assert (float(means["rollout/length"].total), float(means["rollout/length"].count)) == (9.0, 2.0)
    none, means = RUN(start, 0)
    jax.tree.map(np.testing.assert_array_equal, none.replace(key=()), start.replace(key=()))
    assert all(np.isnan(report(mean)) for mean in means.values() if isinstance(mean, Mean))
    assert int(report(means["rollout/turns"])) == 0
    assert RUN._cache_size() == 1


def test_seeds_are_the_single_runs_of_their_folded_keys():
    program = over_seeds(PROGRAM, 3)
    assert program.num_seeds == 3 and program.steps_per_update == 14
    state, means = jax.jit(lambda key: run_updates(program, program.init(key), 2))(KEY)
    single = jax.jit(lambda key: run_updates(PROGRAM, PROGRAM.init(key), 2))
    for seed in range(3):
        alone, alone_means = single(jax.random.fold_in(KEY, seed))
        jax.tree.map(lambda a, b, seed=seed: np.testing.assert_array_equal(a[seed], b), means, alone_means)
        np.testing.assert_array_equal(jax.random.key_data(state.key)[seed], jax.random.key_data(alone.key))
        jax.tree.map(
            lambda a, b, seed=seed: np.testing.assert_array_equal(a[seed], b),
            state.replace(key=()),
            alone.replace(key=()),
        )
    assert len(set(np.asarray(state.learner.params).tolist())) == 3


def test_no_two_pairs_of_seed_and_stage_share_a_key():
    keys = [stage_keys(seed, stage) for seed in range(5) for stage in range(4)]
    # Neither do the keys that a stage splits for its learner, its collector and its updates.
    keys = [key for one in keys for key in (one, *jax.random.split(one, 3))]
    assert len({tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys}) == 5 * 4 * 4


def test_several_seeds_have_the_keys_of_the_single_ones():
    together = jax.random.key_data(stage_keys(3, 1, num_seeds=4))
    chosen = jax.random.key_data(stage_keys(np.array([6, 3]), 1, num_seeds=2))
    alone = [jax.random.key_data(stage_keys(seed, 1)) for seed in (3, 4, 5, 6)]
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(chosen, [alone[3], alone[0]])


def test_seeds_start_from_parameters_of_their_own():
    state = jax.jit(over_seeds(PROGRAM, 2).init)(KEY, jnp.array([10.0, 20.0]))
    np.testing.assert_array_equal(state.learner.params, [10.0, 20.0])
    np.testing.assert_array_equal(state.collector["start"], [[10.0, 10.0], [20.0, 20.0]])


def test_a_metric_says_whether_nothing_was_counted_or_what_was_is_not_finite():
    totals, counts = jnp.array([0.0, 6.0, jnp.nan, jnp.inf, jnp.nan]), jnp.array([0.0, 3.0, 2.0, 1.0, 0.0])
    np.testing.assert_array_equal(report(Mean(total=totals, count=counts)), [np.nan, 2.0, np.inf, np.inf, np.nan])


def test_a_copy_that_diverges_stands_still_and_the_others_do_not_notice():
    """The parameters overflow when they grow beyond 100: of the second copy in its second update."""

    def learn(state, key, batch):
        state, metrics = update(state, key, batch)
        params = jnp.where(state.params > 100.0, jnp.inf, state.params)
        return state.replace(params=params, memory=state.memory + 1.0), metrics

    program = make_program(COLLECTOR, LEARNER._replace(update=learn))
    together = over_seeds(program, 2)
    starts = together.init(KEY, jnp.array([0.0, 96.0]))
    state, means = jax.jit(lambda state: run_updates(together, state, 3))(starts)
    np.testing.assert_array_equal(state.learner.params, [12.0, 98.0])  # 2 + 4 + 6, and 2 before it diverged.
    np.testing.assert_array_equal(state.learner.memory[:, 0], [3.0, 1.0])
    np.testing.assert_array_equal(state.diverged, [-1, 1])
    np.testing.assert_array_equal(state.update, [3, 3])
    np.testing.assert_array_equal(report(means["train/seen"]), [np.float32((0.0 + 2.0 + 6.0) / 3.0), np.inf])
    assert np.isfinite(report(means["rollout/sum"])).all()


def test_devices_split_the_collector_and_what_the_learner_says(start):
    axes = PROGRAM.partition(start)
    assert set(jax.tree.leaves(axes.collector)) == {0}
    assert set(jax.tree.leaves((axes.learner, axes.key, axes.update))) == {REPLICATED}
    split = make_program(COLLECTOR, LEARNER._replace(partition=lambda state: Adder(params=REPLICATED, memory=0)))
    assert split.partition(start).learner == Adder(params=REPLICATED, memory=0)
    # Behind the axis of seeds.
    program = over_seeds(split, 2)
    axes = program.partition(jax.eval_shape(program.init, KEY))
    assert axes.learner == Adder(params=REPLICATED, memory=1) and set(jax.tree.leaves(axes.collector)) == {1}
    assert axes.key == axes.update == REPLICATED


@pytest.mark.parametrize("num_seeds", [0, -2])
def test_refuses_no_seeds(num_seeds):
    with pytest.raises(ValueError, match=f"`num_seeds` must be at least 1, got {num_seeds}"):
        over_seeds(PROGRAM, num_seeds)


def test_experience_is_counted_exactly_and_ends_a_run(start, three):
    states, _ = three
    assert counted_units(PROGRAM) == ["episodes", "turns"]
    # Updates play 10, 20, 30, ... turns and 2 episodes each.
    assert {name: int(report(RUN(start, 3)[1][name])) for name in ("rollout/turns", "rollout/episodes")} == {
        "rollout/turns": 60,
        "rollout/episodes": 6,
    }

    @jax.jit
    def run_within(state, turns, episodes):
        return run_updates(PROGRAM, state, 100, limits={"turns": turns, "episodes": episodes})

    for turns, episodes, updates in ((29, 99, 2), (30, 99, 2), (31, 99, 3), (999, 4, 2), (999, 5, 3), (0, 99, 1)):
        state, merged = run_within(start, turns, episodes)
        assert (int(state.update), int(merged["rollout/episodes"].total)) == (updates, 2 * updates)
    jax.tree.map(np.testing.assert_array_equal, run_within(start, 60, 99)[0].replace(key=()), states[3].replace(key=()))


def test_seeds_side_by_side_go_on_until_each_has_its_experience():
    together = over_seeds(PROGRAM, 2)
    state = jax.jit(together.init)(KEY)
    left = jnp.array([20, 60], jnp.int32)  # As after a start in which the first seed has played 40 turns more.
    state, merged = jax.jit(lambda state: run_updates(together, state, 100, limits={"turns": left}))(state)
    assert np.asarray(state.update).tolist() == [3, 3]
    assert np.asarray(report(merged["rollout/turns"])).tolist() == [60, 60]
