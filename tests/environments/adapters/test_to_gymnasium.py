"""Tests of our worlds as those of gymnasium, by the checks that it brings."""

import numpy as np
import pytest

from jaxagents.environments import tmaze
from jaxagents.environments.adapters.to_gymnasium import convert_space, make_gymnasium
from jaxagents.environments.coordination import make_two_step_game
from jaxagents.types import Box, Discrete

checker = pytest.importorskip("gymnasium.utils.env_checker", reason="gymnasium comes with the extra `gymnax`")


def test_spaces():
    assert convert_space(Discrete(3)).n == 3
    assert convert_space(Discrete(3, (2,))).nvec.tolist() == [3, 3]
    box = convert_space(Box((2,), -1.0, 2.0))
    assert box.low.tolist() == [-1, -1] and box.high.tolist() == [2, 2] and box.dtype == np.float32
    flags = convert_space(Box((2, 3), dtype=bool))
    assert flags.shape == (2, 3) and flags.dtype == bool and flags.contains(np.ones((2, 3), bool))


@pytest.mark.filterwarnings("ignore")
def test_gymnasium_accepts_a_world_of_ours():
    checker.check_env(make_gymnasium(tmaze.make_environment(corridor_length=2)), skip_render_check=True)


def test_a_seed_gives_the_same_episode_and_the_end_is_told():
    world = make_gymnasium(tmaze.make_environment(corridor_length=2))
    episodes = []
    for _ in range(2):
        observation, _ = world.reset(seed=3)
        rewards, over = [observation.tolist()], False
        while not over:
            observation, reward, terminated, truncated, _ = world.step(0)
            rewards.append((observation.tolist(), reward))
            over = terminated or truncated
        episodes.append(rewards)
    assert episodes[0] == episodes[1] and len(episodes[0]) > 1
    assert "@" in world.render()


def test_the_other_one_is_offered():
    with pytest.raises(ValueError, match="try make_pettingzoo"):
        make_gymnasium(make_two_step_game())
