"""PPO over an agent axis: rows of the batch that share the end of the episode, and masks of who is alive."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.environments.teams import agent_ids
from jaxagents.environments.timesteps import first_timestep
from jaxagents.learners.ppo import make_agent, make_ppo
from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import MLP
from jaxagents.ops.distributions import Categorical
from jaxagents.policies.actor_critic import act, as_policy, make_actor_critic
from jaxagents.rollouts.unroll import make_rollout_collector
from jaxagents.training.program import make_program, over_seeds, run_updates
from jaxagents.types import ActorCritic, Box, Discrete, PolicyInput, Rollout, TimeStep, Transition
from tests.fakes import make_transition, make_world, require_agreement

KEY = jax.random.key(0)
NUM_STATES = 5
VALUES = jnp.array([0.5, 1.0, 1.5, 2.0, 7.0])


def apply_table(params, carry, inputs):
    logits, value = inputs.observation @ params["actor"], inputs.observation @ params["critic"]
    return carry, Categorical(logits=logits).mask(inputs.action_mask), value


# One row of logits and one value per state; actor and critic share nothing.
TABLE = ActorCritic(
    init=lambda key: {"actor": jnp.zeros((NUM_STATES, 2)), "critic": VALUES},
    initial_carry=lambda batch_shape: (),
    apply=apply_table,
)


def random_transition(num_steps=4, num_envs=2, num_agents=2):
    """Returns steps `[T, B, N]` whose ends the agents of an environment share."""
    generator = np.random.default_rng(0)
    shape = (num_steps, num_envs, num_agents)
    states = generator.integers(0, NUM_STATES, (2, *shape))
    ends = generator.random((2, num_steps, num_envs)) < 0.2
    eye = jnp.eye(NUM_STATES)
    return Transition(
        observation=eye[states[0]],
        action=jnp.asarray(generator.integers(0, 2, shape), jnp.int32),
        behavior_log_prob=jnp.log(jnp.asarray(generator.uniform(0.3, 0.7, shape), jnp.float32)),
        reward=jnp.asarray(generator.normal(size=shape), jnp.float32),
        terminated=jnp.asarray(ends[0]),
        truncated=jnp.asarray(ends[1] & ~ends[0]),
        next_observation=eye[states[1]],
        first=jnp.zeros((num_steps, num_envs), bool),
    )


def one_row_per_agent(transition):
    """Returns `[T, B N]` of `[T, B, N]`: every agent as an environment of its own."""
    num_agents = transition.reward.shape[2]

    def flatten(leaf):
        leaf = jnp.repeat(leaf[:, :, None], num_agents, axis=2) if leaf.ndim == 2 else leaf
        return leaf.reshape(leaf.shape[0], -1, *leaf.shape[3:])

    return jax.tree.map(flatten, transition)


def updated(transition, carry=(), actor_critic=TABLE, params=None, **options):
    options = {"num_epochs": 1, "num_minibatches": 1, "value_coefficient": 1.0, "discount": 0.5} | options
    learner = make_ppo(actor_critic, optax.sgd(1.0), **options)
    state, metrics = jax.jit(learner.update)(
        learner.init(KEY, params), KEY, Rollout(transition=transition, carry=carry)
    )
    return state.params, metrics


def assert_close(actual, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), actual, expected)


@pytest.mark.exhaustive
def test_agents_are_rows_that_share_the_ends():
    transition = random_transition()
    alive = {"agent_mask": jnp.ones(transition.reward.shape, bool)}
    expected = updated(one_row_per_agent(transition))
    assert_close(updated(transition), expected)
    assert_close(updated(transition.replace(extras=alive)), expected)
    perspective = {"perspective": jnp.full(transition.terminated.shape, -1.0)}
    mirrored = transition.replace(extras=perspective)
    assert_close(updated(mirrored), updated(one_row_per_agent(mirrored)))


@pytest.mark.parametrize("normalize_advantages", [False, True])
def test_the_policy_learns_from_the_living_and_the_value_from_all(normalize_advantages):
    # One environment, four steps that terminate, two agents; the second is dead from the third step on.
    eye = jnp.eye(NUM_STATES)
    states = jnp.array([[0, 1], [0, 1], [0, 2], [0, 2]])[:, None]
    transition = make_transition(
        observation=eye[states],
        action=jnp.zeros((4, 1, 2), jnp.int32),
        behavior_log_prob=jnp.full((4, 1, 2), jnp.log(0.5)),
        reward=jnp.array([[1.5, 2.0], [1.5, 2.0], [1.5, 5.0], [1.5, 5.0]])[:, None],
        terminated=jnp.ones((4, 1), bool),
        first=jnp.ones((4, 1), bool),
        extras={"agent_mask": jnp.array([[1, 1], [1, 1], [1, 0], [1, 0]], bool)[:, None]},
    )
    params, metrics = updated(
        transition, normalize_advantages=normalize_advantages, entropy_coefficient=0.0, value_coefficient=1.0
    )
    # Advantages are 1 for the living, which normalises to 0, and 3.5 for the dead, which nobody sees.
    step = 0.0 if normalize_advantages else 0.5
    expected = np.zeros((NUM_STATES, 2))
    expected[:2] = np.array([[4.0], [2.0]]) / 6.0 * step * np.array([1.0, -1.0])
    np.testing.assert_allclose(params["actor"], expected, atol=1e-6)
    # Value errors 1, 1 and 3.5 of 4, 2 and 2 of all eight elements.
    np.testing.assert_allclose(params["critic"], VALUES + jnp.array([0.5, 0.25, 0.875, 0.0, 0.0]), rtol=1e-5)
    np.testing.assert_allclose(metrics["value_loss"], (6 * 0.5 + 2 * 0.5 * 3.5**2) / 8, rtol=1e-5)
    np.testing.assert_allclose(metrics["entropy"], np.log(2.0), rtol=1e-5)
    np.testing.assert_allclose(metrics["policy_loss"], 0.0 if normalize_advantages else -1.0, atol=1e-5)


@pytest.mark.slow
def test_devices_agree_where_they_have_unequal_numbers_of_living_agents():
    transition = random_transition(num_envs=4)
    mask = np.random.default_rng(3).random(transition.reward.shape) < np.array([0.9, 0.9, 0.3, 0.3])[None, :, None]
    rollout = Rollout(transition=transition.replace(extras={"agent_mask": jnp.asarray(mask)}), carry=())
    options = {"num_epochs": 2, "num_minibatches": 2}
    alone, learner = (make_ppo(TABLE, optax.adam(0.1), axis_name=name, **options) for name in (None, "device"))
    require_agreement(alone, learner, alone.init(KEY), rollout, lambda state, metrics: (state.params, metrics))


@pytest.mark.exhaustive
def test_every_agent_has_a_memory_of_its_own():
    actor_critic = make_actor_critic(
        Box((NUM_STATES,)), Discrete(2), encoder=MLP((8,)), memory=GRU(hidden_size=4), shared=True
    )
    params, policy, transition = actor_critic.init(KEY), as_policy(actor_critic), random_transition()
    # Some steps begin an episode.
    transition = transition.replace(first=jnp.roll(transition.terminated | transition.truncated, 1, axis=0))
    carry = jax.tree.map(lambda leaf: leaf + 0.5, policy.initial_carry((2, 2)))
    assert jax.tree.leaves(carry)[0].shape == (2, 2, 4)
    carries = [carry]
    for t in range(4):
        carry, _ = act(
            policy, params, carry, PolicyInput(observation=transition.observation[t], first=transition.first[t])
        )
        carries.append(carry)
    carries = jax.tree.map(lambda *leaves: jnp.stack(leaves), *carries)
    flat = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0], 4, *leaf.shape[3:]), carries)
    expected = updated(one_row_per_agent(transition), flat, actor_critic, params)
    assert_close(updated(transition, carries, actor_critic, params), expected)


def make_assignment():
    """Two agents who see nothing but their index win 1 each when the first does 0 and the second 1."""

    def step(key, state, action):
        yes, no = jnp.ones((), bool), jnp.zeros((), bool)
        reward = jnp.broadcast_to(jnp.all(action == jnp.arange(2)).astype(jnp.float32), (2,))
        return state, TimeStep(observation=jnp.ones((2, 1)), reward=reward, terminated=yes, truncated=no)

    return make_world(
        lambda key, task: (jnp.zeros(()), first_timestep(jnp.ones((2, 1)), reward_shape=(2,))),
        step,
        Box((1,)),
        Discrete(2),
        1,
        num_agents=2,
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("share_parameters", [True, False])
def test_agents_learn_to_do_different_things(share_parameters):
    # With shared parameters they need to know who they are.
    world = agent_ids(make_assignment()) if share_parameters else make_assignment()
    agent = make_agent(
        world,
        policy=partial(make_actor_critic, encoder=MLP((8,))),
        optimizer=lambda num_updates: optax.adam(0.02),
        share_parameters=share_parameters,
    )
    collector = make_rollout_collector(world, agent.policy, num_envs=16, num_steps=4)
    program = over_seeds(make_program(collector, agent.make_learner(collector, 40)), 2)
    run = jax.jit(partial(run_updates, program))
    state, _ = run(program.init(KEY), 30)
    _, metrics = run(state, 5)
    assert run._cache_size() == 1
    assert float(metrics["rollout/episode_return"].value.min()) > 0.8


def separate_step(reward_scale, make=make_agent, **options):
    """Returns the parameters of both agents after an update in which the second one's rewards are scaled."""
    world, transition = make_assignment(), random_transition()
    transition = transition.replace(
        observation=transition.observation[..., :1],
        next_observation=transition.next_observation[..., :1],
        reward=transition.reward * jnp.array([1.0, reward_scale])[None, None],
    )
    agent = make(
        world,
        optimizer=lambda num_updates: optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(1.0)),
        share_parameters=False,
        num_minibatches=1,
        **options,
    )
    collector = make_rollout_collector(world, agent.policy, num_envs=2, num_steps=4)
    learner = agent.make_learner(collector, 1)
    state = learner.init(KEY)
    state, _ = jax.jit(learner.update)(state, KEY, Rollout(transition=transition, carry=((), ())))
    return [jax.tree.map(lambda leaf, i=i: leaf[i], state.params) for i in range(2)], transition


