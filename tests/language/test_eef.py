"""Going on from an expert's failures: what is played again, what counts as sampled, and from where."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.eef import make_restart_collector
from jaxagents.language.relabeling import recorded_words
from jaxagents.language.tasks import make_uniform
from jaxagents.ops.imitation import turning_points
from jaxagents.types import EpisodeView

pytestmark = pytest.mark.exhaustive

KEY, GROUPS, RESTARTS, TURNS = jax.random.key(11), 6, 3, 6


@pytest.fixture(scope="module")
def collected(lake, wanderer):
    """Returns a batch, its metrics, and the expert's episodes of the same keys: six of two attempts each."""
    collector = make_restart_collector(lake, wanderer, num_groups=GROUPS, group_size=RESTARTS, noise=0.9)
    params = jnp.array([0.0, 1.0, 1.0, 0.0])

    def collect(key):
        state = collector.init(key, params)
        task_key, expert_key, _ = jax.random.split(key, 3)
        index = jnp.arange(2 * GROUPS, dtype=jnp.int32)
        chosen = make_uniform().choose(state["source"], task_key, index)
        shown = make_demonstrations(lake, wanderer, noise=0.9)(expert_key, index, chosen)
        return *collector.collect(state, params, key)[1:], shown

    return jax.jit(collect)(KEY)


def test_the_first_failed_episode_of_a_group_is_gone_on_from(wanderer, collected):
    batch, _, shown = collected
    failed = [2 * n + (0 if not shown.success[2 * n] or shown.success[2 * n + 1] else 1) for n in range(GROUPS)]
    assert not shown.success[np.array(failed)].all()
    expert, own = (np.asarray(recorded_words(wanderer, episode)[0])[:, :, 0] for episode in (shown, batch))
    length = np.asarray(shown.valid).sum(axis=1)
    cells = np.asarray(batch.task["holes"]).reshape(GROUPS, RESTARTS, 16)
    for n, row in enumerate(failed):
        np.testing.assert_array_equal(cells[n], [np.asarray(shown.task["holes"])[row].reshape(-1)] * RESTARTS)
        segment = -(-length[row] // RESTARTS)
        for k in range(RESTARTS):
            replayed = min(k * segment, length[row])
            np.testing.assert_array_equal(own[n * RESTARTS + k, :replayed], expert[row, :replayed])
            assert batch.keep[n * RESTARTS + k] == (k * segment < length[row])
            # Actions of the segment before the restart and the policy's own are imitated, earlier ones are not.
            sampled = np.asarray(batch.action_mask[n * RESTARTS + k]).any(axis=1)
            took = np.asarray(batch.valid[n * RESTARTS + k])
            first = max((k - 1) * segment, 0)
            np.testing.assert_array_equal(sampled, took & (np.arange(TURNS) >= first))


def test_what_counts_as_sampled_stands_behind_the_observation(wanderer, collected):
    batch, _, _ = collected
    mask = np.asarray(batch.action_mask)
    assert not mask[:, :, : wanderer.layout.observation].any() and (mask <= np.asarray(batch.token_mask)).all()


def test_metrics_tell_episodes_from_the_beginning_from_all(collected):
    batch, metrics, _ = collected
    success, kept = (np.asarray(x).reshape(GROUPS, RESTARTS) for x in (batch.success, batch.keep))
    assert float(metrics["success_rate"].total) == success[:, 0].sum() and float(metrics["success_rate"].count) == 6.0
    assert float(metrics["restart_success_rate"].total) == (success & kept).sum()
    assert float(metrics["restart_success_rate"].count) == kept.sum() < GROUPS * RESTARTS
    chosen = np.asarray(turning_points(EpisodeView(episode=batch))).reshape(GROUPS, RESTARTS)
    assert (chosen[:, 0] == success[:, 0]).all() and not chosen[~(success & kept)].any()


def test_refused(lake, wanderer):
    with pytest.raises(ValueError, match="`group_size` must be a positive number, got 0"):
        make_restart_collector(lake, wanderer, num_groups=2, group_size=0, noise=0.5)
