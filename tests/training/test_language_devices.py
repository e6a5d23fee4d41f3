"""A language agent writes and learns the same on 1 and on 8 devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text.frozenlake import make_environment
from jaxagents.language.collect import make_dialogue_collector
from jaxagents.learners.optimizers import make_adam
from jaxagents.learners.policy_gradient import make_agent
from jaxagents.losses import aggregation
from jaxagents.losses.regularizers import entropy_bonus
from jaxagents.losses.token_policy_gradient import ppo_clip
from jaxagents.ops import credit
from jaxagents.training.devices import axis_name_of, place, select_devices
from jaxagents.training.program import make_program

NUM_GROUPS, GROUP_SIZE, NUM_UPDATES = 8, 4, 3

pytestmark = pytest.mark.slow  # One program for one device, two for eight.


def remember(collector, layout):
    """Returns a collector that keeps what was said in the last updates in its state, -1 where nothing was."""

    def init(key, params):
        tokens_so_far = jnp.full((NUM_GROUPS * GROUP_SIZE, NUM_UPDATES, layout.num_turns, layout.turn), -1, jnp.int32)
        return {"collector": collector.init(key, params), "tokens": tokens_so_far}

    def collect(state, params, key):
        own, episode, metrics = collector.collect(state["collector"], params, key)
        tokens = jnp.where(episode.token_mask, episode.tokens, -1)
        tokens_so_far = jnp.concatenate([state["tokens"][:, 1:], tokens[:, None]], axis=1)
        return {"collector": own, "tokens": tokens_so_far}, episode, metrics

    return collector._replace(init=init, collect=collect)


@pytest.fixture(scope="module")
def trained(speak):
    """Returns `(mode, num_devices) -> (parameters before, state after, metrics)`."""
    lake = make_environment((4,), (0.2,), reward="dense", max_steps=6)  # Returns differ within the groups.

    def train(mode, num_devices):
        agent = make_agent(
            lake,
            policy=partial(speak, context_turns=1, prompt=False),
            optimizer=partial(make_adam, learning_rate=1e-2, max_gradient_norm=1.0),
            advantage=credit.grpo,
            loss=partial(ppo_clip, clip_epsilon=0.2),
            aggregation=aggregation.token_mean,
            regularizers={"entropy": partial(entropy_bonus, coefficient=0.01)},
            num_minibatches=2,
            axis_name=axis_name_of(mode),
        )
        sizes = {"num_groups": NUM_GROUPS, "group_size": GROUP_SIZE}
        collector = make_dialogue_collector(lake, agent.policy, axis_name=axis_name_of(mode), **sizes)
        collector = remember(collector, agent.policy.layout)
        program = make_program(collector, agent.make_learner(collector, NUM_UPDATES))
        runner = place(program, mode=mode, devices=select_devices(mode, num_devices))
        state = runner.init(7)
        before = jax.device_get(runner.params(state))
        state, metrics = runner.run(state, NUM_UPDATES)
        return before, jax.device_get(runner.to_global(state).replace(key=None)), jax.device_get(metrics)

    return train


@pytest.fixture(scope="module")
def alone(trained):
    return trained("jit", 1)


def test_the_run_learns_from_dialogues_that_differ(alone):
    before, state, metrics = alone
    moved = jax.tree.map(lambda old, new: np.max(np.abs(old - new)), before, state.learner.params)
    assert max(jax.tree.leaves(moved)) > 1e-2
    tokens_so_far = state.collector["tokens"]
    assert tokens_so_far.shape[1] == NUM_UPDATES and (tokens_so_far >= 0).any(axis=(0, 2, 3)).all()
    assert (tokens_so_far[:, 0] != tokens_so_far[:, 1]).any() and (tokens_so_far[:, 1] != tokens_so_far[:, 2]).any()
    assert metrics["train/gradient_norm"] > 0.0


@pytest.mark.parametrize("mode", ["pmap", "sharded"])
def test_eight_devices_write_and_learn_what_one_does(alone, trained, mode):
    before, state, metrics = trained(mode, 8)
    jax.tree.map(np.testing.assert_array_equal, before, alone[0])
    np.testing.assert_array_equal(state.collector["tokens"], alone[1].collector["tokens"])
    assert int(state.update) == NUM_UPDATES

    def close(actual, wanted):
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-5)

    jax.tree.map(close, state.learner.params, alone[1].learner.params)
    assert metrics.keys() == alone[2].keys()
    for name, value in metrics.items():
        np.testing.assert_allclose(value, alone[2][name], rtol=1e-4, atol=1e-5, err_msg=name)