@pytest.mark.parametrize("reward_discount", [None, 0.9])
def test_what_others_are_paid_changes_no_step_of_an_agent_that_learns_alone(reward_discount):
    policy = partial(make_actor_critic, encoder=MLP((8,)))
    steps = [
        separate_step(scale, policy=policy, reward_discount=reward_discount, num_epochs=1)[0] for scale in (1.0, 100.0)
    ]
    assert_close(steps[0][0], steps[1][0])
    if reward_discount is None:
        moved = [jnp.max(jnp.abs(a - b)) for a, b in zip(*map(jax.tree.leaves, (steps[0][1], steps[1][1])))]
        assert max(map(float, moved)) > 1e-3


def test_separate_agents_are_so_many_learners():
    (first, second), transition = separate_step(
        3.0, policy=partial(make_actor_critic, encoder=MLP((8,))), num_epochs=2, entropy_coefficient=0.1
    )
    learner = make_ppo(
        make_actor_critic(Box((1,)), Discrete(2), encoder=MLP((8,))),
        optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(1.0)),
        num_epochs=2,
        num_minibatches=1,
        entropy_coefficient=0.1,
    )
    keys = jax.random.split(KEY, 2)
    for agent, (key, expected) in enumerate(zip(keys, (first, second))):
        own = jax.tree.map(lambda leaf, i=agent: leaf[:, :, i] if leaf.ndim > 2 else leaf, transition)
        state, _ = jax.jit(learner.update)(learner.init(key), key, Rollout(transition=own, carry=((), ())))
        assert_close(state.params, expected)


