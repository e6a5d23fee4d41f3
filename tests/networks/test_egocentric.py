import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.networks.egocentric import Egocentric
from jaxagents.networks.torsos import MLP
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose
from tests import CONFIGS

PLAIN = MLP((), observation_ndim=3)


def grid():
    """The agent is on the left of the middle row of 3 x 3 cells, a wall above it, and one on the right below."""
    agent = np.zeros((3, 3))
    agent[1, 0] = 1.0
    wall = np.zeros((3, 3))
    wall[0, 0] = wall[2, 2] = 1.0
    return jnp.asarray(np.stack([agent, wall], axis=-1))


def test_the_agent_is_in_the_middle():
    seen = Egocentric(PLAIN).apply({}, grid()).reshape(5, 5, 3)
    np.testing.assert_array_equal(np.argwhere(seen[..., 0]), [[2, 2]])
    np.testing.assert_array_equal(np.argwhere(seen[..., 1]), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(seen[..., 2], [[0] * 5, [0, 0, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 1, 1, 1], [0] * 5])


def test_a_radius_cuts_what_is_far():
    seen = Egocentric(PLAIN, radius=1).apply({}, grid()).reshape(3, 3, 3)
    np.testing.assert_array_equal(seen[..., 1], [[0, 1, 0], [0, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(seen[..., 2], [[0, 1, 1]] * 3)


def test_another_plane_and_any_leading_axes():
    batch = jnp.stack([grid(), grid()[::-1]])[None, :, :, :, ::-1].astype(bool)
    module = Egocentric(MLP((4,), observation_ndim=3), plane=1)
    params = module.init(jax.random.key(0), batch)
    features = jax.jit(module.apply)(params, batch)
    assert features.shape == (1, 2, 4) and features.dtype == jnp.float32
    np.testing.assert_allclose(features[0, 1], module.apply(params, batch[0, 1]), rtol=1e-5)
    assert not np.allclose(features[0, 0], features[0, 1])


def test_bad_settings_and_grids_are_refused():
    with pytest.raises(ValueError, match="`plane` must be the index of a channel, got -1"):
        Egocentric(PLAIN, plane=-1)
    with pytest.raises(ValueError, match="`radius` must be at least 1, got 0; try 3"):
        Egocentric(PLAIN, radius=0)
    with pytest.raises(ValueError, match=r"must be \[..., S, S, C\] with a channel 2, got \[3, 3, 2\]"):
        Egocentric(PLAIN, plane=2).apply({}, grid())
    with pytest.raises(ValueError, match=r"must be \[..., S, S, C\] with a channel 0, got \[2, 3, 2\]"):
        Egocentric(PLAIN).apply({}, grid()[:2])


def test_its_option_file_acts_on_grids():
    config = resolve(compose(CONFIGS, "environment=gridworld", "policy=egocentric", "quick=true"))
    policy = build(config).stages[0].policy
    shapes = [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(policy.init, jax.random.key(0)))]
    assert shapes.count((15 * 15 * 4, 64)) == 2  # Of actor and critic.
