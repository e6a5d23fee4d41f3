"""What every environment promises: fixed types, explicit tasks, legal play, no-ops after the end, true successors."""

import functools
from functools import partial
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments import contextual_gridworld, coordination, craft, donor, halls, quest, tabletop, tmaze
from jaxagents.environments.calls import with_calls
from jaxagents.environments.chunks import chunked
from jaxagents.environments.opponents import against
from jaxagents.environments.teams import agent_ids, team_view
from jaxagents.environments.wrappers import alternating, auto_reset, episode_statistics
from jaxagents.types import Discrete

NUM_STEPS, BATCH = 20, 3


def suite(name):
    return import_module(f"jaxagents.environments.adapters.{name}").make_environment


# Limits are short, so that random play passes the end of the episode within `NUM_STEPS`.
LIGHT = {
    "cartpole": lambda: suite("gymnax")("CartPole-v1", params={"max_steps_in_episode": 8}),
    "breakout": lambda: suite("gymnax")("Breakout-MinAtar", params={"max_steps_in_episode": 5}),
    "pendulum": lambda: suite("gymnax")("Pendulum-v1", params={"max_steps_in_episode": 5}),
    "tmaze": lambda: tmaze.make_environment((1, 2)),
    "gridworld": lambda: contextual_gridworld.make_environment(3),
    "donor": lambda: donor.make_environment(4, num_rounds=5, punishment=True),
    "tic_tac_toe": lambda: suite("pgx")("tic_tac_toe"),
    "tic_tac_toe_alternating": lambda: alternating(suite("pgx")("tic_tac_toe")),
    "tic_tac_toe_against": lambda: against(suite("pgx")("tic_tac_toe")),
    "brax_fast": lambda: suite("brax")("fast", max_steps=5),
    "sokoban": lambda: suite("jumanji")("Sokoban-v0", max_steps=5),
    "mpe_spread": lambda: suite("jaxmarl")("MPE_simple_spread_v3", max_steps=5),
    "two_step_game": coordination.make_two_step_game,
    "two_step_game_of_a_team": lambda: team_view(agent_ids(coordination.make_two_step_game())),
    "two_step_game_with_calls": lambda: with_calls(
        agent_ids(coordination.make_two_step_game()), max_calls=1, call_probability=0.5
    ),
}
HEAVY = {
    **{
        name: partial(suite("gymnax"), f"{name}-MinAtar", params={"max_steps_in_episode": 5})
        for name in ("Asterix", "Freeway", "Seaquest", "SpaceInvaders")
    },
    "quest": lambda: quest.make_environment(("doorkey", "moving", "charger"), 4, wait=2, max_steps=6),
    "halls": lambda: halls.make_environment(min_length=1, max_length=1, max_steps=10),
    "craft": lambda: craft.make_environment(8, max_steps=6),
    "tabletop": lambda: tabletop.make_environment(num_pushers=2, num_discs=2, num_goals=2, max_steps=5),
    "tabletop_chunks": lambda: chunked(tabletop.make_environment(max_steps=6), length=3),
    "tabletop_pictures": lambda: tabletop.make_environment(raster=8, max_steps=5),
    "acrobot": lambda: suite("gymnax")("Acrobot-v1", params={"max_steps_in_episode": 5}),
    "connect_four": lambda: suite("pgx")("connect_four", max_steps=6),
    "2048": lambda: suite("pgx")("2048", max_steps=5),
    "leduc_holdem": lambda: suite("pgx")("leduc_holdem"),
    "reacher": lambda: suite("brax")("reacher", max_steps=5),
    "snake": lambda: suite("jumanji")("Snake-v1", max_steps=5),
    "minesweeper": lambda: suite("jumanji")("Minesweeper-v0", max_steps=5),
    "lbf": lambda: suite("jumanji")("LevelBasedForaging-v0", max_steps=5),
    "cleaner": lambda: suite("jumanji")("Cleaner-v0", max_steps=5),
    "minigrid": lambda: suite("xminigrid")("MiniGrid-Empty-5x5", max_steps=5),
    "xland": lambda: suite("xminigrid")("XLand-MiniGrid-R1-9x9", max_steps=5),
    "craftax_classic": lambda: suite("craftax")("Craftax-Classic-Symbolic-v1", max_steps=5),
    "mpe_tag": lambda: suite("jaxmarl")("MPE_simple_tag_v3", max_steps=5),
    "speaker_listener": lambda: suite("jaxmarl")("MPE_simple_speaker_listener_v4", max_steps=5),
    "smax_3m": lambda: suite("jaxmarl")("HeuristicEnemySMAX", scenario="3m", max_steps=5),
    "overcooked": lambda: suite("jaxmarl")("overcooked", layout="cramped_room", max_steps=5),
}
ALL = LIGHT | HEAVY
QUICK_RESETS = ("cartpole", "pendulum", "tmaze", "tic_tac_toe_alternating", "brax_fast")
resettable = [name if name in QUICK_RESETS else pytest.param(name, marks=pytest.mark.exhaustive) for name in LIGHT]
names = [*LIGHT, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in HEAVY)]


@functools.cache
def environment_of(name):
    return ALL[name]()


def sample_action(environment, key, timestep):
    space = environment.action_space
    agents = (environment.num_agents,) if environment.num_agents else ()
    if timestep.action_mask is not None:
        return jax.random.categorical(key, jnp.where(timestep.action_mask, 0.0, -jnp.inf), axis=-1)
    if isinstance(space, Discrete):
        return jax.random.randint(key, (*agents, *space.shape), 0, space.num_values)
    return jax.random.uniform(key, (*agents, *space.shape), minval=max(space.low, -1.0), maxval=min(space.high, 1.0))


