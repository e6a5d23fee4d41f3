"""Devices share the work, and language learners of every kind learn on several devices what they learn on one."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments.text.arithmetic import make_environment as make_sums
from jaxagents.environments.tmaze import make_environment as make_tmaze
from jaxagents.language.collect import make_dialogue_collector
from jaxagents.language.demonstrations import make_demonstrated_collector, make_demonstration_collector
from jaxagents.learners import policy_gradient, preference, relift, spa, supervised
from jaxagents.learners.ppo import make_ppo
from jaxagents.losses.aggregation import token_mean
from jaxagents.losses.preference import dpo
from jaxagents.losses.token_policy_gradient import ppo_clip
from jaxagents.networks.torsos import MLP
from jaxagents.ops import credit
from jaxagents.policies.actor_critic import as_policy, make_actor_critic
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.devices import axis_name_of, place, select_devices
from jaxagents.training.program import make_program

NUM_UPDATES = 2


def make_optimizer(num_steps):
    return optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.5))  # Adam would hide a wrong scale.


GROUPS = {
    "optimizer": make_optimizer,
    "advantage": credit.grpo,
    "loss": partial(ppo_clip, clip_epsilon=0.2),
    "aggregation": token_mean,
}
KINDS = {
    "policy_gradient": (partial(policy_gradient.make_agent, **GROUPS, num_minibatches=2), make_dialogue_collector),
    "supervised": (partial(supervised.make_agent, optimizer=make_optimizer), make_demonstration_collector),
    "preference": (
        partial(preference.make_agent, optimizer=make_optimizer, loss=partial(dpo, coefficient=0.5), reference_every=1),
        make_demonstrated_collector,
    ),
    "progress": (
        partial(spa.make_agent, **GROUPS, estimator_optimizer=make_optimizer, num_estimator_steps=2),
        make_dialogue_collector,
    ),
    "interleaved": (
        partial(
            relift.make_agent,
            **GROUPS,
            choose=lambda success, key: jnp.ones(success.shape[0], bool),
            batch_size=8,
            capacity=16,
        ),
        make_demonstrated_collector,
    ),
}


def make_language_program(kind, speak, mode):
    sums = make_sums(num_digits=(1,), num_terms=(2,), operations=("+",))
    make_agent, make_collector = KINDS[kind]
    agent = make_agent(
        sums,
        policy=partial(speak, value_head=kind == "progress", context_turns=1, prompt=False),
        microbatch_tokens=10**6,  # Everything in one: what a loop repeats is counted once.
        axis_name=axis_name_of(mode),
    )
    shows = make_collector is make_demonstration_collector
    sizes = {"num_episodes": 8} if shows else {"num_groups": 8, "group_size": 2}
    collector = make_collector(sums, agent.policy, **sizes)
    return make_program(collector, agent.make_learner(collector, NUM_UPDATES))


def make_array_program(speak, mode):
    maze = make_tmaze(corridor_length=3)
    network = make_actor_critic(maze.observation_space, maze.action_space, encoder=MLP(hidden_sizes=(64, 64)))
    collector = make_rollout_collector(maze, as_policy(network), num_envs=32, num_steps=16)
    axis_name = axis_name_of(mode)
    return make_program(
        collector, make_ppo(network, optax.adam(1e-3), num_epochs=2, num_minibatches=2, axis_name=axis_name)
    )


PROGRAMS = {kind: partial(make_language_program, kind) for kind in KINDS} | {"ppo": make_array_program}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ppo", "policy_gradient", "interleaved"])
def test_four_devices_share_the_arithmetic_of_one(speak, kind):
    def flops_of_a_device(num_devices):
        program = PROGRAMS[kind](speak, "sharded")
        runner = place(program, mode="sharded", devices=select_devices("sharded", num_devices))
        compiled = jax.jit(lambda state: runner.run(state, 1)).lower(runner.abstract).compile()
        return compiled.cost_analysis()["flops"]

    one, four = flops_of_a_device(1), flops_of_a_device(4)
    assert one > 1e6
    assert four <= 0.3 * one, (one, four)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["preference", "progress", "supervised", "interleaved"])
def test_two_devices_learn_what_one_does(speak, kind):
    def train(mode, num_devices):
        program = make_language_program(kind, speak, mode)
        runner = place(program, mode=mode, devices=select_devices(mode, num_devices))
        state = runner.init(7)
        before = jax.device_get(runner.params(state))
        state, metrics = runner.run(state, NUM_UPDATES)
        return jax.device_get((before, runner.to_global(state).learner, metrics))

    before, learner, metrics = train("jit", 1)
    moved = jax.tree.map(lambda old, new: np.max(np.abs(new - old)), before, learner.params)
    assert max(jax.tree.leaves(moved)) > 1e-2
    for mode in ("pmap", "sharded"):
        _, learner_of_two, metrics_of_two = train(mode, 2)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=1e-5, err_msg=mode), learner_of_two, learner)
        assert metrics_of_two.keys() == metrics.keys()
        for name, value in metrics_of_two.items():
            np.testing.assert_allclose(value, metrics[name], rtol=1e-5, atol=1e-5, err_msg=f"{mode}: {name}")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ppo", r"`collector.num_envs` must be divisible by the device count, got 32 and 3; try 30 or 33\."),
        ("policy_gradient", r"`collector.num_groups` must be .* got 8 and 3; try 6 or 9\."),
        ("supervised", r"`collector.num_episodes` must be .* got 8 and 3; try 6 or 9\."),
    ],
)
def test_what_does_not_divide_is_refused_by_its_name(speak, kind, message):
    with pytest.raises(ValueError, match=message):
        place(PROGRAMS[kind](speak, "sharded"), mode="sharded", devices=select_devices("sharded", 3))
