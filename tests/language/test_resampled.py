"""Groups that fail play a part of their screen; what is played counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.environments.text import bandit, screen
from jaxagents.language.resampled import make_resampled_collector

KEY = jax.random.key(4)
SIZE = {"num_groups": 6, "group_size": 2}


@pytest.fixture(scope="module")
def collected(speak, params_of):
    """Batches of a threshold that nobody reaches, and of one that everybody does."""
    world = screen.make_environment((3,))
    policy = speak(world, prompt=False)
    params = params_of(policy)

    def collect(above, **options):
        collector = make_resampled_collector(world, policy, above=above, **SIZE, **options)
        return jax.jit(collector.collect)(collector.init(KEY, params), params, KEY)[1:]

    return {"never": collect(9.0, num_tries=3, num_again=2), "always": collect(-1.0, num_tries=3, num_again=2)}


def test_groups_that_do_not_fail_are_played_once(collected):
    episode, metrics = collected["always"]
    assert int(metrics["episodes"].total) == 12 and float(metrics["failed_groups"].value) == 0.0
    assert episode.valid[:, 0].all() and (np.asarray(episode.task["elements"])[:, :, 0] >= 0).all()


def test_failed_groups_see_a_part_of_the_screen(collected):
    (episode, metrics), (before, _) = collected["never"], collected["always"]
    # Two groups of two episodes in each of two further tries.
    assert int(metrics["episodes"].total) == 12 + 2 * 2 * 2 == int(metrics["turns"].total)
    assert float(metrics["failed_groups"].value) == float(metrics["failed_groups_left"].value) == 1.0
    np.testing.assert_array_equal(episode.group, before.group)
    for row in range(12):
        task, whole = (jax.tree.map(lambda leaf, row=row: leaf[row], one.task) for one in (episode, before))
        cropped = jax.jit(screen.crop)(whole, jnp.int32(2 if row < 4 else 0))  # The first two groups, twice.
        jax.tree.map(np.testing.assert_array_equal, task, cropped)


def test_a_world_without_easier_tasks_is_refused(speak):
    world = bandit.make_environment()
    with pytest.raises(ValueError, match="`environment` must be a text world of one seat with easier tasks"):
        make_resampled_collector(world, speak(world), **SIZE)
