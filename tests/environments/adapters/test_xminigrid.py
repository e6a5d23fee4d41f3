"""The XLand-MiniGrid adapter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.adapters import xminigrid

KEY = jax.random.key(0)
FORWARD, CLOCKWISE = 0, 1


@pytest.mark.exhaustive
def test_the_shortest_way_succeeds_with_the_reward_of_the_suite():
    environment = xminigrid.make_environment("MiniGrid-Empty-5x5", max_steps=100)
    step = jax.jit(environment.step)
    state, timestep = environment.reset(KEY, environment.sample_task(KEY))
    assert environment.render(state) == "+-----+\n|#####|\n|#>..#|\n|#...#|\n|#..*#|\n|#####|\n+-----+"
    for action in (FORWARD, FORWARD, CLOCKWISE, FORWARD, FORWARD):
        assert not bool(timestep.terminated)
        state, timestep = step(KEY, state, jnp.asarray(action))
    assert bool(timestep.terminated) and not bool(timestep.truncated) and bool(timestep.info["success"])
    np.testing.assert_allclose(timestep.reward, 1 - 0.9 * 5 / 100, rtol=1e-6)


def test_levels_of_xland_differ_in_their_rules():
    environment = xminigrid.make_environment("XLand-MiniGrid-R1-9x9")
    easy, hard = environment.sample_task(KEY, 0), environment.sample_task(KEY, 1)
    assert easy["key"].tolist() == hard["key"].tolist()
    pyramid = [5, 5]
    assert pyramid in easy["ruleset"].init_tiles.tolist() and pyramid not in hard["ruleset"].init_tiles.tolist()
    assert not easy["ruleset"].rules.any() and hard["ruleset"].rules.any()


@pytest.mark.exhaustive
def test_the_pyramid_lies_in_the_easy_room_only():
    environment = xminigrid.make_environment("XLand-MiniGrid-R1-9x9")
    frames = [environment.render(environment.reset(KEY, environment.sample_task(KEY, level))[0]) for level in (0, 1)]
    assert ["p" in frame for frame in frames] == [True, False]
    assert all("o" in frame and "s" in frame for frame in frames)
