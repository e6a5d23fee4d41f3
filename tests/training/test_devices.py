"""One seed gives the same run under jit, pmap and a sharded mesh, on 1, 2 and 8 devices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments.tmaze import make_environment
from jaxagents.learners.ppo import make_ppo
from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import as_policy, make_actor_critic
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.devices import axis_name_of, place, select_devices
from jaxagents.training.program import make_program, over_seeds

NUM_ENVS = 16


def _program(mode, memory=None, num_seeds=0):
    environment = make_environment(corridor_length=3)
    actor_critic = make_actor_critic(
        environment.observation_space, environment.action_space, encoder=MLP(hidden_sizes=(8,)), memory=memory
    )
    collector = make_rollout_collector(environment, as_policy(actor_critic), num_envs=NUM_ENVS, num_steps=8)
    learner = make_ppo(
        actor_critic, optax.adam(1e-3), num_epochs=2, num_minibatches=2, axis_name=axis_name_of(mode), target_kl=0.1
    )
    program = make_program(collector, learner)
    return over_seeds(program, num_seeds) if num_seeds else program


def _run(mode, num_devices, num_updates=3, **options):
    runner = place(_program(mode, **options), mode=mode, devices=select_devices(mode, num_devices))
    state, metrics = runner.run(runner.init(7), num_updates)
    return runner, runner.to_global(state), {name: np.asarray(value) for name, value in metrics.items()}


def _assert_same_run(state, metrics, reference, reference_metrics):
    assert jax.tree.structure(state) == jax.tree.structure(reference)
    for actual, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(reference), strict=True):
        if jnp.issubdtype(actual.dtype, jax.dtypes.prng_key):
            actual, wanted = jax.random.key_data(actual), jax.random.key_data(wanted)
        assert actual.shape == wanted.shape
        np.testing.assert_allclose(np.asarray(actual), np.asarray(wanted), atol=1e-5, rtol=1e-5)
    assert metrics.keys() == reference_metrics.keys()
    for name, value in metrics.items():
        np.testing.assert_allclose(value, reference_metrics[name], atol=2e-5, rtol=2e-5, err_msg=name)


@pytest.fixture(scope="module")
def reference():
    _, state, metrics = _run("jit", 1)
    return state, metrics


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "num_devices"), [("sharded", 2), ("sharded", 8), ("pmap", 2), ("pmap", 8)])
def test_the_run_does_not_depend_on_devices(reference, mode, num_devices):
    _, state, metrics = _run(mode, num_devices)
    _assert_same_run(state, metrics, *reference)


@pytest.mark.parametrize("mode", ["sharded", "pmap"])
@pytest.mark.slow
def test_recurrent_sequences_and_seeds_on_two_devices(mode):
    options = {"memory": GRU(hidden_size=4), "num_seeds": 2, "num_updates": 2}
    _, reference, reference_metrics = _run("jit", 1, **options)
    _, state, metrics = _run(mode, 2, **options)
    assert metrics["train/loss"].shape == (2,)
    _assert_same_run(state, metrics, reference, reference_metrics)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["jit", "sharded", "pmap"])
def test_a_state_goes_through_its_global_form_unchanged(mode):
    runner, state, _ = _run(mode, 1 if mode == "jit" else 4, num_updates=1)
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), runner.abstract)
    assert shapes == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state)
    copy = jax.tree.map(jnp.copy, state)
    again = runner.to_global(runner.from_global(state))
    _assert_same_run(again, {}, copy, {})
    assert len(again.collector.first.sharding.device_set) == (1 if mode == "jit" else 4)


@pytest.mark.exhaustive
def test_any_number_of_updates_is_one_program():
    runner = place(_program("jit"), mode="jit", devices=select_devices("jit", 1))
    together, _ = runner.run(runner.init(3), 3)
    with jax.log_compiles(False):
        apart = runner.init(3)
        for num_updates in (1, 2):
            apart, _ = runner.run(apart, num_updates)
    for one, other in zip(jax.tree.leaves(together.learner), jax.tree.leaves(apart.learner), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert int(apart.update) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "num_devices"), [("jit", 1), ("sharded", 2), ("pmap", 2)])
def test_experience_is_counted_and_limited_over_all_devices(mode, num_devices):
    runner = place(_program(mode), mode=mode, devices=select_devices(mode, num_devices))
    # 16 environments x 8 steps per update: 300 steps are reached by the third.
    state, metrics = runner.run(runner.init(7), 10, {"env_steps": np.int32(300)})
    assert int(runner.to_global(state).update) == 3 and int(metrics["rollout/env_steps"]) == 384
    assert metrics["rollout/episodes"].dtype == jnp.int32 and int(metrics["rollout/episodes"]) > 16


def test_copies_of_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="must be sharded with several processes, got pmap and 2 of them"):
        select_devices("pmap", None)
    assert select_devices("sharded", 2)


def test_devices_and_modes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="`devices.num_devices` must be between 1 and the 8 devices"):
        select_devices("pmap", 9)
    with pytest.raises(ValueError, match="must be pmap or sharded to use several devices"):
        select_devices("jit", 2)
    with pytest.raises(ValueError, match="must be jit, pmap or sharded, got 'gpu'"):
        select_devices("gpu", 1)
