"""MASAC: SAC where the team is one agent, targets of two agents by hand, and agents that are dead."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.learners.masac import make_agent, make_team_critic, make_team_policy, of_team
from jaxagents.learners.sac import make_sac
from jaxagents.networks.torsos import MLP
from jaxagents.ops.distributions import TanhNormal
from jaxagents.policies.tanh_normal import make_tanh_normal_policy
from jaxagents.types import Box, Policy, Sample
from jaxagents.values.q_function import TwinQ, make_twin_q
from tests.fakes import make_transition, make_world, require_agreement

KEY = jax.random.key(0)
STATES, ACTIONS = Box((2,)), Box((1,), -1.0, 1.0)
POLICY = make_tanh_normal_policy(STATES, ACTIONS, encoder=MLP((8,), "relu"))
VALUE = partial(make_twin_q, encoder=MLP((8,), "relu"))


def make_masac(num_agents, policy=POLICY, value=VALUE, space=STATES, centralized=True, rate=0.1, **options):
    """Makes the learner of a team with plain descent."""
    critic = make_team_critic(space, ACTIONS, value=value, num_agents=num_agents, centralized=centralized)
    learner = make_sac(make_team_policy(policy), critic, *[optax.sgd(rate)] * 3, ACTIONS, **options)
    return of_team(learner, num_agents, axis_name=options.get("axis_name"))


def make_batch(num_agents, length=2, size=4, seed=0, **fields):
    """Returns random samples `[n, B, N, ...]`; the flags of one row are a true end, those of another a cut."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=(length, size, num_agents, *shape)), jnp.float32)  # noqa: E731
    flags = jnp.zeros((length, size), bool)
    transition = make_transition(
        observation=draw(2),
        action=draw(1),
        reward=draw(),
        next_observation=draw(2),
        terminated=flags.at[0, 0].set(True),
        truncated=flags.at[0, 1].set(True),
        first=flags,
    )
    weight = jnp.asarray(rng.uniform(0.5, 1.0, size), jnp.float32)
    return Sample(transition=transition.replace(**fields), weight=weight)


@pytest.mark.parametrize("centralized", [True, False])
def test_a_team_of_one_learns_as_sac_does_to_the_last_bit(centralized):
    batch = make_batch(1)
    masks = {name: jnp.ones((2, 4, 1), bool) for name in ("agent_mask", "next_agent_mask")}
    drop = lambda leaf: leaf[:, :, 0] if leaf.ndim > 2 else leaf  # noqa: E731
    alone = make_sac(POLICY, VALUE(STATES, ACTIONS), *[optax.sgd(0.1)] * 3, ACTIONS)
    team = make_masac(1, centralized=centralized)
    of_one = batch.replace(transition=jax.tree.map(drop, batch.transition))
    expected = jax.jit(alone.update)(alone.init(KEY), KEY, of_one)
    for extras in ({}, masks):
        of_team = batch.replace(transition=batch.transition.replace(extras=extras))
        jax.tree.map(np.testing.assert_array_equal, jax.jit(team.update)(team.init(KEY), KEY, of_team), expected)


# Critics `offset + view . weight + 2 action`, where the view is own, other's observation, other's action.
WEIGHT = np.array([1.0, 10.0, 100.0], np.float32)
LINEAR = TwinQ(
    init=lambda key: {"offset": jnp.array([0.0, 1.0])},
    apply=lambda params, observation, action: (
        params["offset"][:, None] + (observation @ WEIGHT + 2.0 * action[..., 0])[None]
    ),
)


def _around(params, carry, inputs):
    """The action is around the observation."""
    loc = params * inputs.observation
    return carry, TanhNormal(loc=loc, scale=jnp.full_like(loc, 0.1), low=-1.0, high=1.0)


AROUND = Policy(init=lambda key: jnp.float32(1.0), initial_carry=lambda shape: (), apply=_around)


@pytest.mark.parametrize("dies", [False, True])
def test_targets_of_two_agents_by_hand(dies):
    """Each agent's target is its own reward, and the values of both agents' next actions; who dies has no next."""
    own, action = np.array([0.5, -0.25], np.float32), np.array([0.3, -0.6], np.float32)
    following, reward = np.array([0.1, 0.2], np.float32), np.array([1.0, -2.0], np.float32)
    step = lambda values: jnp.asarray(values)[None, None, :, None]  # noqa: E731
    transition = make_transition(
        observation=step(own),
        action=step(action),
        reward=jnp.asarray(reward)[None, None],
        next_observation=step(following),
        terminated=jnp.zeros((1, 1), bool),
        truncated=jnp.ones((1, 1), bool),
        first=jnp.zeros((1, 1), bool),
        extras={"next_agent_mask": jnp.array([[[True, not dies]]])},
    )
    team = make_masac(2, AROUND, lambda *spaces: LINEAR, Box((1,)), discount=0.5)
    state = team.init(KEY)
    _, metrics = team.update(state, KEY, Sample(transition=transition, weight=jnp.ones(1)))
    next_key, targets, q = jax.random.split(KEY, 5)[0], [], []
    drawn = TanhNormal(loc=jnp.asarray(following)[:, None], scale=jnp.full((2, 1), 0.1), low=-1.0, high=1.0)
    keys = [jax.random.fold_in(next_key, row) for row in range(2)]
    next_action = [float(jax.tree.map(lambda leaf, i=i: leaf[i], drawn).sample(keys[i])[0]) for i in range(2)]
    log_prob = np.asarray(drawn.log_prob(jnp.array(next_action)[:, None]))
    for i, j in ((0, 1), (1, 0)):
        there = float(not (dies and j == 1))  # The dead are zeros in the other's critic.
        view = [following[i], there * following[j], there * np.tanh(next_action[j])]
        value = np.dot(WEIGHT, view) + 2.0 * next_action[i] - log_prob[i]
        targets.append(reward[i] + 0.5 * value * (not (dies and i == 1)))
        q.append(np.dot(WEIGHT, [own[i], own[j], np.tanh(action[j])]) + 2.0 * action[i])
    errors = np.array([[offset + q[i] - targets[i] for i in range(2)] for offset in (0.0, 1.0)])
    np.testing.assert_allclose(metrics["critic_loss"], 0.5 * np.square(errors).sum(axis=0).mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["priority"], [np.abs(errors).mean()], rtol=1e-5)


