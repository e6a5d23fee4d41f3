"""Tests of jaxagents/reporting/frames.py."""

import dataclasses
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from jaxagents.environments import contextual_gridworld, tmaze
from jaxagents.environments.wrappers import episode_statistics
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import make_policy
from jaxagents.reporting.frames import (
    Frame,
    color_cells,
    describe_observation,
    draw_episode,
    draw_pictures,
    join_pictures,
    play,
    show_frames,
    write_gif,
)
from jaxagents.rollouts.evaluate import play_episode

BACKGROUND, CELL, FIRST, SECOND = (20, 24, 29), (35, 42, 50), (124, 196, 232), (245, 200, 80)
TEXT = Frame(caption="step 0", text="ab\nc", grid=None, last=False)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def make_policy_for(environment, observation_ndim=1):
    encoder = MLP((4,), observation_ndim=observation_ndim)
    policy = make_policy(environment.observation_space, environment.action_space, encoder=encoder)
    return policy, policy.init(jax.random.key(0))


@pytest.fixture(scope="module")
def gridworld_episode():
    environment = episode_statistics(contextual_gridworld.make_environment(size=4, max_steps=3))
    policy, params = make_policy_for(environment, observation_ndim=3)
    return environment, play_episode(environment, policy, params, jax.random.key(0))


def test_the_lowest_channel_colors_a_cell():
    observation = np.array([[[0, 0], [1, 0]], [[0, 1], [1, 1]]], bool)
    np.testing.assert_array_equal(color_cells(observation), [[CELL, FIRST], [SECOND, FIRST]])


def test_a_weak_channel_lets_what_lies_below_through():
    np.testing.assert_array_equal(color_cells(np.array([[[0.0, 0.5]]])), [[(140, 121, 65)]])
    np.testing.assert_array_equal(color_cells(np.array([[[0.5, 1.0]]])), [[(184, 198, 156)]])


def test_numbers_of_an_observation():
    observation = {"a": np.arange(9, dtype=np.int32), "b": jnp.full((70,), 0.123456)}
    lines = describe_observation(observation).splitlines()
    assert lines[0] == "observation['a'] int32[9]"
    assert [line.split() for line in lines[1:3]] == [list("01234567"), ["8"]]
    assert lines[3] == "observation['b'] float32[70]"
    assert [len(line.split()) for line in lines[4:12]] == [8] * 8
    assert lines[12:] == ["  and 6 more"]


def test_a_grid_is_drawn_as_cells(gridworld_episode):
    environment, episode = gridworld_episode
    frames = draw_episode(environment, episode, title="episode 7")
    assert [frame.last for frame in frames] == [False] * (len(episode) - 1) + [True]
    assert frames[0].caption == "episode 7  step 0  return 0"
    assert frames[1].caption.startswith("episode 7  step 1  return 0  reward 0")
    for frame, (state, timestep) in zip(frames, episode):
        np.testing.assert_array_equal(frame.grid, color_cells(timestep.observation))
        assert frame.text == environment.render(state)


def test_only_a_grid_of_zeros_to_ones_seen_by_one_agent_is_a_picture(gridworld_episode):
    environment, episode = gridworld_episode

    def has_grids(change):
        frames = draw_episode(environment, [(state, change(timestep)) for state, timestep in episode])
        return frames[0].grid is not None

    assert has_grids(lambda timestep: timestep)
    assert not has_grids(lambda timestep: timestep.replace(observation=2 * timestep.observation))
    assert not has_grids(lambda timestep: timestep.replace(observation=timestep.observation[0]))
    assert not has_grids(lambda timestep: timestep.replace(observation={"grid": timestep.observation}))
    assert not has_grids(lambda timestep: timestep.replace(player=jnp.int32(0)))
    assert not has_grids(lambda timestep: timestep.replace(info={**timestep.info, "perspective": jnp.float32(1)}))


def test_a_world_that_draws_nothing_shows_its_numbers():
    environment = tmaze.make_environment(corridor_length=1)
    policy, params = make_policy_for(environment)
    silent = dataclasses.replace(environment, render=None)
    (episode,) = play(silent, policy, params, seed=0)
    assert episode.frames[0].text.startswith("observation float32[4]")


def test_play_returns_what_was_played():
    environment = tmaze.make_environment(corridor_length=1)
    policy, params = make_policy_for(environment)
    one, two = play(environment, policy, params, seed=0, num_episodes=2, greedy=False, max_steps=3)
    assert one.frames[0].caption.startswith("episode 1  ") and two.frames[0].caption.startswith("episode 2  ")
    for episode in (one, two):
        assert 1 <= episode.episode_length == len(episode.frames) - 1 <= 3
        assert f"return {episode.episode_return:.4g}" in episode.frames[-1].caption
    (again,) = play(environment, policy, params, seed=0, greedy=False, max_steps=3)
    assert again.episode_length == one.episode_length
    assert [frame.text for frame in again.frames] == [frame.text for frame in one.frames]


