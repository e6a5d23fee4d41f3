"""The gymnax adapter: ends of CartPole, parameters, frames, and a step without overhead."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.adapters import gymnax

KEY = jax.random.key(0)


@functools.cache
def cartpole():
    return gymnax.make_environment("CartPole-v1")


def play_cartpole(choose, num_steps):
    environment = cartpole()

    def step(carry, key):
        state, timestep = carry
        following = environment.step(key, state, choose(timestep.observation))
        return following, following[1]

    first = environment.reset(KEY, environment.sample_task(KEY))
    return jax.jit(lambda: jax.lax.scan(step, first, jax.random.split(KEY, num_steps))[1])()


def test_cartpole_truncates_at_500_steps_and_does_not_terminate():
    # Pushing towards where the pole leans and falls balances it for as long as wanted.
    timesteps = play_cartpole(lambda observation: (observation[2] + observation[3] > 0).astype(jnp.int32), 503)
    assert not timesteps.terminated.any()
    assert int(timesteps.truncated.argmax()) == 499
    assert float(timesteps.reward.sum()) == 500.0


def test_cartpole_terminates_when_the_pole_falls():
    timesteps = play_cartpole(lambda observation: jnp.ones((), jnp.int32), 30)
    assert not timesteps.truncated.any()
    end = int(timesteps.terminated.argmax())
    assert 5 < end < 15 and float(timesteps.reward.sum()) == end + 1
    assert abs(float(timesteps.observation[end, 2])) > np.radians(12) > abs(float(timesteps.observation[end - 1, 2]))


def test_cartpole_follows_the_physics_of_the_suite():
    suite = pytest.importorskip("gymnax")
    original, params = suite.make("CartPole-v1")
    environment = cartpole()
    state, timestep = environment.reset(KEY, environment.sample_task(KEY))
    observation, expected_state = original.reset_env(KEY, params)
    np.testing.assert_allclose(timestep.observation, observation, rtol=1e-6)
    for action in (0, 1, 1):
        state, timestep = environment.step(KEY, state, jnp.asarray(action))
        observation, expected_state, *_ = original.step_env(KEY, expected_state, action, params)
        np.testing.assert_allclose(timestep.observation, observation, rtol=1e-5, atol=1e-7)


def test_a_step_holds_no_reset_and_little_else_than_the_suites_own():
    suite = pytest.importorskip("gymnax")
    original, params = suite.make("CartPole-v1")
    environment = cartpole()
    state, _ = environment.reset(KEY, environment.sample_task(KEY))
    own = jax.make_jaxpr(environment.step)(KEY, state, 0)
    theirs = jax.make_jaxpr(lambda key, state: original.step_env(key, state, 0, params))(KEY, state.inner)
    assert "random" not in str(own) and "threefry" not in str(own)
    # One choice per leaf of state and timestep for the no-op after the end, and the flags.
    assert len(own.eqns) - len(theirs.eqns) < 25


def test_params_replace_defaults_and_unknown_ones_are_refused():
    environment = gymnax.make_environment("CartPole-v1", params={"max_steps_in_episode": 7})
    assert environment.max_steps == 7
    with pytest.raises(
        ValueError, match=r"`params` must name parameters of the environment, got \['gravty'\]; try .*gravity"
    ):
        gymnax.make_environment("CartPole-v1", params={"gravty": 1.0})


def test_constructor_options_reach_the_suite():
    assert gymnax.make_environment("Breakout-MinAtar").action_space.num_values == 3
    assert gymnax.make_environment("Breakout-MinAtar", use_minimal_action_set=False).action_space.num_values == 6


def test_actions_are_stretched_to_the_bounds_of_every_number(monkeypatch):
    """PointRobot moves by at most 0.1 a number: here the second one by 0 to 0.2."""
    misc = pytest.importorskip("gymnax.environments.misc.point_robot")
    box = pytest.importorskip("gymnax.environments.spaces").Box
    space = box(jnp.array([-0.1, 0.0]), jnp.array([0.1, 0.2]), (2,), jnp.float32)
    monkeypatch.setattr(misc.PointRobot, "action_space", lambda self, params=None: space)
    environment = gymnax.make_environment("PointRobot-misc")
    assert (environment.action_space.low, environment.action_space.high) == (-1.0, 1.0)
    state, _ = environment.reset(KEY, environment.sample_task(KEY))
    following, _ = environment.step(KEY, state, jnp.array([-0.5, -0.5]))
    np.testing.assert_allclose(following.inner.pos - state.inner.pos, [-0.05, 0.05], atol=1e-6)


def test_the_bandit_of_the_suite_can_be_made_and_played():
    """Arms pay with 0.1 and 0.9: the observation is the last reward, the last arm and the time from -1 to 1."""
    environment = gymnax.make_environment("BernoulliBandit-misc")
    assert environment.action_space.num_values == 2 and environment.max_steps == 100

    def step(state, key):
        state, timestep = environment.step(key, state, jnp.ones((), jnp.int32))
        return state, timestep

    first, timestep = environment.reset(KEY, environment.sample_task(KEY))
    np.testing.assert_allclose(timestep.observation, [0.0, 1.0, 0.0, -1.0])
    timesteps = jax.jit(lambda: jax.lax.scan(step, first, jax.random.split(KEY, 100))[1])()
    np.testing.assert_allclose(timesteps.observation[:, 0], timesteps.reward)
    np.testing.assert_allclose(timesteps.observation[-1, 1:], [0.0, 1.0, 1.0], atol=1e-6)
    assert timesteps.truncated.tolist() == [False] * 99 + [True] and not timesteps.terminated.any()
    assert min(abs(float(timesteps.reward.mean()) - share) for share in (0.1, 0.9)) < 0.1


@pytest.mark.exhaustive
def test_render():
    environment = gymnax.make_environment("Breakout-MinAtar")
    state, _ = environment.reset(KEY, environment.sample_task(KEY))
    lines = environment.render(state).splitlines()
    # Three rows of bricks, the ball on the third, the paddle at the bottom.
    assert lines[2] == lines[3] == "|##########|"
    assert sorted(lines[4]) == sorted("|#########*|")
    assert lines[10] == "|....A.....|"
    state, _ = cartpole().reset(KEY, cartpole().sample_task(KEY))
    assert "=====" in cartpole().render(state)
    assert gymnax.make_environment("Pendulum-v1").render is None