def test_an_agent_that_is_dead_or_pads_changes_nothing():
    dead = {name: jnp.ones((2, 4, 3), bool).at[:, :, 2].set(False) for name in ("agent_mask", "next_agent_mask")}
    batch = make_batch(3, extras=dead)
    other = jax.tree.map(
        lambda leaf: leaf.at[:, :, 2].add(5.0) if leaf.dtype == jnp.float32 and leaf.ndim > 2 else leaf,
        batch.transition,
    )
    team = make_masac(3)
    update, before = jax.jit(team.update), team.init(KEY)
    (state, metrics), (changed, changed_metrics) = (
        update(before, KEY, batch.replace(transition=one)) for one in (batch.transition, other)
    )
    jax.tree.map(np.testing.assert_array_equal, changed, state)
    for name in ("critic_loss", "policy_loss", "priority"):
        np.testing.assert_array_equal(changed_metrics[name], metrics[name])
    moved = jax.tree.map(lambda one, two: bool(jnp.any(one != two)), before.params, state.params)
    assert any(jax.tree.leaves(moved))


def test_critics_see_others_in_turn_and_teach_nobody_anothers_action():
    seen = jnp.arange(6.0).reshape(3, 2)
    critic = make_team_critic(STATES, ACTIONS, value=_echo, num_agents=3, centralized=True)
    observation, action = {"seen": seen, "alive": jnp.array([True, True, False])}, jnp.array([[0.1], [0.2], [0.3]])
    view = critic.apply({}, observation, action)
    a, b = np.tanh(0.1), np.tanh(0.2)
    expected = [[0, 1, 2, 3, 0, 0, b, 0], [2, 3, 0, 0, 0, 1, 0, a], [4, 5, 0, 1, 2, 3, a, b]]
    np.testing.assert_allclose(view[..., :-1], expected, rtol=1e-6)
    slope = jax.jacobian(lambda action: critic.apply({}, observation, action).sum(axis=-1))(action)[..., 0]
    np.testing.assert_array_equal(slope, np.eye(3))
    shown = {"seen": {"own": seen, "team": jnp.full((3, 4), 7.0)}, "alive": observation["alive"]}
    space = {"own": STATES, "team": Box((4,))}
    view = make_team_critic(space, ACTIONS, value=_echo, num_agents=3, centralized=True).apply({}, shown, action)
    np.testing.assert_allclose(view[1], [2, 3, 7, 7, 7, 7, 0, a, 0.2], rtol=1e-6)
    alone = make_team_critic(space, ACTIONS, value=_echo, num_agents=3, centralized=False).apply({}, shown, action)
    np.testing.assert_allclose(alone[1], [2, 3, 0.2], rtol=1e-6)


def _echo(observation_space, action_space):
    """Makes critics that return what they see."""

    def apply(params, observation, action):
        assert observation.shape[-1:] == observation_space.shape
        return jnp.concatenate([observation, action], axis=-1)

    return TwinQ(init=lambda key: {}, apply=apply)


@pytest.mark.slow
def test_devices_agree_with_one_device():
    masks = np.random.default_rng(1).random((2, 2, 8, 3)) < 0.7
    batch = make_batch(
        3, size=8, extras={"agent_mask": jnp.asarray(masks[0]), "next_agent_mask": jnp.asarray(masks[1])}
    )
    alone, shared = make_masac(3), make_masac(3, axis_name="device")
    require_agreement(
        alone,
        shared,
        alone.init(KEY),
        batch,
        lambda state, metrics: (state.params, state.critic, metrics["critic_loss"]),
    )


def test_refuses_what_is_no_team():
    alone = make_world(None, None, STATES, ACTIONS, 3)
    with pytest.raises(ValueError, match="`environment` must be a team, got .* without one; try algorithm=sac"):
        make_agent(alone, policy=None, value=None)
    with pytest.raises(ValueError, match="`environment` of a team's critics must show vectors"):
        make_masac(2, space=Box((2, 2)))
    batch = make_batch(2)
    with pytest.raises(ValueError, match=r"`reward` must be \[n, B, 3\] for the team, got \(2, 4, 2\)"):
        make_masac(3).update(make_masac(3).init(KEY), KEY, batch)