def test_agents_of_no_team_share_their_parameters():
    alone = replace(make_assignment(), num_agents=0)
    with pytest.raises(ValueError, match="`num_agents` must be at least 1 for separate parameters, got 0; try sharing"):
        make_agent(
            alone,
            policy=partial(make_actor_critic, encoder=MLP((8,))),
            optimizer=lambda num_updates: optax.sgd(0.1),
            share_parameters=False,
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": jnp.zeros((4, 2, 2, 1))}, r"`reward` must be \[T, B\] or \[T, B, N\] with .* \(4, 2\), got"),
        (
            {"extras": {"agent_mask": jnp.ones((4, 2, 3), bool)}},
            r"`agent_mask` must be .* got \(4, 2, 3\) and \(4, 2, 2\)",
        ),
        ({"extras": {"agent_mask": jnp.ones((4, 2), bool)}}, r"`agent_mask` must be .* got \(4, 2\)"),
        ({"action_mask": jnp.ones((4, 2, 3, 2), bool)}, r"`action_mask` must be \(4, 2, 2\) .* got \(4, 2, 3, 2\)"),
    ],
)
def test_refuses_masks_that_do_not_fit_the_agents(changes, message):
    learner = make_ppo(TABLE, optax.sgd(0.1))
    rollout = Rollout(transition=random_transition().replace(**changes), carry=())
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(learner.update, learner.init(KEY), KEY, rollout)
