"""Devices that sample while others learn: every batch once, of the weights that it should be of, also after a stop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

from jaxagents.environments.tmaze import make_environment
from jaxagents.learners.ppo import make_ppo
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import as_policy, make_actor_critic
from jaxagents.reporting.loggers import read_metrics
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.asynchronous import place_apart, split_devices
from jaxagents.training.composition import compose as compose_run
from jaxagents.training.config import DevicesConfig
from jaxagents.training.devices import place
from jaxagents.training.launch import run
from jaxagents.training.load import load_policy
from jaxagents.training.program import AXIS_NAME, make_program
from jaxagents.types import Collector, Count, Learner
from tests import CONFIGS

ROWS, MOST = 8, 16
DEVICES = jax.devices()


@struct.dataclass
class Counts:
    """How often every row was learned from, and the weights that it was sampled with; `params` counts updates."""

    params: jax.Array
    times: jax.Array
    version: jax.Array


def counting(axis_name):
    """Returns a collector whose rows have numbers, and a learner that remembers which ones it has seen."""

    def init(key, params):
        return jnp.arange(ROWS)

    def collect(state, params, key):
        batch = {"number": state[None], "weights": jnp.full((1, *state.shape), params)}
        return state + ROWS, batch, {"episodes": Count(jnp.int32(state.shape[0]))}

    def update(state, key, batch):
        def put(values):
            mine = jnp.zeros(MOST * ROWS, jnp.int32).at[batch["number"][0]].add(values)
            return mine if axis_name is None else jax.lax.psum(mine, axis_name)

        state = Counts(
            params=state.params + 1,
            times=state.times + put(1),
            version=state.version + put(batch["weights"][0]),
        )
        return state, {"loss": jnp.float32(0.0)}

    def start(key, start=None):
        return Counts(
            params=jnp.int32(0), times=jnp.zeros(MOST * ROWS, jnp.int32), version=jnp.zeros(MOST * ROWS, jnp.int32)
        )

    return Collector(init=init, collect=collect, steps_per_collect=ROWS), Learner(init=start, update=update)


@pytest.mark.parametrize(("lag", "num_actors", "num_learners"), [(0, 2, 2), (1, 4, 4), (3, 1, 2), (1, 2, 1)])
def test_every_row_is_learned_from_once_with_the_weights_of_its_turn(lag, num_actors, num_learners):
    actors, learners = DEVICES[:num_actors], DEVICES[num_actors : num_actors + num_learners]
    runner = place_apart(*counting(AXIS_NAME), actors=actors, learners=learners, lag=lag)
    state, metrics = runner.run(runner.init(0), 7)
    batch = np.arange(MOST * ROWS) // ROWS
    np.testing.assert_array_equal(state.learner.times, batch < 7)
    np.testing.assert_array_equal(state.learner.version, np.where(batch < 7, np.maximum(batch - lag, 0), 0))
    assert int(metrics["rollout/episodes"]) == 7 * ROWS
    np.testing.assert_allclose(
        metrics["rollout/staleness"], np.mean([min(update, lag) for update in range(7)]), rtol=1e-6
    )
    assert {device for leaf in jax.tree.leaves(state.learner) for device in leaf.devices()} == set(learners)
    assert state.collector["sampler"].devices() == set(actors)
    # A budget of experience ends a chunk with the update that reaches it.
    state, metrics = runner.run(state, 9, {"episodes": np.int32(2 * ROWS + 1)})
    assert int(state.update) == 10 and int(metrics["rollout/episodes"]) == 3 * ROWS


def test_a_run_goes_on_from_what_was_saved():
    runner = place_apart(*counting(AXIS_NAME), actors=DEVICES[:2], learners=DEVICES[2:4], lag=2)
    whole, _ = runner.run(runner.init(0), 9)
    state = runner.to_global(runner.run(runner.init(0), 4)[0])
    assert jax.tree.structure(state) == jax.tree.structure(runner.abstract)
    for leaf, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(runner.abstract), strict=True):
        assert (leaf.shape, leaf.dtype) == (wanted.shape, wanted.dtype)
        assert leaf.sharding.is_equivalent_to(wanted.sharding, leaf.ndim)
    whole_key, state = state.key, state.replace(key=None)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, runner.abstract.replace(key=None))
    restored = jax.device_put(jax.tree.map(np.asarray, state), shardings)
    resumed, _ = runner.run(runner.from_global(restored.replace(key=whole_key)), 5)
    jax.tree.map(np.testing.assert_array_equal, resumed.learner, whole.learner)


def ppo(axis_name):
    maze = make_environment(corridor_length=3)
    network = make_actor_critic(maze.observation_space, maze.action_space, encoder=MLP(hidden_sizes=(8,)))
    collector = make_rollout_collector(maze, as_policy(network), num_envs=8, num_steps=4)
    return collector, make_ppo(network, optax.adam(1e-2), num_minibatches=2, axis_name=axis_name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("lag", [0, 2])
def test_it_is_a_loop_on_one_device_with_weights_of_some_updates_ago(lag):
    runner = place_apart(*ppo(AXIS_NAME), actors=DEVICES[:2], learners=DEVICES[4:8], lag=lag)
    found, metrics = runner.run(runner.init(7), 6)
    if not lag:
        together = place(make_program(*ppo(AXIS_NAME)), mode="sharded", devices=DEVICES[:4])
        wanted, wanted_metrics = together.run(together.init(7), 6)
        wanted_learner = wanted.learner
        for name, value in wanted_metrics.items():
            np.testing.assert_allclose(metrics[name], value, atol=2e-5, rtol=2e-5, err_msg=name)
    else:
        collector, learner = ppo(None)
        state = place(make_program(collector, learner), mode="jit", devices=DEVICES[:1]).init(7)
        collect, update = jax.jit(collector.collect), jax.jit(learner.update)
        wanted_learner, rows, weights = state.learner, state.collector, [state.learner.params]
        for number in range(6):
            keys = jax.random.split(jax.random.fold_in(state.key, number))
            rows, batch, _ = collect(rows, weights[max(number - lag, 0)], keys[0])
            wanted_learner, _ = update(wanted_learner, keys[1], batch)
            weights.append(wanted_learner.params)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5, rtol=1e-5), found.learner.params, wanted_learner.params)


ASYNCHRONOUS = ("devices=asynchronous", "devices.num_devices=3", "devices.actors=1")


@pytest.mark.slow
def test_a_resumed_run_of_the_command_ends_in_the_same_bits(tmp_path, compose, last_state, bits):
    def run_for(folder, total_steps):
        config = compose(*ASYNCHRONOUS, "optimizer.anneal=false", f"training.total_steps={total_steps}")
        run(config, tmp_path / folder)
        return last_state(tmp_path / folder, config)

    whole = run_for("whole", 320)
    run_for("parts", 192)
    resumed = run_for("parts", 320)
    assert (whole.step, bits(whole.state)) == (resumed.step, bits(resumed.state))
    assert int(resumed.state.collector["waiting"][0].version) == 9
    elsewhere = ("optimizer.anneal=false", "training.total_steps=384", "devices.num_devices=4", "devices.actors=2")
    assert run(compose("devices=asynchronous", *elsewhere), tmp_path / "parts")["steps"] == 384
    policy = load_policy(tmp_path / "whole")
    jax.tree.map(np.testing.assert_array_equal, policy.params, jax.device_get(whole.state.learner.params))
    with pytest.raises(ValueError, match="got one saved with a `devices.lag` of 1 for no `devices.actors`; try"):
        run(compose("optimizer.anneal=false", "training.total_steps=640"), tmp_path / "whole")


@pytest.mark.exhaustive
def test_cartpole_learns_by_truncated_importance_weights_of_lagging_actors(tmp_path):
    """V-trace; a random policy balances for about 20 steps."""
    quiet = [f"logging.{name}=false" for name in ("progress", "tensorboard", "curves", "report")]
    sizes = ("collector.num_envs=16", "collector.num_steps=16", "training.total_steps=64000", "devices.lag=2")
    once = [f"{name}_every_steps=64000" for name in ("training.log", "training.checkpoint")]
    once.append("evaluation.every_steps=64000")
    chosen = ("world=cartpole", "algorithm=appo", "learner.actor_period=1", "devices.compilation_cache=null")
    run(compose_run(CONFIGS, *chosen, *sizes, *once, *ASYNCHRONOUS, *quiet), tmp_path)
    rows = read_metrics(tmp_path)
    staleness = next(row["rollout/staleness"] for row in rows if "rollout/staleness" in row)
    np.testing.assert_allclose(staleness, 2.0 - 3.0 / 250.0, rtol=1e-5)  # Of 250 batches, the first lag by 0 and 1.
    assert next(row["eval/episode_return"] for row in rows if "eval/episode_return" in row) > 100.0


def test_refused():
    with pytest.raises(
        ValueError, match="`devices.actors` must leave one of the devices of one process to learn, got 8"
    ):
        split_devices(None, 8)
    with pytest.raises(
        ValueError, match="`devices.mode` must be sharded, and `devices.mesh` null, for `devices.actors`"
    ):
        DevicesConfig(actors=1)
    with pytest.raises(ValueError, match="`devices.lag` must be at least 0, got -1"):
        DevicesConfig(lag=-1)
    with pytest.raises(ValueError, match="must be divisible by the device count, got 8 and 3; try 6 or 9"):
        place_apart(*counting(AXIS_NAME), actors=DEVICES[:3], learners=DEVICES[3:4], lag=1)
    collector, learner = counting(AXIS_NAME)
    whole = collector._replace(collect=lambda state, params, key: (state, {"x": jnp.zeros(3)}, {}))
    with pytest.raises(ValueError, match=r"`collector` must give batches with rows in every leaf .* got a leaf \[3\]"):
        place_apart(whole, learner, actors=DEVICES[:1], learners=DEVICES[1:2], lag=1)