@functools.cache
def rollout_of(name):
    """Plays `NUM_STEPS` random legal steps in `BATCH` instances, and resets the tasks a second time with other keys."""
    environment = environment_of(name)

    def one(key):
        task_key, reset_key, other_key, play_key = jax.random.split(key, 4)
        task = environment.sample_task(task_key)

        def step(carry, key):
            state, timestep = carry
            action_key, step_key = jax.random.split(key)
            following = environment.step(step_key, state, sample_action(environment, action_key, timestep))
            return following, following[1]

        first = environment.reset(reset_key, task)
        _, timesteps = jax.lax.scan(step, first, jax.random.split(play_key, NUM_STEPS))
        return first[1], environment.reset(other_key, task)[1], timesteps

    return jax.device_get(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(3), BATCH)))


def signature(tree):
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in leaves]


@pytest.mark.parametrize("name", names)
def test_types_are_those_of_the_interface_and_never_change(name):
    environment = environment_of(name)
    key = jax.random.key(0)
    state, timestep = jax.eval_shape(lambda: environment.reset(key, environment.sample_task(key)))
    action = jax.eval_shape(lambda timestep: sample_action(environment, key, timestep), timestep)
    following = jax.eval_shape(environment.step, key, state, action)
    assert signature((state, timestep)) == signature(following)
    streams = environment.num_agents or (environment.num_players if environment.num_players > 1 else 0)
    assert timestep.reward.shape == ((streams,) if streams else ()) and timestep.reward.dtype == jnp.float32
    for flag in (timestep.terminated, timestep.truncated):
        assert flag.shape == () and flag.dtype == bool
    if timestep.action_mask is not None:
        agents = (environment.num_agents,) if environment.num_agents else ()
        assert timestep.action_mask.shape == (*agents, environment.action_space.num_values)
        assert timestep.action_mask.dtype == bool
    assert (timestep.player is not None) == (environment.num_players > 1 or "perspective" in timestep.info)


@pytest.mark.parametrize("name", names)
def test_observations_are_in_their_space(name):
    environment = environment_of(name)
    first, _, timesteps = rollout_of(name)
    agents = (environment.num_agents,) if environment.num_agents else ()
    spaces, structure = jax.tree.flatten(environment.observation_space)
    for leading, timestep in (((BATCH,), first), ((BATCH, NUM_STEPS), timesteps)):
        for space, leaf in zip(spaces, structure.flatten_up_to(timestep.observation), strict=True):
            assert leaf.shape == (*leading, *agents, *space.shape)
            assert leaf.dtype == np.dtype(space.dtype)
            if not isinstance(space, Discrete):
                assert (leaf >= space.low).all() and (leaf <= space.high).all()


@pytest.mark.parametrize("name", names)
def test_a_task_fixes_the_instance(name):
    first, again, _ = rollout_of(name)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        # Opponents of `against` may move in the reset and are not part of the task.
        if "against" not in name:
            np.testing.assert_array_equal(one, other)
    assert not first.terminated.any() and not first.truncated.any() and not first.reward.any()


@pytest.mark.parametrize("name", names)
def test_a_step_after_the_end_is_a_no_op(name):
    _, _, timesteps = rollout_of(name)
    over = timesteps.terminated | timesteps.truncated
    assert over.any(), "no episode ended"
    assert not (timesteps.terminated & timesteps.truncated).any()
    for row in np.flatnonzero(over.any(axis=1)):
        end = int(over[row].argmax())
        assert end + 1 <= environment_of(name).max_steps
        assert not timesteps.reward[row, end + 1 :].any()
        unrewarded = timesteps.replace(reward=(), info={k: v for k, v in timesteps.info.items() if k != "perspective"})
        for leaf in jax.tree.leaves(unrewarded):
            later = leaf[row, end + 1 :]
            np.testing.assert_array_equal(later, np.broadcast_to(leaf[row, end], later.shape))


@pytest.mark.parametrize("name", resettable)
def test_auto_reset_keeps_the_true_successor(name):
    environment = episode_statistics(environment_of(name))
    resetting = auto_reset(environment)

    def one(key):
        def step(carry, key):
            state, before = carry
            action_key, step_key = jax.random.split(key)
            action = sample_action(environment, action_key, before)
            true_key = jax.random.split(step_key, 3)[0]
            return resetting.step(step_key, state, action), environment.step(true_key, state, action)[1]

        def record(carry, key):
            following, true = step(carry, key)
            return following, (following[1], true)

        first = resetting.reset(key, resetting.sample_task(key))
        return jax.lax.scan(record, first, jax.random.split(key, NUM_STEPS))[1]

    timesteps, true = jax.device_get(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(5), BATCH)))
    over = timesteps.terminated | timesteps.truncated
    assert over.any() and not over.all()
    pairs = zip(
        *(jax.tree.leaves(tree) for tree in (timesteps.info["next_observation"], true.observation)), strict=True
    )
    for successor, expected in pairs:
        np.testing.assert_allclose(successor, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(timesteps.reward, true.reward, rtol=1e-5, atol=1e-6)
    # The episode after an end starts from scratch.
    assert (timesteps.info["episode_length"][:, 1:][over[:, :-1]] == 1).all()