def test_pictures_have_one_size_and_show_cells():
    grid = np.array([[FIRST, SECOND], [CELL, CELL]], np.uint8)
    pictures = draw_pictures([TEXT, TEXT._replace(grid=grid)])
    assert pictures[0].size == pictures[1].size
    colors = {color: count for count, color in pictures[1].getcolors(10_000)}
    # Squares of 160 pixels, less a line on two of their sides.
    assert (colors[FIRST], colors[SECOND], colors[CELL]) == (159**2, 159**2, 2 * 159**2)
    text_colors = {color: count for count, color in pictures[0].getcolors(10_000)}
    assert FIRST not in text_colors
    assert max(text_colors, key=text_colors.get) == BACKGROUND
    assert len(text_colors) > 3  # Letters.


def test_text_is_in_the_picture():
    pictures = draw_pictures([TEXT, TEXT._replace(text="ab\nd"), TEXT._replace(caption="step 1")])
    assert len({picture.tobytes() for picture in pictures}) == 3


def test_gif_has_all_frames_in_time(tmp_path):
    frames = [TEXT, TEXT._replace(text="x"), TEXT._replace(text="y", last=True)]
    path = write_gif(tmp_path / "new" / "a.gif", frames, fps=20)
    assert path == (tmp_path / "new" / "a.gif").resolve()
    with Image.open(path) as gif:
        assert gif.n_frames == 3
        assert gif.info["loop"] == 0
        durations = []
        for index in range(3):
            gif.seek(index)
            durations.append(gif.info["duration"])
    assert durations == [50, 50, 1000]


@pytest.mark.parametrize("fps", [0, -1, 51])
def test_gif_refuses_a_speed_that_viewers_do_not_show(tmp_path, fps):
    with pytest.raises(ValueError, match=f"`fps` must be above 0 and at most 50, got {fps}"):
        write_gif(tmp_path / "a.gif", [TEXT], fps=fps)


def test_nothing_to_show_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`frames` must not be empty"):
        write_gif(tmp_path / "a.gif", [], fps=10)
    environment = tmaze.make_environment(corridor_length=1)
    with pytest.raises(ValueError, match="`num_episodes` must be a positive number, got 0"):
        play(environment, *make_policy_for(environment), seed=0, num_episodes=0)


def test_frames_are_printed_below_each_other_or_shown_in_place():
    frames = [TEXT, TEXT._replace(caption="step 1", text="[bold]d")]
    stream = io.StringIO()
    show_frames(frames, delay=60.0, stream=stream)  # Would time out if it waited.
    assert stream.getvalue() == "step 0\nab\nc\n\nstep 1\n[bold]d\n\n"
    stream = io.StringIO()
    show_frames([TEXT._replace(caption=f"step {i}", text="") for i in range(100)], delay=60.0, stream=stream)
    captions = [line for line in stream.getvalue().splitlines() if line]
    assert captions == [*(f"step {i}" for i in range(20)), "... 79 more frames, and at the end", "step 99"]
    terminal = Terminal()
    show_frames(frames, delay=0.0, stream=terminal)
    assert "\x1b[" in terminal.getvalue()
    assert "[bold]d" in terminal.getvalue()


def test_films_are_joined_and_the_shorter_one_waits():
    left = [Image.new("RGB", (2, 3), color) for color in ("red", "blue")]
    right = [Image.new("RGB", (1, 5), color) for color in ("white", "white", "lime")]
    joined = join_pictures(left, right)
    assert [picture.size for picture in joined] == [(3, 5)] * 3
    assert [picture.getpixel((1, 2)) for picture in joined] == [(255, 0, 0), (0, 0, 255), (0, 0, 255)]
    assert [picture.getpixel((2, 4)) for picture in joined] == [(255, 255, 255)] * 2 + [(0, 255, 0)]
    assert joined[0].getpixel((0, 4)) == BACKGROUND


def test_without_parameters_the_policy_plays_as_before_training():
    environment = contextual_gridworld.make_environment(size=4, max_steps=3)
    policy, params = make_policy_for(environment, observation_ndim=3)
    (untrained,) = play(environment, policy, None, seed=0, title="before")
    (same,) = play(environment, policy, params, seed=0, title="before")
    assert [frame.text for frame in untrained.frames] == [frame.text for frame in same.frames]
    assert untrained.frames[0].caption.startswith("before  step 0")
