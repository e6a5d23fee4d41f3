"""Wrappers on tiny environments whose every number is worked out by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.opponents import against, uniform_opponent
from jaxagents.environments.timesteps import ended, first_timestep, select
from jaxagents.environments.wrappers import (
    absorbing,
    alternating,
    auto_reset,
    episode_statistics,
    flatten_observation,
    time_limit,
)
from jaxagents.types import Box, Discrete, TimeStep
from tests.fakes import make_world, play_actions

KEY = jax.random.key(0)


def make_counter(length=3, num_agents=0, **fields):
    """Counts up from the task, 10 on a reset by `auto_reset`; reward is the count; terminates after `length` steps."""

    def observe(state):
        return {"count": state["count"], "steps": jnp.stack([state["steps"], state["steps"]]).astype(jnp.float32)}

    def reset(key, task):
        state = {"count": task, "steps": jnp.zeros((), jnp.int32)}
        return state, first_timestep(observe(state), reward_shape=(num_agents,) if num_agents else ())

    def step(key, state, action):
        state = {"count": state["count"] + 1, "steps": state["steps"] + 1}
        reward = state["count"].astype(jnp.float32)
        timestep = TimeStep(
            observation=observe(state),
            reward=reward * jnp.arange(1.0, num_agents + 1) if num_agents else reward,
            terminated=state["steps"] >= length,
            truncated=jnp.zeros((), bool),
        )
        return state, timestep

    return make_world(
        reset,
        step,
        {"count": Box((), dtype=np.int32), "steps": Box((2,))},
        Discrete(2),
        length,
        num_agents=num_agents,
        render=lambda state: f"count {int(state['count'])}",
        sample_task=lambda key, level=None: jnp.asarray(10, jnp.int32),
        **fields,
    )


def play(environment, task, actions):
    """Returns the timesteps of a reset and one step per action."""
    return play_actions(environment.reset, environment.step, task, actions, KEY)[1]


def values(timesteps, field):
    return [np.asarray(field(timestep)).tolist() for timestep in timesteps]


def test_select_and_ended():
    running = first_timestep(jnp.zeros(2))
    over = running.replace(truncated=jnp.ones((), bool))
    assert not ended(running) and ended(over)
    chosen = select(jnp.asarray(True), {"a": jnp.ones(2)}, {"a": jnp.zeros(2)})
    np.testing.assert_array_equal(chosen["a"], [1, 1])


def test_absorbing_repeats_the_last_timestep_with_zero_reward():
    timesteps = play(absorbing(make_counter()), jnp.asarray(0), [0] * 5)
    assert values(timesteps, lambda t: t.reward) == [0, 1, 2, 3, 0, 0]
    assert values(timesteps, lambda t: t.terminated) == [False, False, False, True, True, True]
    assert values(timesteps, lambda t: t.observation["count"]) == [0, 1, 2, 3, 3, 3]


def test_absorbing_freezes_the_state():
    environment = absorbing(make_counter())
    state, _ = environment.reset(KEY, jnp.asarray(0))
    for _ in range(5):
        state, _ = environment.step(KEY, state, jnp.asarray(0))
    assert int(state.inner["count"]) == 3


def test_absorbing_freezes_after_truncation():
    environment = time_limit(make_counter(), 2)
    timesteps = play(environment, jnp.asarray(0), [0] * 4)
    assert values(timesteps, lambda t: t.truncated) == [False, False, True, True, True]
    assert values(timesteps, lambda t: t.observation["count"]) == [0, 1, 2, 2, 2]


def test_wrappers_render_the_inner_state():
    environment = time_limit(episode_statistics(absorbing(make_counter())), 2)
    state, _ = environment.reset(KEY, jnp.asarray(7))
    assert environment.render(state) == "count 7"
    assert absorbing(dataclasses.replace(make_counter(), render=None)).render is None


def test_auto_reset_keeps_reward_flags_and_true_successor():
    timesteps = play(auto_reset(make_counter()), jnp.asarray(0), [0] * 4)
    assert values(timesteps, lambda t: t.reward) == [0, 1, 2, 3, 11]
    assert values(timesteps, lambda t: t.terminated) == [False, False, False, True, False]
    assert values(timesteps, lambda t: t.observation["count"]) == [0, 1, 2, 10, 11]
    assert values(timesteps, lambda t: t.info["next_observation"]["count"]) == [0, 1, 2, 3, 11]


def test_auto_reset_keeps_totals_of_the_ended_episode_and_starts_them_anew():
    timesteps = play(auto_reset(episode_statistics(make_counter())), jnp.asarray(0), [0] * 5)
    assert values(timesteps, lambda t: t.info["episode_return"]) == [0, 1, 3, 6, 11, 23]
    assert values(timesteps, lambda t: t.info["episode_length"]) == [0, 1, 2, 3, 1, 2]


def test_auto_reset_takes_masks_and_player_of_the_new_episode():
    counter = make_counter(length=1, num_agents=2)

    def view(state, timestep):
        alive = jnp.stack([state["steps"] == 0, state["count"] > 0])
        return state, timestep.replace(
            action_mask=jnp.stack([alive, ~alive]),
            player=state["steps"],
            info={"agent_mask": alive, "success": alive[1]},
        )

    environment = dataclasses.replace(
        counter,
        reset=lambda key, task: view(*counter.reset(key, task)),
        step=lambda key, state, action: view(*counter.step(key, state, action)),
    )
    _, last = play(auto_reset(environment), jnp.asarray(0), [0])
    assert bool(last.terminated) and bool(last.info["success"])
    np.testing.assert_array_equal(last.info["agent_mask"], [True, True])
    np.testing.assert_array_equal(last.action_mask, [[True, True], [False, False]])
    assert int(last.player) == 0


def test_auto_reset_samples_a_new_task_each_time():
    counter = make_counter(length=1)
    drawn = dataclasses.replace(
        counter, sample_task=lambda key, level=None: jax.random.randint(key, (), 0, 1_000_000, jnp.int32)
    )
    environment = auto_reset(drawn)
    state, _ = environment.reset(KEY, jnp.asarray(0, jnp.int32))
    starts = [int(environment.step(key, state, 0)[1].observation["count"]) for key in jax.random.split(KEY, 4)]
    assert len(set(starts)) == 4


def test_episode_statistics_stand_still_after_the_end():
    timesteps = play(episode_statistics(absorbing(make_counter())), jnp.asarray(0), [0] * 5)
    assert values(timesteps, lambda t: t.info["episode_return"]) == [0, 1, 3, 6, 6, 6]
    assert values(timesteps, lambda t: t.info["episode_length"]) == [0, 1, 2, 3, 3, 3]


def test_episode_statistics_average_over_agents():
    timesteps = play(episode_statistics(make_counter(num_agents=3)), jnp.asarray(0), [0, 0])
    # Rewards are count * (1, 2, 3), of mean 2 * count.
    assert values(timesteps, lambda t: t.info["episode_return"]) == [0, 2, 6]


def two_who_leave():
    """Rewards of the first two of three agents count in the first step, of the first one in the second."""
    counter = make_counter(num_agents=3)

    def view(state, timestep):
        alive = jnp.stack([jnp.asarray(True), state["steps"] < 1, jnp.asarray(False)])
        return state, timestep.replace(info={"agent_mask": alive})

    return dataclasses.replace(
        counter,
        reset=lambda key, task: view(*counter.reset(key, task)),
        step=lambda key, state, action: view(*counter.step(key, state, action)),
    )


def test_episode_statistics_average_over_the_agents_that_acted():
    timesteps = play(episode_statistics(two_who_leave()), jnp.asarray(0), [0, 0])
    # The second agent acts in the first step, where the mean of (1, 2) counts, and is gone in the second: mean of (2).
    assert values(timesteps, lambda t: t.info["episode_return"]) == [0, 1.5, 3.5]
    assert "metrics" not in timesteps[0].info


def test_episode_statistics_count_the_agents_of_one_team_where_they_are_asked_to():
    timesteps = play(episode_statistics(two_who_leave(), per_agent=True), jnp.asarray(0), [0, 0])
    for agent, returns in enumerate(([0, 1, 3], [0, 2, 2], [0, 0, 0])):
        assert values(timesteps, lambda t, agent=agent: t.info["metrics"][f"episode_return_agent_{agent}"]) == returns
    assert values(timesteps, lambda t: t.info["episode_return"]) == [0, 1.5, 3.5]


def test_flatten_observation_concatenates_in_the_order_of_leaves():
    environment = flatten_observation(make_counter())
    assert environment.observation_space == Box((3,))
    timesteps = play(environment, jnp.asarray(5), [0])
    assert timesteps[0].observation.dtype == jnp.float32
    assert values(timesteps, lambda t: t.observation) == [[5, 0, 0], [6, 1, 1]]


def test_flatten_observation_keeps_the_agent_axis():
    counter = make_counter(num_agents=2)
    grids = dataclasses.replace(
        counter,
        reset=lambda key, task: (task, first_timestep(jnp.arange(8).reshape(2, 2, 2), reward_shape=(2,))),
        observation_space=Box((2, 2)),
    )
    environment = flatten_observation(grids)
    assert environment.observation_space == Box((4,))
    _, timestep = environment.reset(KEY, jnp.asarray(0))
    np.testing.assert_array_equal(timestep.observation, [[0, 1, 2, 3], [4, 5, 6, 7]])


def test_time_limit_truncates_and_lets_termination_win():
    assert time_limit(make_counter(length=3), 2).max_steps == 2
    both = play(time_limit(make_counter(length=3), 3), jnp.asarray(0), [0] * 3)[-1]
    assert bool(both.terminated) and not bool(both.truncated)


def test_time_limit_refuses_zero():
    with pytest.raises(ValueError, match="`max_steps` must be at least 1, got 0; try 3"):
        time_limit(make_counter(), 0)


PLAYERS = np.asarray([0, 1, 1, 0, 1], np.int32)
REWARDS = np.asarray([[0.0, 0.0], [-2.0, 2.0], [0.0, 0.0], [3.0, -3.0], [0.0, 0.0]], np.float32)


def make_turns(num_players=2):
    """A game in which the players 0, 1, 1, 0 act in this order, with the rewards of the table, shifted by the task."""

    def player(state):
        return (jnp.asarray(PLAYERS)[state["turn"]] + state["first"]) % 2

    def reset(key, task):
        state = {"turn": jnp.zeros((), jnp.int32), "first": task, "log": jnp.full(4, -1, jnp.int32)}
        return state, first_timestep(
            state["log"], reward_shape=(2,), player=player(state), action_mask=jnp.ones(3, bool)
        )

    def step(key, state, action):
        log = state["log"].at[state["turn"]].set(action)
        reward = jnp.asarray(REWARDS)[state["turn"]]
        state = {"turn": state["turn"] + 1, "first": state["first"], "log": log}
        timestep = TimeStep(
            observation=log,
            reward=jnp.where(state["first"] == 0, reward, reward[::-1]),
            terminated=state["turn"] >= 4,
            truncated=jnp.zeros((), bool),
            player=player(state),
            action_mask=jnp.asarray([False, True, True]),
        )
        return state, timestep

    return absorbing(
        make_world(
            reset,
            step,
            Box((4,), dtype=np.int32),
            Discrete(3),
            4,
            num_players=num_players,
            sample_task=lambda key, level=None: jnp.zeros((), jnp.int32),
        )
    )


def test_alternating_gives_the_reward_of_who_acted_and_the_perspective():
    environment = alternating(make_turns())
    assert environment.num_players == 1
    timesteps = play(environment, jnp.asarray(0), [0] * 5)
    assert values(timesteps, lambda t: t.player) == [0, 1, 1, 0, 1, 1]
    assert values(timesteps, lambda t: t.reward) == [0, 0, 2, 0, 3, 0]
    assert values(timesteps, lambda t: t.info["perspective"]) == [1, -1, 1, -1, -1, 1]
    assert timesteps[0].info["perspective"].dtype == jnp.float32


def test_alternating_returns_add_up_to_those_of_each_player():
    timesteps = play(alternating(make_turns()), jnp.asarray(0), [0] * 4)[1:]
    value, returns = 0.0, []
    for timestep in reversed(timesteps):
        value = float(timestep.reward) + float(timestep.info["perspective"]) * value
        returns.append(value)
    # Player 0 loses 2 and wins 3; player 1, who acts second, wins 2 and loses 3.
    assert returns[::-1] == [1.0, -1.0, -3.0, 3.0]


def test_against_plays_the_opponents_moves_and_sums_the_agents_rewards():
    environment = against(make_turns(), opponent=lambda key, observation, action_mask: jnp.asarray(2, jnp.int32))
    assert environment.num_players == 1
    task = {"seat": jnp.asarray(0, jnp.int32), "game": jnp.asarray(0, jnp.int32)}
    timesteps = play(environment, task, [1, 0, 0])
    assert values(timesteps, lambda t: t.observation) == [[-1] * 4, [1, 2, 2, -1], [1, 2, 2, 0], [1, 2, 2, 0]]
    assert values(timesteps, lambda t: t.reward) == [0, -2, 3, 0]
    assert values(timesteps, lambda t: t.terminated) == [False, False, True, True]
    assert values(timesteps, lambda t: t.info["success"]) == [False, False, True, True]
    assert timesteps[0].player is None


def test_against_lets_the_opponent_open_when_the_agent_has_the_other_seat():
    environment = against(make_turns(), opponent=lambda key, observation, action_mask: jnp.asarray(2, jnp.int32))
    task = {"seat": jnp.asarray(1, jnp.int32), "game": jnp.asarray(0, jnp.int32)}
    timesteps = play(environment, task, [0, 1])
    assert values(timesteps, lambda t: t.observation) == [[2, -1, -1, -1], [2, 0, -1, -1], [2, 0, 1, 2]]
    assert values(timesteps, lambda t: t.reward) == [0, 2, -3]
    assert not bool(timesteps[-1].info["success"])


def test_against_draws_both_seats():
    tasks = jax.vmap(against(make_turns()).sample_task)(jax.random.split(KEY, 64))
    assert 10 < int(tasks["seat"].sum()) < 54


def test_uniform_opponent_takes_allowed_actions_only_and_all_of_them():
    act = uniform_opponent(make_turns())
    keys = jax.random.split(KEY, 200)
    masked = jax.vmap(lambda key: act(key, None, jnp.asarray([False, True, True])))(keys)
    free = jax.vmap(lambda key: act(key, None, None))(keys)
    assert np.unique(masked).tolist() == [1, 2]
    assert np.unique(free).tolist() == [0, 1, 2]


@pytest.mark.parametrize("wrapper", [alternating, against])
def test_two_player_wrappers_refuse_other_games(wrapper):
    with pytest.raises(
        ValueError, match=f"`environment` of `{wrapper.__name__}` must have 2 players, got 3 in 'world'"
    ):
        wrapper(make_turns(num_players=3))


@pytest.mark.parametrize("wrapper", [absorbing, auto_reset, episode_statistics, flatten_observation])
def test_wrapped_steps_are_the_same_with_and_without_jit_and_vmap(wrapper):
    environment = wrapper(make_counter())
    state, _ = environment.reset(KEY, jnp.asarray(4))
    plain = environment.step(KEY, state, jnp.asarray(1))
    jitted = jax.jit(environment.step)(KEY, state, jnp.asarray(1))
    batched = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state)
    mapped = jax.vmap(environment.step, in_axes=(None, 0, None))(KEY, batched, jnp.asarray(1))
    for one, other, third in zip(*map(jax.tree.leaves, (plain, jitted, mapped)), strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, third[1])
